"""Producers come and go: taken in, fenced by their successors, seen off when all of theirs is safe."""

from __future__ import annotations

import logging

import anyio
import anyio.to_thread

from accelbus import control, host
from accelbus.aggregator.ledger import Ledger
from accelbus.aggregator.lifetime import Lifetime
from accelbus.aggregator.peers import Peers
from accelbus.aggregator.remains import SpoolWatch
from accelbus.aggregator.roster import LIVE, Member, Roster

_log = logging.getLogger(__name__)


class Attendance:
    """Who takes part in one run, by what they say themselves; see `FailureDetector` for those who say nothing.

    Args:
        ledger: gets the records of it.
        roster: the list.
        peers: are answered.
        watch: keeps the spools of those who are here.
        lifetime: of the run, which goes on when somebody comes.
    """

    def __init__(self, ledger: Ledger, roster: Roster, peers: Peers, watch: SpoolWatch, lifetime: Lifetime) -> None:
        self._ledger = ledger
        self._roster = roster
        self._peers = peers
        self._watch = watch
        self._lifetime = lifetime
        self._unconfirmed: dict[bytes, bytes] = {}
        """{producer that said goodbye: routing id}, until what it logged is known to be safe"""
        self._somebody_left = anyio.Event()

    async def join(self, hello: control.Hello, peer: bytes) -> Member | None:
        """Take in a producer that said hello; None when another one has replaced it, and it was told so (again)."""
        known = self._roster.members.get(hello.producer)
        if known is not None and known.state == "dead" and (successor := self._roster.successor_of(known)) is not None:
            self._peers.tell(peer, _refusal(known, successor))
            return None
        if known is not None and known.state == "finished" and hello.last_seq <= known.last_seq:
            # Sent before the word on its goodbye came, or because that got lost: nothing is new, and its process may be gone by now.
            member, _ = self._roster.join(hello)
        else:
            member = self.take_in(hello)
            self.reopen(member)
        self._peers.connect(peer, member.producer, main=hello.main)
        await self.save()
        await self._lifetime.resume_delivery()
        return member

    def take_in(self, hello: control.Hello) -> Member:
        """Enter a producer into the list, fence those it replaces, and keep its spool."""
        # What it has spilled is in the journal already.
        self._ledger.expect_events()
        is_here = hello.host == host.name()
        is_salvageable = is_here and self._watch.watch(hello.producer, hello.spool)
        member, joined = self._roster.join(hello, is_dead=is_salvageable and self._watch.is_gone(hello.producer))
        if joined is not None:
            self._ledger.record(joined)
            for older in self._roster.fenced_by(member):
                self._fence(older, member)
        if is_here:
            if hello.started_by is not None:
                self._lifetime.note_launcher(member.producer, hello.started_by)
            member.salvageable = is_salvageable
        return member

    def reopen(self, member: Member) -> None:
        """A producer is here: the run goes on, whatever was thought of either."""
        if member.state not in LIVE:
            member.state, member.status = "alive", ""
            # Joined, and not only alive: that is what opens a closed run for its readers.
            self._ledger.record(self._roster.joined_record(member))
            self._ledger.record(self._roster.state_record(member))
        self._lifetime.reopen()

    def note_sign_of_life(self, member: Member) -> None:
        """A producer was heard. One that was thought lost is here."""
        if self._roster.heard(member):
            self._ledger.record(self._roster.state_record(member))
        if member.state == "lost":
            self.reopen(member)

    async def say_goodbye(self, peer: bytes, member: Member, message: control.Bye) -> bool:
        """Note that nothing follows; False when something is missing, and is to be sent again."""
        member.last_seq = max(member.last_seq, message.final_seq)
        member.dropped = message.dropped
        if member.through_seq < message.final_seq:
            return False
        if member.state in LIVE:
            self._ledger.record(self._roster.end(member, state="finished", status=message.status))
        self._unconfirmed[member.producer] = peer
        await self.confirm_goodbyes()
        return True

    async def confirm_goodbyes(self) -> None:
        """Tell those who said goodbye that all of theirs is safe; when the disk refuses, as soon as it does not."""
        waiting = dict(self._unconfirmed)
        if not waiting or not (await self._ledger.append([]) and await self._ledger.sync()):
            return
        await self.save()
        for producer, peer in waiting.items():
            if self._unconfirmed.pop(producer, None) is None:
                continue
            self._peers.ack(peer, self._roster.members[producer], final=True)
            self._watch.drop(producer, unlink=True)
            self._somebody_left.set()

    async def wait_for_departure(self, timeout: float) -> None:
        """Return when somebody's goodbye was confirmed since the last call, at the latest after *timeout* seconds."""
        with anyio.move_on_after(timeout):
            await self._somebody_left.wait()
        self._somebody_left = anyio.Event()

    async def save(self) -> None:
        """Write the list if it changed; the next incarnation can do without."""
        try:
            await anyio.to_thread.run_sync(self._roster.save)
        except OSError as error:
            _log.debug("the list of producers could not be written: %s", error)

    def _fence(self, older: Member, newer: Member) -> None:
        self._ledger.record(self._roster.end(older, state="dead", status="killed"))
        self._peers.tell_producer(older.producer, _refusal(older, newer))
        # Nothing more is said to it, nor taken from it but what lies in its spool and in the run directory when it has ended.
        self._peers.disconnect(older.producer)


def _refusal(older: Member, newer: Member) -> control.Refused:
    return control.Refused(f"attempt {newer.attempt} has started with a new rank {older.rank} on {newer.host}, pid {newer.pid}")


__all__ = ["Attendance"]
