"""Journals by hand: frames whose events are a function of producer and sequence number, and readers' results in short form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from accelbus import frame
from accelbus.config import Tuning
from accelbus.events import AnyEvent, Metrics, RunStart
from accelbus.journal.merge import Item, JournalReader
from accelbus.journal.segments import JournalWriter

LAUNCH = b"L" * 16
SECOND = 10**9

encode = msgspec.msgpack.Encoder().encode


class Clock:
    """Wall clock that moves when told; in nanoseconds when called."""

    def __init__(self, seconds: float = 1000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> int:
        return int(self.seconds * SECOND)

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


def uuid(number: int) -> bytes:
    """Return the producer uuid of this number."""
    return number.to_bytes(16, "big")


def metrics(producer: bytes, seq: int) -> Metrics:
    """Return event *seq* of *producer*; whoever finds another one there has found an altered event."""
    return Metrics(time_ns=seq, step=seq, values={"producer": int.from_bytes(producer, "big"), "value": seq / 8}, auto_step=seq)


def start(rank: int, *, world_size: int = 2, launch: bytes = LAUNCH, role: str = "trainer", attempt: int | None = None) -> RunStart:
    """Return the first event of a producer."""
    return RunStart(1, "run", rank, world_size, rank, "host", 100 + rank, role=role, launch=launch, attempt=attempt)


def pack(events: Sequence[object], *, producer: bytes, first_seq: int, kind: int = frame.EVENTS, launch: bytes = LAUNCH) -> bytes:
    """Return a frame of *events*, which may be bytes already."""
    encoded = [event if isinstance(event, bytes) else encode(event) for event in events]
    body = frame.join_events(encoded, len(encoded))
    return frame.pack(kind, body, producer=producer, launch=launch, first_seq=first_seq, count=len(encoded))


def events_frame(producer: bytes, first: int, last: int) -> bytes:
    """Return the frame of `metrics` number *first* to *last*."""
    return pack([metrics(producer, seq) for seq in range(first, last + 1)], producer=producer, first_seq=first)


def records_frame(writer: bytes, first_seq: int, *records: AnyEvent) -> bytes:
    """Return a frame of records."""
    return pack(records, producer=writer, first_seq=first_seq, kind=frame.RECORDS)


_open: list[JournalWriter] = []


def written(directory: Path, *frames: bytes, tuning: Tuning | None = None, clock: Callable[[], int] | None = None) -> JournalWriter:
    """Return the still open writer of *frames*, one append each; `close_writers` closes it."""
    writer = JournalWriter(directory, tuning=tuning or Tuning(), clock=clock or Clock())
    _open.append(writer)
    for raw in frames:
        writer.append([raw])
    return writer


def close_writers() -> None:
    """Close what `written` opened."""
    while _open:
        _open.pop().close()


def segments(directory: Path) -> list[Path]:
    """Return the segment files of a writer in order."""
    return sorted(directory.glob("*.seg"))


def everything(reader: JournalReader, limit: int = 1000) -> list[Item]:
    """Read until up to date."""
    items: list[Item] = []
    while more := reader.read(limit):
        items += more
    return items


def seqs(items: Iterable[Item], producer: bytes | None = None) -> list[int]:
    """Return the sequence numbers, of one producer or of all."""
    return [item.seq for item in items if producer is None or item.producer == producer]
