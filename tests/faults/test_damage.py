"""Files of a run that are corrupt, truncated, foreign or from the future, while it lives and afterwards."""

from __future__ import annotations

import os
import random
import signal
import struct
from pathlib import Path

import pytest

from accelbus.config import Tuning
from accelbus.errors import SpoolError
from accelbus.journal import layout
from accelbus.journal.merge import JournalReader
from accelbus.journal.salvage import read_description
from accelbus.journal.spool_file import HEADER_BYTES
from accelbus.reader.audit import audit
from tests.support.job import Job, wait_until

RANK = """
run = accelbus.init()
step = 0
say("up")
while not os.path.exists(os.environ["ROOT"] + "/stop"):
    run.log({"loss": float(step)}, step=step)
    step += 1
    time.sleep(0.002)
run.finish()
say(f"steps {step}")
"""
SOURCE = random.Random(5)
RUBBISH = {"nothing": b"", "zeros": bytes(5000), "noise": SOURCE.randbytes(5000), "text": b"not at all\n" * 100, "deep": b"[" * 200_000}


@pytest.fixture
def job(quick_job: Job) -> Job:
    quick_job.environ |= {"ACCELBUS_TORN_HOLD": "0.2", "ACCELBUS_UNREADABLE_HOLD": "0.2"}
    return quick_job


def finish(job: Job) -> None:
    """End the only rank, and hold the run against what it logged."""
    job.signal_file("stop")
    (rank,) = job.ranks
    assert rank.wait() == 0, rank.stderr
    steps = int(rank.lines[-1].split()[1])
    job.check({("loss", step): float(step) for step in range(steps)}, status="finished")
    assert "Traceback" not in job.bus_log() + rank.stderr, job.bus_log()
    assert job.bus_log().count("\n") < 60, job.bus_log()


def replace_bus(job: Job) -> None:
    """Kill the bus process and wait until another one reports."""
    old = job.kill_bus()
    wait_until(lambda: job.status().get("bus", {}).get("pid", old) != old, what="another bus process")


def test_foreign_things_in_the_journal_are_counted_and_the_rest_is_served(job: Job) -> None:
    """Whoever put them there: every reader says so once, and yields everything that is a row."""
    (rank,) = job.start(RANK)
    wait_until(job.rows, what="rows")
    journal = job.run_dir / "journal"
    (journal / "notes.txt").write_text("mine")
    (journal / "loop").symlink_to("loop")
    for name, data in RUBBISH.items():
        (journal / f"odd-{name}").mkdir()
        for number in (1, 2):
            (journal / f"odd-{name}" / layout.segment_name(number)).write_bytes(data)
    newer = layout.pack_header(layout.SegmentInfo(1, 1, "odd-newer", "elsewhere", "boot"))
    (journal / "odd-newer").mkdir()
    (journal / "odd-newer" / layout.segment_name(1)).write_bytes(
        newer[:8] + struct.pack("<H", layout.VERSION + 1) + newer[10:] + bytes(3000)
    )
    (journal / "odd-directory" / layout.segment_name(1)).mkdir(parents=True)
    (journal / "odd-directory" / "core.1234").touch()
    before = len(job.rows())
    wait_until(lambda: len(job.rows()) > before + 200, what="more rows")
    reasons = {f"corrupt/{reason}" for reason in ("foreign_file", "segment_magic", "segment_version", "unreadable")}
    wait_until(lambda: reasons <= set(job.status()["sinks"]["jsonl"]["journal"]), what=f"counts of {reasons}")
    assert rank.process.poll() is None
    finish(job)


def test_a_segment_that_cannot_be_read_holds_up_nothing_behind_it(job: Job) -> None:
    """In the middle of what a live bus process writes: the rest of its segments is delivered, the run is closed, the loss is named."""
    job.environ["ACCELBUS_SEGMENT_BYTES"] = "4096"
    (rank,) = job.start(RANK, ACCELBUS_MODE="offline", ACCELBUS_SPILL_AFTER="60")  # a spill would hold what is damaged a second time
    rank.said("up")
    wait_until(lambda: len(list(job.run_dir.glob("journal/bus-*/*.seg"))) > 5, what="segments")
    victim = sorted(job.run_dir.glob("journal/bus-*/*.seg"))[2]
    victim.rename(job.root / "away")
    victim.mkdir()
    written = job.status()["ranks"][0]["acked"]
    reader = JournalReader(job.run_dir / "journal", tuning=Tuning(unreadable_hold=0.2, gap_hold=0.5))
    seen: set[int | None] = set()

    def reads_on() -> bool:
        seen.update(getattr(item.event, "step", None) for item in reader.read(10_000))
        return max((step for step in seen if step is not None), default=0) > written + 100

    wait_until(reads_on, 15, "steps behind the damage")
    assert reader.statistics().corrupt["unreadable"]
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    job.wait_for_end()
    books = audit(job.run_dir)
    assert books.status == "finished"
    assert books.lost > 0
    assert "are lost" in books.problems[0]


def test_a_bus_process_starts_whatever_its_predecessor_left(job: Job) -> None:
    """run.json comes again from rank 0, the list of producers from the journal, and status.json is written anew."""
    job.start(RANK)
    wait_until(job.rows, what="rows")
    os.kill(job.kill_bus(signal.SIGSTOP), signal.SIGCONT)
    (producers,) = job.run_dir.glob("producers-*.json")
    for path, kind in ((job.run_dir / "run.json", "noise"), (job.run_dir / "status.json", "text"), (producers, "deep")):
        path.write_bytes(RUBBISH[kind])
    replace_bus(job)
    wait_until(lambda: job.status()["ranks"][0]["attempt"] == 0 and job.status()["sinks"], what="ranks and sinks")
    finish(job)
    assert audit(job.run_dir).notes == []


def test_attempts_go_on_where_nobody_kept_a_list(job: Job) -> None:
    """A run that is resumed on another host has no list of producers there; the journal knows the attempts."""
    script = """
        run = accelbus.init(attempt=None)
        run.log({"loss": float(os.environ["VALUE"])}, step=1)
        run.finish()
    """
    for attempt in range(2):
        job.run(script, VALUE=str(attempt), MASTER_PORT=str(29500 + attempt))
        for path in job.run_dir.glob("producers-*.json"):
            path.unlink()
    assert [producer.attempt for producer in audit(job.run_dir).producers] == [0, 1]
    job.check({("loss", 1): 1.0}, status="finished")


def test_a_damaged_cursor_costs_a_second_delivery_and_nothing_else(job: Job) -> None:
    """The sink starts from the beginning, says so and counts it; the old file is set aside."""
    (rank,) = job.start(RANK)
    cursor = job.run_dir / "sinks" / "jsonl" / "cursor.msgpack"
    wait_until(cursor.exists, what="a cursor")
    (worker,) = job.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    cursor.write_bytes(RUBBISH["noise"])
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: job.status()["sinks"]["jsonl"].get("cursor_resets"), what="the count")
    finish(job)
    assert "from the beginning" in job.bus_log()
    assert rank.stderr.count("Traceback") == 0


def test_odd_files_among_the_spools_stop_nobody(job: Job) -> None:
    """Foreign, future, half-made and damaged ones are left where they are, and said once."""
    job.spools.mkdir(mode=0o700)
    for name, data in RUBBISH.items():
        (job.spools / f"{name}.spool").write_bytes(data)
    (job.spools / "future.spool").write_bytes(b"ABSPOOL9" + SOURCE.randbytes(HEADER_BYTES))
    with open(job.spools / "huge.spool", "wb") as file:
        file.truncate(2**40)
    (job.spools / "directory.spool").mkdir()
    (job.spools / "dangling.spool").symlink_to("nowhere")
    os.mkfifo(job.spools / "pipe.spool")
    (rank,) = job.start(RANK)
    wait_until(job.rows, what="rows")
    (victim,) = job.start(
        """
        run = accelbus.init(role="helper")
        run.log({"other": 1.0}, step=1)
        wait_for(os.environ["ROOT"] + "/die")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    (own,) = wait_until(
        lambda: [path for path in job.spools.glob("*.spool") if len(path.stem) == 32 and _pid(path) == victim.pid], what="a spool"
    )
    wait_until(lambda: ("other", 1) in job.points(), what="the helper's point")
    with open(own, "r+b") as file:
        file.seek(16)
        file.write(b"\xff" * 8)
    job.signal_file("die")
    assert victim.wait() == -signal.SIGKILL
    wait_until(lambda: any(rank["state"] == "dead" for rank in job.status()["ranks"]), what="its end")
    assert own.exists()
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    job.wait_for_end()
    steps = int(rank.lines[-1].split()[1])
    assert job.points() == {("loss", step): float(step) for step in range(steps)} | {("other", 1): 1.0}
    assert "Traceback" not in job.bus_log(), job.bus_log()
    assert job.bus_log().count("\n") < 60, job.bus_log()


def _pid(path: Path) -> int:
    """Return whose spool it is."""
    with open(path, "rb") as file:
        try:
            return read_description(file.fileno()).pid
        except SpoolError:
            return 0


def test_every_flipped_byte_of_a_finished_run_costs_at_most_its_frame(job: Job) -> None:
    """Readers yield the rest in order, count what they skipped, and the audit names the events that are missing."""
    job.environ |= {"ACCELBUS_MODE": "offline", "ACCELBUS_FRAME_EVENTS": "10", "ACCELBUS_OVERLOAD_FRAME_EVENTS": "10"}
    (rank,) = job.run("""
        run = accelbus.init()
        for step in range(400):
            run.log({"loss": float(step)}, step=step)
        run.finish()
    """)
    assert rank.wait() == 0, rank.stderr
    (segment, *_) = [path for path in job.run_dir.glob("journal/*/*.seg") if path.stat().st_size > 5000]
    whole = segment.read_bytes()
    for place in range(3, len(whole), len(whole) // 150):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        segment.write_bytes(damaged)
        reader = JournalReader(job.run_dir / "journal", tuning=Tuning())
        steps = [item.event.step for item in [*reader.read(10_000), *reader.finish()] if hasattr(item.event, "step")]
        assert steps == sorted(steps)
        assert len(set(steps)) == len(steps)
        assert len(steps) >= 390, place
        if len(steps) < 400:
            assert sum(reader.statistics().corrupt.values()) > 0
    books = audit(job.run_dir)
    assert books.is_closed or books.problems or books.corrupt
