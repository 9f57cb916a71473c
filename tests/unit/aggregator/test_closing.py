"""Runs that nobody will close any more."""

from __future__ import annotations

import os

import pytest

from accelbus import host
from accelbus.aggregator.closing import close_run
from accelbus.reader.audit import audit
from accelbus.rundir import RunDir
from tests.support.runs import HandRun, finished_run


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


def test_a_run_whose_producers_are_gone_is_closed_as_killed(run):
    """Nobody said how it ended."""
    run.producer(0, ranks=2).log(3).end().write()
    run.producer(1, ranks=2).log(3).write()
    assert close_run(run.dir, tuning=run.tuning).status == "killed"
    found = audit(run.dir)
    assert (found.is_closed, found.status) == (True, "killed")
    assert [one.status for one in found.producers] == ["finished", "killed"]


def test_a_closed_run_is_not_closed_again(tmp_path):
    """Its status is what it is."""
    run = finished_run(tmp_path)
    before = sorted(path.name for path in run.dir.journal.iterdir())
    assert close_run(run.dir, tuning=run.tuning).status == "finished"
    assert sorted(path.name for path in run.dir.journal.iterdir()) == before


def test_only_the_newest_attempt_decides(run):
    """What was killed and restarted well has finished."""
    run.bus.saw(run.producer(launch=b"1" * 16).log(3).write(), "dead", "killed")
    run.producer(launch=b"2" * 16).log(3).end().write()
    assert close_run(run.dir, tuning=run.tuning).status == "finished"


def test_a_run_with_a_producer_that_lives_stays_open(run):
    """Its process is there."""
    run.producer(pid=os.getpid()).log(3).write()
    closing = close_run(run.dir, tuning=run.tuning)
    assert (closing.status, f"pid {os.getpid()}) still runs" in closing.text) == ("", True)
    assert not audit(run.dir).is_closed


def test_a_run_with_a_producer_on_another_host_stays_open(run):
    """Nobody here can know."""
    run.producer(where="node17").log(3).write()
    closing = close_run(run.dir, tuning=run.tuning)
    assert closing.status == ""
    assert "was on another host" in closing.text


def test_an_empty_run_stays_open(run):
    """Its ranks may be about to start."""
    assert close_run(run.dir, tuning=run.tuning).text == "no producer has written anything yet"


def test_a_run_directory_is_all_that_closing_needs(run):
    """Spools are looked at where they are."""
    run.producer().log(3).write()
    assert close_run(RunDir(str(run.path)), tuning=run.tuning).status == "killed"


def test_a_producer_that_was_back_and_said_its_goodbye_keeps_its_word(run):
    """It was silent for a while, spoke again, and finished: then its bus process was killed."""
    producer = run.producer().log(3)
    run.bus.saw(producer, "silent")
    run.bus.saw(producer, "alive")
    producer.end().write()
    assert close_run(run.dir, tuning=run.tuning).status == "finished"
    assert audit(run.dir).producers[0].status == "finished"


def test_a_late_joiner_opens_a_closed_run_again(tmp_path):
    """Until it has ended too."""
    run = finished_run(tmp_path)
    run.producer(launch=b"2" * 16, pid=os.getpid()).log(1).write()
    assert "still runs" in close_run(run.dir, tuning=run.tuning).text
    run.bus.close()
