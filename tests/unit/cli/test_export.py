"""`accelbus export`."""

from __future__ import annotations

import json
import os
import threading

from tests.support.runs import HandRun, finished_run


def test_lines_go_to_standard_output(accelbus, tmp_path):
    """And nothing else does."""
    run = finished_run(tmp_path, ranks=2, steps=3)
    printed = accelbus("export", run.path, "--format", "jsonl")
    assert (printed.code, printed.err) == (0, "")
    assert [json.loads(line)["rank"] for line in printed.out.splitlines()].count(1) == 5


def test_a_file_appears_when_it_is_complete(accelbus, tmp_path):
    """Under its name; what was there before is replaced."""
    run = finished_run(tmp_path)
    output = tmp_path / "out.jsonl"
    output.write_text("old")
    printed = accelbus("export", run.path, "-o", output)
    assert (printed.code, printed.out, printed.err) == (0, "", f"14 lines in {output}\n")
    assert len(output.read_text().splitlines()) == 14
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_an_export_that_fails_leaves_no_half_a_file(accelbus, tmp_path, monkeypatch):
    """Neither under its name nor beside it."""
    run = finished_run(tmp_path)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("accelbus.reader.export.Export._lines_of", refuse)
    printed = accelbus("export", run.path, "-o", tmp_path / "out.jsonl")
    assert (printed.code, printed.err) == (1, "accelbus: [Errno 28] No space left on device\n")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_a_pipe_is_written_as_it_is(accelbus, tmp_path):
    """Only regular files are replaced."""
    run = finished_run(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(pipe.read_text().splitlines()))
    reader.start()
    assert accelbus("export", run.path, "-o", pipe).code == 0
    reader.join()
    assert len(lines) == 14


def test_what_is_missing_in_between_is_said(accelbus, run):
    """The rest is written, and the exit code is 1."""
    run.producer().log(9).write(1, 3).write(7, 10)
    printed = accelbus("export", run.path)
    assert printed.code == 1
    assert printed.err == "accelbus: rank 0: 3 events are missing\n"
    assert len(printed.out.splitlines()) == 7


def test_one_flipped_byte_is_never_taken_for_a_whole_run(accelbus, tmp_path):
    """Wherever it is, also where it takes all there is: what it costs is said, and the exit code is 1."""
    run = HandRun(tmp_path)
    producer = run.producer().log(9).end().write()
    run.write_status(producer, state="left")
    run.bus.close()
    (segment,) = run.dir.journal.glob("*/*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    printed = accelbus("export", run.path)
    assert (printed.code, printed.out) == (1, "")
    assert "accelbus: rank 0: 11 events are missing\n" in printed.err
    run.dir.status_path.unlink()
    printed = accelbus("export", run.path)
    assert (printed.code, printed.out) == (1, "")
    assert "damaged or foreign bytes in the journal" in printed.err


def test_events_that_wait_in_a_spool_are_said(accelbus, run):
    """Their rank is gone: sync or salvage brings them in, export only reads."""
    producer = run.producer().log(9).write(1, 6)
    producer.spool(acked=4)
    printed = accelbus("export", run.path)
    assert printed.code == 1
    assert printed.err == "accelbus: rank 0: 4 events are still in its spool; accelbus sync brings them in\n"
    assert len(printed.out.splitlines()) == 6


def test_a_run_that_goes_on_is_exported_as_far_as_it_has_come(accelbus, run):
    """What its ranks have just logged is on its way, and nothing is wrong."""
    producer = run.producer(pid=os.getpid()).log(9).write(1, 6)
    producer.spool(acked=6, alive=True)
    run.write_status(producer, pid=os.getpid())
    printed = accelbus("export", run.path)
    assert (printed.code, printed.err) == (0, "accelbus: rank 0: 4 events are on their way\n")
    producer.close_spool()


def test_damage_that_cost_nothing_is_said_and_no_trouble(accelbus, tmp_path):
    """Every producer has said where its events end, and they are all there."""
    run = finished_run(tmp_path)
    (run.dir.journal / "stranger").mkdir()
    (run.dir.journal / "stranger" / "00000001.seg").write_bytes(b"not a segment" * 100)
    printed = accelbus("export", run.path)
    assert (printed.code, printed.err) == (0, "accelbus: damaged or foreign bytes in the journal were skipped (segment_magic 1)\n")


def test_damage_in_the_journal_is_said(accelbus, run):
    """Once, in one line, by reason."""
    run.producer().log(2).write()
    (run.dir.journal / "stranger").mkdir()
    (run.dir.journal / "stranger" / "00000001.seg").write_bytes(b"not a segment" * 100)
    printed = accelbus("export", run.path)
    assert printed.err == "accelbus: damaged or foreign bytes in the journal were skipped (segment_magic 1)\n"
    assert len(printed.out.splitlines()) == 3
