"""Spools into their runs without a bus process."""

from __future__ import annotations

import os
import shutil

import pytest

from accelbus import host
from accelbus.aggregator.rescue import rescue_paths, rescue_run, rescue_strangers
from accelbus.reader.audit import audit
from tests.support.runs import HandRun


@pytest.fixture(autouse=True)
def _node_of_its_own(tmp_path, monkeypatch):
    """Other runs of this machine leave spools too."""
    monkeypatch.setattr(host, "tmpfs_directory", lambda: None)
    monkeypatch.setattr(host, "private_directory", lambda: tmp_path / "private")


@pytest.fixture
def run(tmp_path):
    hand = HandRun(tmp_path)
    yield hand
    hand.bus.close()


def rescued(run: HandRun):
    return rescue_run(run.dir, tuning=run.tuning)


def test_what_a_killed_producer_left_gets_into_the_journal(run):
    """All of it, with how it ended, and the spool is removed."""
    producer = run.producer().log(9).write(1, 6)
    path = producer.spool(acked=4, dropped={"full": 2})
    (result,) = rescued(run)
    assert (result.outcome, result.events, result.removed, path.exists()) == ("rescued", 4, True, False)
    (one,) = audit(run.dir).producers
    assert (one.journal, one.state, one.status, one.missing, one.dropped) == (10, "dead", "killed", [], {"full": 2})


def test_a_producer_that_no_bus_process_met_gets_its_attempt_written_down(run):
    """So that all readers agree on it."""
    known = run.producer(launch=b"1" * 16).log(1).write()
    run.bus.saw(known, "dead", "killed")
    run.producer(launch=b"2" * 16).log(3).spool()
    rescued(run)
    assert [(one.attempt, one.journal) for one in audit(run.dir).producers] == [(0, 2), (1, 4)]


def test_rescue_is_safe_to_repeat(run):
    """The second time there is nothing to do, also when the spool could not be removed."""
    path = run.producer().log(9).spool()
    copy = path.read_bytes()
    rescued(run)
    path.write_bytes(copy)
    (again,) = rescued(run)
    assert (again.outcome, again.events) == ("rescued", 0)
    assert rescued(run) == []
    found = audit(run.dir)
    assert (found.producers[0].journal, found.duplicates, found.balanced) == (10, 10, True)


def test_a_live_producer_is_left_alone(run):
    """It sends what it has itself."""
    producer = run.producer(pid=os.getpid()).log(3)
    path = producer.spool(alive=True)
    # In this process the lock can always be taken; another one sees it held.
    import subprocess
    import sys

    script = f"""
from accelbus.aggregator.rescue import rescue_run
from accelbus.config import Tuning
from accelbus.rundir import RunDir
print([(one.outcome, one.text) for one in rescue_run(RunDir({str(run.path)!r}), tuning=Tuning(spool_dir={str(run.spools)!r}))])
"""
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    finally:
        producer.close_spool()
    assert done.stdout.strip() == str([("alive", f"its process {os.getpid()} runs and sends it itself")])
    assert path.exists()


def test_spools_of_other_runs_are_not_touched(tmp_path):
    """Each run's rescue is about that run."""
    mine, other = HandRun(tmp_path, run_id="mine"), HandRun(tmp_path, run_id="other")
    path = other.producer().log(3).spool()
    assert rescued(mine) == []
    assert path.exists()
    assert [one.rank for one in rescued(other)] == [0]


def test_strangers_leave_a_young_spool_to_its_own_bus_process(run):
    """That one may be starting right now, and learns of its ranks by their spools."""
    path = run.producer().log(3).spool()
    rescue_strangers([run.path], tuning=run.tuning)
    assert path.exists()
    os.utime(path, (0, 0))
    rescue_strangers([run.path, run.path.parent / "deleted"], tuning=run.tuning)
    assert not path.exists()
    assert audit(run.dir).producers[0].journal == 4


def test_spools_that_only_the_bus_process_knew_of_are_found(run, tmp_path):
    """A job may have had its own ACCELBUS_SPOOL_DIR."""
    path = run.producer().log(3).spool()
    (run.path / f"producers-{host.name()}.json").write_text(f'{{"members": [{{"spool": "{path}"}}, {{"spool": "/gone"}}]}}')
    from accelbus.config import Tuning

    assert [one.events for one in rescue_run(run.dir, tuning=Tuning())] == [4]


def test_a_damaged_spool_is_said_to_be_and_kept(run):
    """The others are rescued."""
    good = run.producer().log(3).spool()
    bad = run.spools / "bad.spool"
    bad.write_bytes(b"no spool" * 2000)
    results = rescue_paths([bad, good], state_dir=run.path.parent, tuning=run.tuning)
    assert {one.path: one.outcome for one in results} == {bad: "failed", good: "rescued"}
    assert bad.exists()


def test_a_copied_spool_is_brought_in_and_left_there(run, tmp_path):
    """Only originals are ours to remove."""
    path = run.producer().log(3).spool()
    copy = tmp_path / "copy.spool"
    shutil.move(path, copy)
    (result,) = rescue_paths([copy], state_dir=tmp_path, tuning=run.tuning)
    assert (result.events, result.removed, copy.exists()) == (4, False, True)


def test_directories_are_searched_for_spools(run):
    """`accelbus salvage DIR`."""
    run.producer(0, ranks=2).log(3).spool()
    run.producer(1, ranks=2).log(3).spool()
    results = rescue_paths([run.spools], state_dir=run.path.parent, tuning=run.tuning)
    assert sorted(one.rank for one in results) == [0, 1]


def test_a_run_directory_that_moved_is_found_by_its_id(run, tmp_path):
    """In the state directory."""
    run.producer().log(3).spool()
    run.bus.close()
    moved = tmp_path / "archive" / run.dir.run_id
    moved.parent.mkdir()
    shutil.move(run.path, moved)
    (result,) = rescue_paths([run.spools], state_dir=moved.parent, tuning=run.tuning)
    assert result.run_path == moved
    assert audit(moved).producers[0].journal == 4
    assert not run.path.exists()


def test_a_run_directory_that_is_gone_is_made_anew(run):
    """A spool alone is enough."""
    run.producer().log(3).spool()
    shutil.rmtree(run.path)
    (result,) = rescue_paths([run.spools], state_dir=run.path.parent, tuning=run.tuning)
    assert (result.outcome, result.run_path) == ("rescued", run.path)
    assert audit(run.path).producers[0].journal == 4


def test_a_run_directory_that_cannot_be_made_keeps_the_spool(run, tmp_path):
    """The reason is said."""
    path = run.producer().log(3).spool()
    shutil.rmtree(run.path)
    run.path.write_text("in the way")
    (result,) = rescue_paths([path], state_dir=tmp_path, tuning=run.tuning)
    assert (result.outcome, path.exists()) == ("failed", True)
    assert "cannot be written" in result.text


def test_a_full_disk_leaves_the_spools_as_they_are(run, monkeypatch):
    """Nothing is removed that is not safe."""
    path = run.producer().log(3).spool()

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("accelbus.aggregator.afterwards.JournalWriter.sync", refuse)
    with pytest.raises(OSError, match="No space"):
        rescued(run)
    assert path.exists()
    (result,) = rescue_paths([path], state_dir=run.path.parent, tuning=run.tuning)
    assert (result.outcome, result.text) == ("failed", "No space left on device")
    monkeypatch.undo()
    size = sum(segment.stat().st_size for segment in run.dir.journal.rglob("*.seg"))
    assert rescued(run)[0].removed
    # The events could be read in the journal and were perhaps not on the disk: they were written again.
    assert sum(segment.stat().st_size for segment in run.dir.journal.rglob("*.seg")) > size
