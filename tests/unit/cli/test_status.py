"""`accelbus status`: first the line a person wants."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from accelbus.delivery.status import RankCounts, SinkStatus, write_status
from accelbus.reader.document import BusReport, RankReport, RankValues, Report, SinkReport
from tests.support.runs import HandRun, finished_run


def live(run: HandRun, **sink) -> None:
    """Write status.json as a bus process that is this process, and reports."""
    producer = run.producer(pid=os.getpid()).log(9).write()
    state = SinkStatus(sink="jsonl", **sink)
    run.write_status(producer, pid=os.getpid(), sinks={"jsonl": msgspec.to_builtins(state)})


def test_a_run_that_goes_on_is_a_line_per_sink_and_one_about_the_run(accelbus, run):
    """How it is, how far behind, what is lost, where to look."""
    live(run, state="up_to_date", lag_seconds=0.4, url="/runs/hand/jsonl/metrics.jsonl")
    printed = accelbus("status", "hand", "--state-dir", ".")
    first, second = printed.out.splitlines()
    assert first == "jsonl: up to date, lag 0.4 s, 0 lost, /runs/hand/jsonl/metrics.jsonl"
    assert second.startswith(f"hand: running, 1 rank, 10 events logged (its bus process {os.getpid()} on ")
    assert printed.code == 0


@pytest.mark.parametrize(
    "sink, line, code",
    [
        (
            {"state": "running", "ranks": {0: RankCounts(pending=1234)}, "lag_seconds": 3.21},
            "jsonl: delivering, 1,234 to go, lag 3.2 s, 0 lost",
            0,
        ),
        ({"state": "starting"}, "jsonl: starting, 0 to go, lag 0.0 s, 0 lost", 0),
        ({"state": "finished", "url": "/there"}, "jsonl: finished, 0 lost, /there", 0),
        (
            {"state": "retrying", "retries": 3, "last_error": "OSError: no network"},
            "jsonl: retrying after 3 failures (OSError: no network), 0 to go, lag 0.0 s, 0 lost",
            1,
        ),
        ({"state": "blocked", "last_error": "quota"}, "jsonl: takes no rows, waiting (quota), 0 to go, lag 0.0 s, 0 lost", 1),
        ({"state": "running", "ranks": {0: RankCounts(dead_lettered=2)}}, "jsonl: delivering, 0 to go, lag 0.0 s, 0 lost, 2 refused", 1),
        ({"state": "running", "dead_letters": 1}, "jsonl: delivering, 0 to go, lag 0.0 s, 0 lost, 1 refused", 1),
    ],
)
def test_each_state_of_a_sink_has_its_words_and_its_exit_code(accelbus, run, sink, line, code):
    """Failing and losing are 1; slow is 0."""
    live(run, **sink)
    printed = accelbus("status", run.path)
    assert printed.out.splitlines()[0] == line
    assert printed.code == code


def test_a_finished_run_is_proved_from_its_journal(accelbus, tmp_path):
    """The bus process has left; the books balance."""
    run = finished_run(tmp_path)
    run.deliver(finish=True)
    run.write_status(state="left", age=130)
    printed = accelbus("status", run.path)
    assert printed.out.splitlines() == [
        "jsonl: finished, 0 lost",
        "hand: finished, 2 ranks, 14 events logged, the books balance (its bus process has left, 2 min ago; counted from the journal)",
    ]
    assert printed.code == 0


def test_a_run_whose_bus_process_was_killed_says_so_and_what_to_do(accelbus, run):
    """What is owed, what is in spools, and the command that delivers it."""
    producer = run.producer().log(9).write(1, 6)
    producer.spool(acked=4)
    run.write_status(producer)
    printed = accelbus("status", run.path)
    first, second, third = printed.out.splitlines()
    assert first == f"jsonl: 10 values owed, 0 lost; deliver the rest with: accelbus sync {run.path}"
    assert second.startswith("hand: open, 1 rank, 10 events logged, 4 on their way, the books balance (its bus process ")
    assert "is gone; it last reported 0 s ago; counted from the journal" in second
    assert third.startswith("  ! rank 0, attempt 0: 4 events still in its spool on ")
    assert printed.code == 1


def test_losses_are_named(accelbus, run):
    """By rank, attempt and number; what was not kept by reason."""
    producer = run.producer().log(9).write(1, 6)
    run.bus.saw(producer, "dead", "killed", dropped={"full": 2, "bad_step": 30})
    printed = accelbus("status", run.path)
    assert "jsonl: 10 values owed, 4 lost, 32 not kept" in printed.out
    assert "  ! rank 0, attempt 0: 4 of 10 events are lost (numbers 7-10); its process is gone and no spool holds them" in printed.out
    assert "  ! rank 0, attempt 0: not kept: bad_step 30, full 2" in printed.out
    assert "the books do not balance" in printed.out
    assert printed.code == 1


def test_a_thousand_ranks_with_one_trouble_do_not_fill_the_screen(accelbus, run):
    """The first ones, and how many more there are."""
    for rank in range(50):
        run.bus.saw(run.producer(rank, ranks=50).write(), "dead", "killed", dropped={"full": 1})
    lines = accelbus("status", run.path).out.splitlines()
    assert len(lines) == 15
    assert lines[-1] == "  ! and 38 more of the kind; --json has them all"


def test_a_damaged_status_file_is_said_and_the_rest_is_there(accelbus, tmp_path):
    """Counted from the journal."""
    run = finished_run(tmp_path)
    run.deliver(finish=True)
    run.dir.status_path.write_bytes(b"\x00garbage")
    printed = accelbus("status", run.path)
    assert printed.code == 0
    assert "jsonl: finished, 0 lost" in printed.out
    assert "no bus process reports; counted from the journal" in printed.out
    assert "  - status.json is damaged" in printed.out


def test_an_empty_journal_is_a_run_in_which_nothing_happened(accelbus, run):
    """No rank has written yet, and nobody reports."""
    printed = accelbus("status", run.path)
    assert printed.out.splitlines()[0] == "jsonl: up to date, 0 lost"
    assert "hand: open, 0 ranks, 0 events logged" in printed.out
    assert printed.code == 0


def test_a_run_without_trackers_says_so(accelbus, tmp_path):
    """The journal is all there is."""
    run = finished_run(tmp_path, sinks=())
    assert accelbus("status", run.path).out.splitlines()[0] == f"no trackers; 0 lost, {run.path}"


def test_a_path_may_be_where_one_stands(accelbus, tmp_path, monkeypatch):
    """`accelbus status .` has a name and commands to show."""
    run = finished_run(tmp_path)
    monkeypatch.chdir(run.path)
    out = accelbus("status", ".").out
    assert f"deliver the rest with: accelbus sync {run.path}" in out
    assert "\nhand: finished" in out


def _age(run: HandRun, seconds: int) -> None:
    """Let everything in *run* look as if it was written so long ago."""
    then = time.time() - seconds
    for path in [*run.path.rglob("*"), run.path]:
        os.utime(path, (then, then))


def test_without_a_name_it_is_about_the_newest_run(accelbus, tmp_path):
    """Of the state directory."""
    for name, age in (("old", 300), ("new", 100), ("older", 500)):
        _age(finished_run(tmp_path / "runs", run_id=name), age)
    assert "\nnew: finished" in accelbus("status").out


def test_a_run_gets_no_newer_by_being_looked_at_or_delivered(accelbus, tmp_path):
    """`accelbus sync OLD` does not make OLD the run that `accelbus status` shows."""
    old = finished_run(tmp_path / "runs", run_id="old")
    for run, age in ((old, 300), (finished_run(tmp_path / "runs", run_id="new"), 100)):
        _age(run, age)
    old.deliver()
    old.write("salvage-x", old.producer().frame())
    old.write_status()
    assert "\nnew: finished" in accelbus("status").out


def test_a_run_that_nobody_lets_us_see_is_passed_over(accelbus, tmp_path, monkeypatch):
    """Another user's, in a shared state directory; -v says so."""
    finished_run(tmp_path / "runs", run_id="ours")
    finished_run(tmp_path / "runs", run_id="theirs")
    refused = tmp_path / "runs" / "theirs"
    real_stat = Path.stat

    def guarded(self: Path, **options) -> os.stat_result:
        if refused in self.absolute().parents:
            raise PermissionError(13, "Permission denied", str(self))
        return real_stat(self, **options)

    monkeypatch.setattr(Path, "stat", guarded)
    quiet = accelbus("status")
    assert "\nours: finished" in quiet.out
    assert quiet.err == ""
    assert f"accelbus: {Path('runs/theirs')} is passed over: Permission denied" in accelbus("status", "-v").err
    named = accelbus("status", "theirs")
    assert (named.code, named.err) == (2, "accelbus: run 'theirs': 'runs/theirs' cannot be read (Permission denied)\n")


def test_what_came_after_the_end_is_not_kept_and_not_lost(accelbus, tmp_path):
    """Its producer counted it: that is a drop, and the books balance."""
    run = HandRun(tmp_path)
    producer = run.producer().log(2).end().write()
    run.bus.saw(producer, "finished", "finished", dropped={"closed": 3})
    run.bus.close_run()
    run.bus.close()
    run.deliver(finish=True)
    printed = accelbus("status", run.path)
    assert printed.out.splitlines()[0] == "jsonl: finished, 0 lost, 3 not kept"
    assert "the books balance" in printed.out
    assert printed.code == 1


def test_without_any_run_it_says_where_it_looked(accelbus, tmp_path):
    """Code 2."""
    printed = accelbus("status")
    assert printed == (2, "", "accelbus: there are no runs in 'runs'; name one, or say where they are with --state-dir\n")


def test_verbose_has_tables_per_rank_and_sink(accelbus, tmp_path):
    """Everything the issue of a lost value needs, whole, also in a file."""
    run = finished_run(tmp_path)
    run.deliver(finish=True)
    write_status(run.dir.sink("jsonl"), SinkStatus(sink="jsonl", retries=3, restarts=1, last_error="OSError: once"))
    out = accelbus("status", run.path, "-v").out
    words = " ".join(out.split())
    assert "rank attempt role state logged acked in journal pending lost dropped where" in words
    assert "0 0 trainer finished 7 7 7 0 0 0" in words
    assert "jsonl: values, per rank (3 retries, 1 restart, breaker closed)" in words
    assert "rank delivered pending filtered superseded dead letters late" in words
    assert "1 10 0 0 0 0 0" in words
    assert "last error: OSError: once" in words


def test_json_is_one_document_with_documented_names(accelbus, tmp_path):
    """Programs rely on it: names are added, never renamed or removed."""
    run = finished_run(tmp_path)
    run.deliver(finish=True)
    document = json.loads(accelbus("status", run.path, "--json").out)
    assert set(document) == {
        "version", "run_id", "path", "project", "status", "source", "bus", "ranks", "sinks", "lost", "dropped", "balanced", "problems", "notes",
    }  # fmt: skip
    assert set(document["bus"]) == {"state", "pid", "host", "age_seconds", "disk_failing", "bad_frames"}
    assert set(document["ranks"][0]) == {
        "rank", "attempt", "role", "host", "pid", "state", "status", "logged", "acked", "journal", "pending", "lost", "missing", "dropped",
        "salvageable", "spool", "heard_seconds", "producer",
    }  # fmt: skip
    assert set(document["sinks"][0]) == {
        "sink", "state", "url", "lag_seconds", "delivered", "pending", "filtered", "superseded", "dead_lettered", "dead_letters", "late", "rows", "retries",
        "failing_rows", "breaker_open", "restarts", "last_error", "owner", "ranks",
    }  # fmt: skip
    assert document["sinks"][0]["ranks"]["1"] == {
        "journal": 10, "read": 10, "delivered": 10, "pending": 0, "filtered": 0, "superseded": 0, "dead_lettered": 0, "late": 0,
    }  # fmt: skip
    assert (document["version"], document["balanced"], document["lost"]) == (1, True, 0)


def test_every_name_in_the_json_is_documented():
    """In the reference page of the command line."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    names = {name for table in (Report, BusReport, RankReport, SinkReport, RankValues) for name in table.__struct_fields__}
    assert {name for name in names if f"`{name}`" not in page and f'"{name}"' not in page} == set()
