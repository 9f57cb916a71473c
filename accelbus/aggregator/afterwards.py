"""What anybody who comes after a run's bus process needs: what its journal says, and a way to add to it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import NamedTuple

import msgspec

from accelbus import frame, host
from accelbus.config import Tuning
from accelbus.events import ProducerJoined, Record, RunClosed, RunStart
from accelbus.journal.attempts import AttemptTable
from accelbus.journal.merge import Item, JournalReader
from accelbus.journal.producers import ProducerInfo
from accelbus.journal.segments import JournalWriter

_encode = msgspec.msgpack.Encoder().encode
_ENDED = frozenset({"finished", "dead", "lost"})


class KnownRun(NamedTuple):
    """What the journal says."""

    producers: dict[bytes, ProducerInfo]
    attempts: AttemptTable
    closed_as: str | None
    """Status in the last RunClosed, None when there is none or somebody joined after it."""


def read_run(journal: Path, tuning: Tuning) -> KnownRun:
    """Read the whole *journal*. Blocking, in bounded memory."""
    reader = JournalReader(journal, tuning=tuning)
    closed_as: str | None = None
    while items := reader.read(tuning.read_events):
        closed_as = _closed_as(items, closed_as)
    closed_as = _closed_as(reader.finish(), closed_as)
    return KnownRun(dict(reader.producers), reader.attempts, closed_as)


def has_ended(info: ProducerInfo) -> bool:
    """Whether somebody wrote down that the producer ended, and nobody that it is there again."""
    return info.state in _ENDED or (info.status != "" and info.state != "alive")


def write_apart(journal: Path, before: list[Record], frames: list[bytes], after: list[Record], tuning: Tuning) -> None:
    """Write records, *frames* and records, in this order, as a writer of its own, and sync.

    Raises:
        OSError: nothing counts as written.
    """
    name = uuid.uuid4()
    ordered = [_records_frame(before, name.bytes, 1), *frames, _records_frame(after, name.bytes, len(before) + 1)]
    everything = [raw for raw in ordered if raw]
    if not everything:
        return
    writer = JournalWriter(journal / f"salvage-{name.hex[:12]}", tuning=tuning, local=not host.is_on_network(journal))
    try:
        writer.append(everything)
        writer.sync()
    finally:
        writer.close()


def _closed_as(items: list[Item], before: str | None) -> str | None:
    for item in items:
        if isinstance(item.event, RunClosed):
            before = item.event.status
        elif isinstance(item.event, RunStart | ProducerJoined):
            before = None
    return before


def _records_frame(records: list[Record], writer: bytes, first_seq: int) -> bytes:
    if not records:
        return b""
    body = frame.join_events([_encode(record) for record in records], len(records))
    return frame.pack(frame.RECORDS, body, producer=writer, first_seq=first_seq, count=len(records))


__all__ = ["KnownRun", "has_ended", "read_run", "write_apart"]
