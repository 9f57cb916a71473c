"""Who is asked how a run is: its bus process, or its journal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import msgspec
import pytest

from accelbus import host
from accelbus.client.launch import node_directory
from accelbus.delivery.ownership import claim
from accelbus.delivery.status import RankCounts, SinkStatus, write_status
from accelbus.reader.report import Report, report
from accelbus.reader.snapshot import read_snapshot
from tests.support.runs import SECOND, HandRun, finished_run


def reported(run: HandRun, **options) -> Report:
    return report(run.dir, tuning=run.tuning, **options)


def live_status(run: HandRun, *producers, **more) -> None:
    """Write status.json as a bus process that is this process, and reports."""
    run.write_status(*producers, pid=os.getpid(), **more)


def test_a_bus_process_that_reports_is_believed(run):
    """Nothing is read but its last word."""
    producer = run.producer().log(9).write()
    producer.acked = 8
    state = SinkStatus(
        sink="jsonl", state="running", ranks={0: RankCounts(read=18, delivered=10, pending=8)}, lag_seconds=0.4, url="/there"
    )
    live_status(run, producer, sinks={"jsonl": msgspec.to_builtins(state)})
    found = reported(run)
    assert (found.source, found.status, found.bus.state, found.balanced) == ("bus", "running", "running", None)
    assert (found.ranks[0].logged, found.ranks[0].acked, found.ranks[0].pending, found.ranks[0].journal) == (10, 8, 2, None)
    (sink,) = found.sinks
    assert (sink.state, sink.delivered, sink.pending, sink.lag_seconds, sink.url) == ("running", 10, 8, 0.4, "/there")
    assert found.is_fine


def test_exact_counts_from_the_journal_all_the_same(run):
    """For who wants proof while the run goes on."""
    producer = run.producer(pid=os.getpid()).log(9).write()
    live_status(run, producer)
    found = reported(run, exact=True)
    assert (found.source, found.balanced, found.ranks[0].journal, found.status) == ("journal", True, 10, "running")


def test_unacked_events_of_an_ended_producer_are_looked_up_in_the_journal(run):
    """They may have been spilled; only the journal knows."""
    producer = run.producer().log(9).write(1, 4)
    run.write("spill-x", producer.frame(5, 10))
    producer.acked, producer.state = 4, "dead"
    live_status(run, producer)
    found = reported(run)
    assert found.source == "journal"
    assert found.lost == 0


@pytest.mark.parametrize(
    "changes, state",
    [
        ({}, "gone"),
        ({"pid": os.getpid(), "age": 1000.0}, "silent"),
        ({"state": "left"}, "left"),
        ({"where": "elsewhere", "age": 1000.0}, "unreachable"),
        ({"where": "elsewhere"}, "running"),
        ({"pid": 1}, "gone"),  # somebody else's process by now
    ],
)
def test_the_state_of_the_bus_process_comes_from_evidence(run, changes, state):
    """Its host, its process, the age of its report."""
    run.write_status(**changes)
    assert read_snapshot(run.dir.status_path, tuning=run.tuning).bus_state == state


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"ranks": 3}', b"[" * 100_000])
def test_a_damaged_status_file_is_a_note_and_the_journal_is_counted(tmp_path, content):
    """Nothing else depends on it."""
    run = finished_run(tmp_path)
    run.dir.status_path.write_bytes(content)
    found = reported(run)
    assert (found.source, found.bus.state, found.balanced) == ("journal", "unknown", True)
    assert any("status.json is damaged" in note for note in found.notes)


def test_a_sink_state_of_another_version_is_left_out(run):
    """The rest is understood."""
    live_status(run, sinks={"new": {"sink": "new", "state": "dreaming"}, "jsonl": {"sink": "jsonl", "state": "up_to_date"}})
    assert {sink.sink: sink.state for sink in reported(run).sinks} == {"jsonl": "up_to_date"}


def test_a_sink_that_has_not_reported_yet_is_starting(run):
    """The run asked for it."""
    live_status(run)
    assert [(sink.sink, sink.state) for sink in reported(run).sinks] == [("jsonl", "starting")]


def test_an_offline_run_has_no_sinks_while_it_goes_on(tmp_path):
    """Nobody starts them; afterwards they are owed."""
    run = HandRun(tmp_path, mode="offline")
    producer = run.producer(pid=os.getpid()).log(2).write()
    live_status(run, producer)
    assert reported(run).sinks == []
    run.write_status(producer, state="left")
    assert [(sink.sink, sink.state, sink.pending) for sink in reported(run).sinks] == [("jsonl", "owed", 4)]


def test_owed_values_without_anybody_who_delivers_are_trouble(tmp_path):
    """A finished run with a sink that has not everything."""
    run = finished_run(tmp_path)
    run.deliver(items=6)
    found = reported(run)
    assert found.sinks[0].state == "owed"
    assert not found.is_fine


def test_a_closed_run_is_owed_its_trackers_end(tmp_path):
    """Everything is delivered, and the tracker still shows the run as running."""
    run = finished_run(tmp_path)
    run.deliver()
    assert (reported(run).sinks[0].state, reported(run).sinks[0].pending) == ("owed", 0)
    run.deliver(finish=True)
    found = reported(run)
    assert found.sinks[0].state == "finished"
    assert found.is_fine


def test_somebody_who_delivers_right_now_is_named_and_believed(tmp_path):
    """A sync in another terminal, for example."""
    run = finished_run(tmp_path)
    lease = claim(run.dir.sink("jsonl"), tuning=run.tuning, purpose="sync")
    write_status(run.dir.sink("jsonl"), SinkStatus(sink="jsonl", state="running", lag_seconds=1.5))
    found = reported(run)
    assert (found.sinks[0].state, found.sinks[0].lag_seconds) == ("running", 1.5)
    assert "sync process" in found.sinks[0].owner
    assert found.is_fine
    lease.release()


@pytest.mark.parametrize(
    "change, fine",
    [
        ({"state": "retrying", "last_error": "no network"}, False),
        ({"state": "blocked"}, False),
        ({"state": "starting"}, True),
        ({"state": "up_to_date"}, True),
    ],
)
def test_failing_sinks_are_trouble_and_slow_ones_are_not(run, change, fine):
    """The exit code of `accelbus status`."""
    live_status(run, sinks={"jsonl": {"sink": "jsonl", **change}})
    assert reported(run).is_fine is fine


def test_dropped_events_dead_letters_and_a_failing_disk_are_trouble(run):
    """Something was not kept, or will not be."""
    producer = run.producer().write()
    live_status(run, producer)
    assert reported(run).is_fine
    producer.dropped = {"full": 3}
    live_status(run, producer)
    assert (reported(run).dropped, reported(run).is_fine) == ({"full": 3}, False)
    producer.dropped = {}
    live_status(run, producer, sinks={"jsonl": {"sink": "jsonl", "state": "running", "ranks": {"0": {"dead_lettered": 2}}}})
    found = reported(run)
    assert (found.sinks[0].dead_lettered, found.lost, found.is_fine) == (2, 0, False)
    live_status(run, producer, bus={"pid": os.getpid(), "host": host.name(), "disk_failing": True})
    assert "refuses the journal" in reported(run).problems[0]


def test_a_report_is_plain_data(tmp_path):
    """What `--json` prints can be read back."""
    found = reported(finished_run(tmp_path))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found


@pytest.mark.parametrize("state", ["fenced", "waiting", "stopped"])
def test_a_sink_that_nobody_delivers_to_is_owed_whatever_the_bus_process_says_of_itself(run, state):
    """Somebody took over and has left: the run goes on, and its values go nowhere."""
    producer = run.producer(pid=os.getpid()).log(9).write()
    live_status(run, producer, sinks={"jsonl": {"sink": "jsonl", "state": state}})
    found = reported(run)
    assert (found.source, found.sinks[0].state, found.sinks[0].pending) == ("journal", "owed", 18)
    assert not found.is_fine


def test_the_counts_of_a_worker_that_says_nothing_are_made_from_the_journal(run):
    """It was stopped: what it owes grows, and so does its lag; its last word stays what it was."""
    producer = run.producer(pid=os.getpid()).log(4).write()
    run.deliver()
    producer.log(5).write(6)
    last = SinkStatus(sink="jsonl", state="up_to_date", reported_ns=time.time_ns() - 10 * SECOND)
    live_status(run, producer, sinks={"jsonl": msgspec.to_builtins(last)})
    lease = claim(run.dir.sink("jsonl"), tuning=run.tuning, purpose="bus")
    write_status(run.dir.sink("jsonl"), last)
    found = reported(run)
    (sink,) = found.sinks
    assert (sink.state, sink.pending) == ("running", 10)
    assert sink.lag_seconds is not None
    assert sink.lag_seconds > 0
    assert any("has not reported for 10 s" in note for note in found.notes)
    lease.release()


def test_a_word_that_is_some_seconds_old_is_checked_against_the_journal(run):
    """The bus process may be stopped, or its disk be full; that its workers say nothing is not said, they may well have."""
    producer = run.producer(pid=os.getpid()).log(9).write()
    now = time.time_ns()
    last = SinkStatus(sink="jsonl", state="up_to_date", reported_ns=now - 7 * SECOND)
    live_status(run, producer, age=6.5, sinks={"jsonl": msgspec.to_builtins(last)})
    lease = claim(run.dir.sink("jsonl"), tuning=run.tuning, purpose="bus")
    found = reported(run)
    assert (found.source, found.bus.state, found.sinks[0].state, found.sinks[0].pending) == ("journal", "running", "running", 18)
    assert found.notes == []
    lease.release()


def test_events_that_nobody_takes_are_no_up_to_date_run(run):
    """A live rank whose bus process is gone: everything that reached the journal is delivered, and the rest waits."""
    producer = run.producer(pid=os.getpid()).log(9).write(1, 6)
    run.deliver()
    producer.spool(acked=6, alive=True)
    found = reported(run)
    assert found.sinks[0].state == "owed"
    assert any("4 events wait" in problem for problem in found.problems)
    assert not found.is_fine
    producer.close_spool()


@pytest.mark.parametrize("alive, state", [(True, "up_to_date"), (False, "owed")])
def test_a_run_that_has_just_begun_is_attended_unless_its_ranks_are_gone(run, alive, state):
    """A bus process may be about to come for a rank that lives; what a dead one left waits for somebody to call sync."""
    record = run.dir.read_record()
    run.dir.write_record(msgspec.structs.replace(record, created_ns=time.time_ns()))
    producer = run.producer(pid=os.getpid()).log(9).write(1, 6)
    run.deliver()
    producer.spool(acked=6, alive=alive)
    assert reported(run).sinks[0].state == state
    if alive:
        producer.close_spool()


def test_a_bus_process_that_lives_and_cannot_write_its_status_is_named(run, monkeypatch):
    """Its disk is full, so that status.json is old or was never written; the lock on this node says that it is there."""
    node = host.private_directory() / run.dir.node_name
    node.mkdir(parents=True, mode=0o700)
    (node / "bus.sock").touch()
    os.utime(node / "bus.sock", (1, 1))
    script = "import sys; from accelbus.recordlock import try_lock; assert try_lock(__import__('pathlib').Path(sys.argv[1])); print('up', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script, str(node / "bus.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bus:
        assert bus.stdout is not None
        assert bus.stdout.readline() == b"up\n"
        monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
        found = reported(run)
        bus.communicate(b"\n")
    assert found.bus.state == "silent"
    assert any("is there and does not report" in problem and "is full" in problem for problem in found.problems)
    assert not found.is_fine
    assert reported(run).bus.state == "unknown"


def test_the_lock_of_a_bus_process_is_where_ranks_look_for_it(run):
    """One name for the node's directory of a run, known to both."""
    host.private_directory().mkdir(exist_ok=True)
    assert node_directory(run.dir, run.tuning).name == run.dir.node_name
