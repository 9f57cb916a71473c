"""What gets into the journal after the end of a run was written: it opens the run, and sinks look again before anybody leaves."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from accelbus import control, frame, host
from accelbus.aggregator import lifetime, remains
from accelbus.aggregator.attendance import Attendance
from accelbus.aggregator.detector import FailureDetector
from accelbus.aggregator.faults import Faults
from accelbus.aggregator.intake import Intake
from accelbus.aggregator.ledger import Ledger
from accelbus.aggregator.lifetime import Lifetime
from accelbus.aggregator.peers import Peers
from accelbus.aggregator.remains import SpoolWatch
from accelbus.aggregator.roster import Member, Roster
from accelbus.config import Tuning
from accelbus.events import ProducerJoined, RunClosed
from accelbus.journal.merge import JournalReader
from accelbus.journal.spool_file import SpoolFile
from accelbus.rundir import RunDir
from tests.support.deliveries import until
from tests.support.journals import LAUNCH, events_frame, everything, uuid
from tests.support.runs import dead_pid

OLDER, NEWER = uuid(1), uuid(2)


class Sinks:
    """Finished from the beginning; a sink that is told to look again is finished when a test says so."""

    def __init__(self) -> None:
        self.is_finished = True
        self.resumptions = 0

    def resume(self) -> None:
        self.is_finished = False
        self.resumptions += 1


class Node:
    """The parts of a served run, without sockets and trackers; peers are named like their producers."""

    def __init__(self, root: Path) -> None:
        self.tuning = Tuning(spool_dir=str(root / "spools"), disk_retry_interval=0.0)
        self.run_dir = RunDir(root / "run")
        self.run_dir.create()
        self.sent: list[tuple[bytes, control.Message]] = []
        self.sinks = Sinks()
        self.incarnate()

    def incarnate(self) -> None:
        """Be a new bus process of the same run."""
        self.ledger = Ledger(self.run_dir.journal, tuning=self.tuning)
        self.roster = Roster(self.run_dir.path / "producers.json")
        self.peers = Peers(self._send, incarnation=self.ledger.incarnation, tuning=self.tuning)
        self.watch = SpoolWatch(self.tuning)
        self.lifetime = Lifetime(self.ledger, self.roster, self.watch, self.sinks, tuning=self.tuning)
        self.attendance = Attendance(self.ledger, self.roster, self.peers, self.watch, self.lifetime)
        self.intake = Intake(self.ledger, self.roster, self.peers, self.attendance, self.lifetime)
        self.detector = FailureDetector(
            self.run_dir, ledger=self.ledger, roster=self.roster, watch=self.watch, attendance=self.attendance,
            lifetime=self.lifetime, faults=Faults(), tuning=self.tuning,
        )  # fmt: skip

    def hello(self, producer: bytes, launch: bytes = LAUNCH, **more: object) -> control.Hello:
        plain = control.Hello(
            producer=producer, run_id="run", run_dir=str(self.run_dir.path), rank=0, world_size=1, local_rank=0, local_world_size=1,
            host=host.name(), pid=os.getpid(), role="trainer", launch=launch, launcher="", base_seq=1, last_seq=0,
        )  # fmt: skip
        for name, value in more.items():
            setattr(plain, name, value)
        return plain

    async def start_and_finish(self, producer: bytes, launch: bytes = LAUNCH) -> Member:
        """A rank comes, logs three events and says goodbye."""
        member = await self.attendance.join(self.hello(producer, launch), producer)
        assert member is not None
        assert await self.store(producer, 1, 3)
        await self.attendance.say_goodbye(producer, member, control.Bye(3, "finished"))
        return member

    async def store(self, producer: bytes, first: int, last: int) -> bool:
        """Take a frame as the socket's server does; whether its sender was known."""
        raw = events_frame(producer, first, last)
        known = self.intake.take(producer, raw, frame.parse(raw))
        await self.intake.store()
        return known

    def words(self) -> list[str]:
        """Return the ends and beginnings in the journal, in order."""
        items = everything(JournalReader(self.run_dir.journal, tuning=self.tuning))
        return [type(item.event).__name__ for item in items if isinstance(item.event, RunClosed | ProducerJoined)]

    def told(self, producer: bytes) -> list[str]:
        return [type(message).__name__ for peer, message in self.sent if peer == producer]

    def _send(self, peer: bytes, payload: bytes) -> bool:
        self.sent.append((peer, control.unpack(frame.parse(payload))))
        return True


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(host, "tmpfs_directory", lambda: None)
    monkeypatch.setattr(host, "private_directory", lambda: tmp_path / "private")
    one = Node(tmp_path)
    yield one
    one.ledger.close()


async def test_a_run_is_closed_when_its_last_rank_has_said_goodbye(node: Node) -> None:
    """Once, and sinks that follow the journal need no word of it."""
    await node.start_and_finish(NEWER)
    await node.lifetime.close_when_over()
    await node.lifetime.close_when_over()
    assert (node.lifetime.is_closed, node.words(), node.sinks.resumptions) == (True, ["ProducerJoined", "RunClosed"], 0)


async def test_events_that_are_stored_after_the_end_open_the_run(node: Node) -> None:
    """Its end is written again behind them, and sinks look again."""
    await node.attendance.join(node.hello(OLDER), OLDER)
    node.roster.end(node.roster.members[OLDER], state="dead", status="killed")
    await node.start_and_finish(NEWER, b"N" * 16)
    await node.lifetime.close_when_over()
    assert node.lifetime.is_closed
    assert await node.store(OLDER, 1, 2)
    assert not node.lifetime.is_closed
    await node.lifetime.close_when_over()
    assert node.words()[-2:] == ["RunClosed", "RunClosed"]
    assert (node.lifetime.is_closed, node.sinks.resumptions) == (True, 1)


async def test_a_frame_that_brings_nothing_new_opens_nothing(node: Node) -> None:
    """It was sent again because its ack got lost."""
    await node.start_and_finish(NEWER)
    await node.lifetime.close_when_over()
    await node.store(NEWER, 1, 3)
    assert node.lifetime.is_closed


async def test_a_rank_that_comes_while_the_end_is_being_synced_keeps_the_run_open(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes its time, and the end is written already: sinks that have believed it are started again."""
    await node.start_and_finish(NEWER)
    sync = node.ledger.sync

    async def slowly() -> bool:
        monkeypatch.setattr(node.ledger, "sync", sync)
        await node.attendance.join(node.hello(OLDER, b"N" * 16), OLDER)
        return await sync()

    monkeypatch.setattr(node.ledger, "sync", slowly)
    await node.lifetime.close_when_over()
    assert (node.lifetime.is_closed, node.sinks.resumptions) == (False, 1)


async def test_sinks_look_again_only_when_the_journal_says_why(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk refuses, a sink that is started again would find nothing new and be finished once more."""
    await node.start_and_finish(NEWER)
    await node.lifetime.close_when_over()
    with monkeypatch.context() as patch:

        def refuse(*arguments: object) -> int:
            raise OSError(errno.ENOSPC, "full")

        patch.setattr(os, "writev", refuse)
        await node.attendance.join(node.hello(OLDER, b"N" * 16), OLDER)
        assert (node.lifetime.owes_resumption, node.sinks.resumptions) == (True, 0)
    await node.lifetime.resume_delivery()
    assert (node.lifetime.owes_resumption, node.sinks.resumptions) == (False, 1)


async def test_a_lost_rank_that_is_heard_again_is_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know that it was thought lost. Readers are told that the run is open again."""
    member = await node.attendance.join(node.hello(NEWER), NEWER)
    assert member is not None
    node.roster.end(member, state="lost", status="lost")
    monkeypatch.setattr(lifetime, "_SHORT_GRACE", 0.0)
    await node.lifetime.close_when_over()
    assert node.lifetime.is_closed
    assert await node.store(NEWER, 1, 2)
    assert (member.state, node.lifetime.is_closed) == ("alive", False)
    await node.ledger.append([])
    assert node.words()[-1] == "ProducerJoined"


async def test_the_next_bus_process_has_sinks_look_again(node: Node) -> None:
    """They may have seen the end that an earlier one wrote, before this one brought in what it found."""
    await node.start_and_finish(NEWER)
    await node.lifetime.close_when_over()
    await node.attendance.save()
    node.ledger.close()
    node.incarnate()
    await node.detector.adopt()
    await node.lifetime.close_when_over()
    assert (node.lifetime.is_closed, node.sinks.resumptions) == (True, 1)


async def test_a_replaced_rank_is_spoken_to_no_more(node: Node) -> None:
    """It would take any word for a sign that it is served; if it has not heard that it was refused, it is told again."""
    await node.attendance.join(node.hello(OLDER), OLDER)
    await node.attendance.join(node.hello(NEWER, b"N" * 16), NEWER)
    assert node.told(OLDER) == ["Refused"]
    node.peers.tell_all(control.Verdict(ok=True))
    assert not await node.store(OLDER, 1, 2)
    assert await node.attendance.join(node.hello(OLDER), OLDER) is None
    assert node.told(OLDER) == ["Refused", "Refused"]
    assert node.roster.members[OLDER].state == "dead"


HOLD = """
import sys
from pathlib import Path
import msgspec
from accelbus.control import Hello
from accelbus.journal.spool_file import SpoolFile
file = SpoolFile(Path(sys.argv[1]), capacity=0, description=msgspec.json.decode(sys.argv[2], type=Hello))
if sys.argv[3]:
    file.mark_ending(sys.argv[3])
print("ready", flush=True)
sys.stdin.read()
"""


def hold_spool(node: Node, ending: str) -> subprocess.Popen[bytes]:
    """Start a producer that has a spool and says nothing; it ends when its stdin does."""
    path = Path(str(node.tuning.spool_dir)) / "one.spool"
    path.parent.mkdir()
    about = msgspec.json.encode(node.hello(OLDER)).decode()
    return subprocess.Popen([sys.executable, "-c", HOLD, str(path), about, ending], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_a_dead_rank_that_is_found_late_does_not_replace_its_living_successor(node: Node) -> None:
    """Killed before anybody heard of it, found by its spool after the next one said hello: the next one goes on, and decides the status."""
    spool = node.run_dir.path.parent / "spools"
    spool.mkdir(exist_ok=True)
    await node.attendance.join(node.hello(NEWER), NEWER)
    hello = node.hello(OLDER, launch=b"another launch..", spool=str(spool / "older.spool"))
    SpoolFile(spool / "older.spool", capacity=1 << 20, description=hello).close(unlink=False)
    node.attendance.take_in(hello)
    assert node.told(NEWER) == []
    newer, older = node.roster.members[NEWER], node.roster.members[OLDER]
    assert (newer.state, newer.attempt, older.attempt) == ("alive", 0, 0)
    assert node.roster.trainers() == [newer]
    assert await node.store(NEWER, 1, 3)


def _look_without_locks(node: Node, monkeypatch: pytest.MonkeyPatch, pid: int) -> Member:
    """Take in a producer with a spool where nobody can lock, and return it."""

    def refuse(descriptor: int) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(remains, "producer_is_gone", refuse)
    path = node.run_dir.path.parent / "spools" / "one.spool"
    path.parent.mkdir()
    hello = node.hello(OLDER, spool=str(path), pid=pid)
    SpoolFile(path, capacity=1 << 20, description=hello).close(unlink=False)
    return node.attendance.take_in(hello)


async def _look(node: Node, has_seen: Callable[[], object]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.detector.run)
        await until(has_seen, "the end of the rank")
        tasks.cancel_scope.cancel()


async def test_a_killed_rank_is_found_by_its_pid_where_there_are_no_record_locks(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its spool holds is brought in, and nobody waits for it."""
    member = _look_without_locks(node, monkeypatch, dead_pid())
    assert member.salvageable
    await _look(node, lambda: node.watch.is_empty)
    assert (member.state, member.status) == ("dead", "killed")
    assert not os.listdir(node.run_dir.path.parent / "spools")


async def test_a_silent_rank_is_lost_where_there_are_no_record_locks(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pid may be another process's by now: a lock that cannot be looked at is no reason to wait for ever."""
    member = _look_without_locks(node, monkeypatch, os.getpid())
    node.roster.heard_at[OLDER] -= node.tuning.lost_after + 1
    await _look(node, lambda: member.state == "lost")
    assert member.status == "lost"


@pytest.mark.parametrize("ending, known, is_missed", [("", True, False), ("finished", True, True), ("", False, True)])
async def test_who_ends_or_comes_while_the_bus_process_leaves_is_not_missed(node: Node, ending: str, known: bool, is_missed: bool) -> None:
    """A producer that has said that nothing follows may have seen the lock held, and relies on being seen itself."""
    if known:
        await node.attendance.join(node.hello(OLDER), OLDER)
    process = hold_spool(node, ending)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert node.detector.has_missed_somebody() is is_missed
    finally:
        process.communicate()
    assert node.detector.has_missed_somebody()
