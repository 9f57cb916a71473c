"""One run as its bus process on this node serves it: all its state, and what its producers may ask for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from accelbus import control, host
from accelbus.aggregator.attendance import Attendance
from accelbus.aggregator.deliverer import Deliverer
from accelbus.aggregator.detector import FailureDetector
from accelbus.aggregator.faults import Faults
from accelbus.aggregator.home import Home
from accelbus.aggregator.intake import Intake
from accelbus.aggregator.ledger import Ledger
from accelbus.aggregator.lifetime import Lifetime
from accelbus.aggregator.peers import Peers, Send
from accelbus.aggregator.remains import SpoolWatch
from accelbus.aggregator.reporter import Notices, Reporter
from accelbus.aggregator.rescue import rescue_strangers
from accelbus.aggregator.roster import Roster
from accelbus.aggregator.settings import RulingSettings
from accelbus.config import Tuning
from accelbus.errors import FrameError
from accelbus.rundir import RunDir


class ServedRun:
    """Everything about one run, from `adopt` over `serve` to `close`; the socket that it is spoken to through is the server's.

    Args:
        run_dir: of the run.
        send: to a peer of the socket.
        faults: of the process.
        tuning: sizes and intervals.
    """

    def __init__(self, run_dir: RunDir, send: Send, faults: Faults, *, tuning: Tuning) -> None:
        self._run_dir = run_dir
        self._tuning = tuning
        self._faults = faults
        self._turned_away = False
        self._strangers: set[Path] = set()
        self._ledger = ledger = Ledger(run_dir.journal, tuning=tuning)
        self._roster = roster = Roster(run_dir.path / f"producers-{host.name()}.json")
        self._peers = peers = Peers(send, incarnation=ledger.incarnation, tuning=tuning)
        self._notices = Notices(peers)
        self._settings = RulingSettings(run_dir, tuning=tuning, faults=faults, notify=self._notices.add)
        self._deliverer = deliverer = Deliverer(run_dir, roster, peers, tuning=tuning, notify=self._notices.add)
        watch = SpoolWatch(tuning)
        self._lifetime = lifetime = Lifetime(ledger, roster, watch, deliverer, tuning=tuning)
        self._attendance = attendance = Attendance(ledger, roster, peers, watch, lifetime)
        self._detector = FailureDetector(
            run_dir, ledger=ledger, roster=roster, watch=watch, attendance=attendance, lifetime=lifetime, faults=faults, tuning=tuning
        )
        self._reporter = Reporter(
            run_dir, ledger=ledger, roster=roster, peers=peers, deliverer=deliverer, lifetime=lifetime, faults=faults, tuning=tuning
        )
        self._home = Home(run_dir, ledger, roster, lifetime, tuning=tuning, notify=self._notices.add)
        self.intake = Intake(ledger, roster, peers, attendance, lifetime)
        """Takes the frames of its producers."""

    @property
    def run_id(self) -> str:
        return self._run_dir.run_id

    # Life

    async def adopt(self) -> None:
        """Learn who is there already; before any of them is listened to."""
        self._strangers = await self._detector.adopt()

    async def serve(self) -> None:
        """Run until everything is delivered, nobody needs this process any more, or it was told to end and had its grace."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ledger.keep_synced)
            tasks.start_soon(self._ledger.keep_time)
            tasks.start_soon(self._deliver)
            tasks.start_soon(self._reporter.run)
            tasks.start_soon(anyio.to_thread.run_sync, partial(rescue_strangers, self._strangers, tuning=self._tuning))
            async with anyio.create_task_group() as looking:
                looking.start_soon(self._detector.run)
                await self._lifetime.wait_until_over()
                # No sink will look any more: a spool that is found from here on stays, and has the run served once more.
                looking.cancel_scope.cancel()
            self._reporter.tell_sink_states()
            with anyio.move_on_after(self._tuning.exit_timeout):
                await self._deliverer.stop()
            tasks.cancel_scope.cancel()

    async def close(self) -> None:
        """Make everything durable; nothing is taken any more."""
        await self._ledger.sync()
        await self._reporter.write_status("left")
        self._ledger.close()

    def terminate(self) -> bool:
        """Leave once the ranks are gone and the sinks are up to date, within the grace; False when that was asked before."""
        return self._lifetime.terminate()

    def has_missed_somebody(self) -> bool:
        """Whether a producer came or ended while this process was leaving. To be asked after `close`, and after the bus lock was let go.

        It has seen the lock held, so it starts no bus process itself; it may even have ended by now.
        """
        if self._lifetime.is_terminating:
            return False
        return self._turned_away or self._lifetime.owes_resumption or self._detector.has_missed_somebody()

    async def _deliver(self) -> None:
        record = await self._settings.wait(lambda: self._lifetime.is_closed)
        self._ledger.ack_after_sync = record.durability == "disk" or host.is_on_network(self._run_dir.path)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._home.keep, record)
            await self._deliverer.run(record)

    # What producers say

    def has_peer(self, peer: bytes) -> bool:
        """Whether one of its producers speaks through *peer*."""
        return self._peers.producer_at(peer) is not None

    async def welcome(self, peer: bytes, hello: control.Hello) -> None:
        """Take in whoever says *hello* and tell it what it should know."""
        if self._lifetime.is_over:
            self._turned_away = True  # Leaving: it says hello again, to the next bus process.
            return
        member = await self._attendance.join(hello, peer)
        if member is None:
            return
        if hello.record is not None:
            self._settings.offer(hello.role, hello.rank, hello.record)
        self._peers.welcome(peer, member)
        if self._deliverer.verdict is not None:
            self._peers.tell(peer, self._deliverer.verdict)
        if hello.main:
            self._notices.repeat(peer)
            self._reporter.tell_sink_states()

    async def hear(self, peer: bytes, message: control.Message) -> bool:
        """Deal with a message of a producer; False when it must say hello (again)."""
        producer = self._peers.producer_at(peer)
        if producer is None:
            return False
        member = self._roster.members[producer]
        self._attendance.note_sign_of_life(member)
        match message:
            case control.Heartbeat():
                self._peers.ack(peer, member)
                member.last_seq = max(member.last_seq, message.last_seq)
                member.dropped = message.dropped
            case control.Handover():
                if self._peers.is_main(producer):
                    self._deliverer.take_over_from(message)
            case control.Bye():
                return await self._attendance.say_goodbye(peer, member, message)
            case _:
                self._faults.drop(FrameError("control", f"expected a message of a producer, got {type(message).__name__}"))
        return True


__all__ = ["ServedRun"]
