"""What the journal knows about producers, for a bus process without a list of its own: another node's, or a damaged file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from accelbus import frame
from accelbus.aggregator.roster import LIVE, Member
from accelbus.config import Tuning
from accelbus.events import ProducerJoined, ProducerState, RunClosed, RunStart
from accelbus.journal.attempts import AttemptTable
from accelbus.journal.bodies import decode_events, decode_records
from accelbus.journal.intervals import Intervals
from accelbus.journal.rows import RowMerger

_log = logging.getLogger(__name__)


class Recollection(NamedTuple):
    """What the journal says."""

    members: list[Member]
    """Every producer that it has heard of, with its attempt and how it ended."""
    was_closed: bool
    """The run has ended at least once."""


def recall(journal: Path, *, tuning: Tuning) -> Recollection:
    """Return what the journal says of producers and the end of their run.

    Blocking: reads all of the journal, but decodes no events beyond the first of a producer.
    """
    memory = _Memory()
    rows = RowMerger(journal, {}, tuning=tuning)
    rows.close()
    rows.poll()
    while (taken := rows.take()) is not None:
        memory.note(taken.row.frame)
    return Recollection(list(memory.members.values()), memory.was_closed)


class _Memory:
    def __init__(self) -> None:
        self.members: dict[bytes, Member] = {}
        self.was_closed = False
        self._attempts = AttemptTable()
        self._seen: dict[bytes, Intervals] = {}

    def note(self, checked: frame.Frame) -> None:
        if checked.kind == frame.RECORDS:
            for record in decode_records(checked.body):
                self._note_record(record)
        elif checked.kind == frame.EVENTS:
            self._note_events(checked)

    def _note_record(self, record: object) -> None:
        if isinstance(record, RunClosed):
            self.was_closed = True
        elif isinstance(record, ProducerJoined):
            self._meet(record, record.producer, record.attempt)
        elif isinstance(record, ProducerState) and (member := self.members.get(record.producer)) is not None:
            member.state, member.status = record.state, record.status
            member.last_seq = max(member.last_seq, record.last_seq)
            member.dropped = dict(record.dropped)
            if record.state not in LIVE:
                member.ended_ns = record.time_ns
                self._attempts.ended(record.producer)

    def _note_events(self, checked: frame.Frame) -> None:
        seen = self._seen.setdefault(checked.producer, Intervals())
        seen.add(checked.first_seq, checked.last_seq)
        if checked.first_seq == 1 and checked.producer not in self.members:
            # No bus process has met it, or none said so yet: it wrote to the run directory itself.
            first = next(iter(decode_events(checked.body)), None)
            if isinstance(first, RunStart):
                attempt = self._attempts.assign(
                    checked.producer, launch=checked.launch, rank=first.rank, role=first.role, explicit=first.attempt
                )
                self._meet(first, checked.producer, attempt)
        if (member := self.members.get(checked.producer)) is not None:
            ranges = seen.ranges()
            member.through_seq = max(member.through_seq, ranges[0][1] if ranges[0][0] <= 1 else 0)
            member.last_seq = max(member.last_seq, ranges[-1][1])

    def _meet(self, who: ProducerJoined | RunStart, producer: bytes, attempt: int) -> None:
        self._attempts.learn(producer, launch=who.launch, rank=who.rank, role=who.role, attempt=attempt)
        member = Member(
            producer=producer, rank=who.rank, world_size=who.world_size, attempt=attempt, role=who.role, host=who.host, pid=who.pid,
            launch=who.launch,
        )  # fmt: skip
        known = self.members.setdefault(producer, member)
        known.attempt = attempt
