"""Producers of one run on this node: who is there, how they ended, and what that makes of the run."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec

from accelbus import host
from accelbus.control import Hello
from accelbus.durable import write_atomically
from accelbus.events import TRAINER, ProducerJoined, ProducerState, worst_status
from accelbus.journal.attempts import AttemptTable

_log = logging.getLogger(__name__)
LIVE = ("alive", "silent")


class Member(msgspec.Struct, kw_only=True):
    """One producer. Times are monotonic and of this process; they are not kept."""

    producer: bytes
    rank: int
    world_size: int
    attempt: int
    role: str
    host: str
    pid: int
    launch: bytes
    state: str = "alive"
    """alive, silent, finished, dead, lost"""
    status: str = ""
    through_seq: int = 0
    """Everything up to here is in the run directory."""
    last_seq: int = 0
    """Highest sequence number the producer is known to have written."""
    dropped: dict[str, int] = {}
    spool: str | None = None
    spool_kind: str = ""
    """tmpfs, disk, memory; empty when that is not known"""
    salvageable: bool = True
    ended_ns: int = 0
    may_restart: bool = False
    was_before: bool = False
    """It was found dead when another trainer of its rank lived: it replaces nobody, and says nothing about the run's status."""


class _Kept(msgspec.Struct):
    members: list[Member]


class Roster:
    """All producers this node's bus processes have met, kept in a small file so that the next incarnation knows them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._attempts = AttemptTable()
        self.members: dict[bytes, Member] = {}
        self.heard_at: dict[bytes, float] = {}
        self._changed = False
        self.is_new = not self._load()
        """There is no list, or none that can be read; see `recall`."""

    def join(self, hello: Hello, *, is_dead: bool = False) -> tuple[Member, ProducerJoined | None]:
        """Take in whoever says *hello*; the record is to be written when the producer is new to the run.

        Args:
            hello: of the producer, or what its spool says in its place.
            is_dead: its process is known to have ended.
        """
        member = self.members.get(hello.producer)
        joined = None
        if member is None:
            was_before = is_dead and hello.role == TRAINER and self._attempts.has_living(hello.rank)
            attempt = self._attempts.assign(
                hello.producer,
                launch=hello.launch,
                rank=hello.rank,
                role=hello.role,
                explicit=hello.attempt,
                is_dead=is_dead,
            )
            member = Member(
                producer=hello.producer, rank=hello.rank, world_size=hello.world_size, attempt=attempt, role=hello.role, host=hello.host,
                pid=hello.pid, launch=hello.launch, spool=hello.spool, may_restart=hello.may_restart, was_before=was_before,
            )  # fmt: skip
            self.members[hello.producer] = member
            joined = self.joined_record(member)
        # One that is known from the journal is known only in part.
        member.may_restart = member.may_restart or hello.may_restart
        member.spool = hello.spool or member.spool
        member.spool_kind = hello.spool_kind or member.spool_kind
        member.through_seq = max(member.through_seq, hello.base_seq - 1)
        member.last_seq = max(member.last_seq, hello.last_seq)
        self.heard(member)
        self._changed = True
        return member, joined

    def heard(self, member: Member) -> bool:
        """Note a sign of life; True when the producer had been silent."""
        self.heard_at[member.producer] = time.monotonic()
        if member.state == "silent":
            member.state = "alive"
            return True
        return False

    def end(self, member: Member, *, state: str, status: str) -> ProducerState:
        """Note the end of a producer and return the record of it."""
        member.state, member.status, member.ended_ns = state, status, time.time_ns()
        self._attempts.ended(member.producer)
        self._changed = True
        return self.state_record(member)

    def fenced_by(self, newer: Member) -> list[Member]:
        """Return live trainers of the same rank in older attempts: *newer* replaces them."""
        if newer.was_before:
            return []
        return [
            member
            for member in self.live()
            if newer.role == member.role == TRAINER and member.rank == newer.rank and member.attempt < newer.attempt
        ]

    def successor_of(self, member: Member) -> Member | None:
        """Return the trainer that has replaced *member*; None when it is of the newest attempt of its rank."""
        same_rank = [m for m in self.members.values() if m.role == member.role == TRAINER and m.rank == member.rank]
        newest = max(same_rank, key=lambda m: m.attempt, default=member)
        return newest if newest.attempt > member.attempt else None

    def newly_silent(self, after: float) -> list[Member]:
        """Mark and return the producers that have said nothing for *after* seconds."""
        quiet = [member for member in self.silent_for(after) if member.state == "alive"]
        for member in quiet:
            member.state = "silent"
        return quiet

    def silent_for(self, seconds: float) -> list[Member]:
        """Return the live producers that have said nothing for *seconds*."""
        now = time.monotonic()
        return [member for member in self.live() if now - self.heard_at.get(member.producer, now) > seconds]

    def live(self) -> list[Member]:
        """Return the producers that have not ended."""
        return [member for member in self.members.values() if member.state in LIVE]

    def trainers(self) -> list[Member]:
        """Return the trainers of the newest attempt, one per rank: the last to join."""
        trainers = [member for member in self.members.values() if member.role == TRAINER and not member.was_before]
        attempts = [member.attempt for member in trainers]
        newest = {m.rank: m for m in trainers if m.attempt == max(attempts)}
        return [newest[rank] for rank in sorted(newest)]

    def status(self) -> str:
        """Return the run's status: its worst rank's. Ranks that were stopped because another one failed do not count."""
        return worst_status([member.status or "killed" for member in self.trainers() if member.state not in LIVE])

    @staticmethod
    def joined_record(member: Member) -> ProducerJoined:
        return ProducerJoined(
            time.time_ns(), member.producer, member.rank, member.world_size, member.attempt, member.role, member.host, member.pid,
            member.launch,
        )  # fmt: skip

    @staticmethod
    def state_record(member: Member) -> ProducerState:
        return ProducerState(time.time_ns(), member.producer, member.state, member.last_seq, member.status, dict(member.dropped))

    def save(self) -> None:
        """Keep the roster when it changed.

        Raises:
            OSError: it could not be written; the change is kept for the next try.
        """
        if self._changed:
            write_atomically(self._path, msgspec.json.encode(_Kept(list(self.members.values()))))
            self._changed = False

    def forget_saved(self) -> None:
        """The file is gone: `save` writes it whether or not something changes."""
        self._changed = True

    def snapshot(self) -> list[dict[str, Any]]:
        """Return what ``status.json`` says of the producers."""
        now = time.monotonic()
        return [
            {
                "rank": m.rank, "attempt": m.attempt, "role": m.role, "host": m.host, "pid": m.pid, "state": m.state, "status": m.status,
                "logged": max(m.last_seq, m.through_seq), "acked": m.through_seq, "dropped": m.dropped, "producer": m.producer.hex(),
                "heard_s": round(now - self.heard_at[m.producer], 1) if m.producer in self.heard_at else None, "salvageable": m.salvageable,
                "spool": m.spool_kind,
            }
            for m in sorted(self.members.values(), key=lambda m: (m.attempt, m.role, m.rank))
        ]  # fmt: skip

    def recall(self, members: list[Member]) -> None:
        """Take over what the journal says of producers. Those of other nodes count for the numbers of the attempts only: whether they
        live is not for this node to say.
        """
        for member in members:
            self._remember(member, here=member.host == host.name())
        self._changed = bool(members)
        self.is_new = False

    def _load(self) -> bool:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return False
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            _log.warning("%s cannot be read (%s); the journal says who was there", self._path, error)
            return False
        for member in kept.members:
            self._remember(member, here=True)
        return True

    def _remember(self, member: Member, *, here: bool) -> None:
        self._attempts.learn(member.producer, launch=member.launch, rank=member.rank, role=member.role, attempt=member.attempt)
        if member.state not in LIVE:
            self._attempts.ended(member.producer)
        if here:
            self.members[member.producer] = member
            if member.state in LIVE:
                self.heard_at[member.producer] = time.monotonic()
