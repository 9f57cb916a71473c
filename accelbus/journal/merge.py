"""Read all writers of a run as one stream: every event once, in order per producer."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from accelbus import frame
from accelbus.config import Tuning
from accelbus.events import AnyEvent, ProducerJoined, ProducerState, RunClosed, RunEnd, RunStart
from accelbus.frame import Frame
from accelbus.journal.attempts import AttemptTable
from accelbus.journal.bodies import FlatMetrics, decode_events, decode_records
from accelbus.journal.follow import Position, Row
from accelbus.journal.gaps import WaitingRoom
from accelbus.journal.intervals import Range
from accelbus.journal.items import Batch, Item, new_item
from accelbus.journal.producers import Piece, Producer, ProducerInfo
from accelbus.journal.rows import RowMerger, TakenRow
from accelbus.journal.spans import array_length

logger = logging.getLogger(__name__)

_LAST_SEQ: Final = 2**62
"""A larger sequence number is damage: it could not be counted on, nor stored in a state."""
_NO_LIMIT: Final = 2**62
_STORED_KINDS: Final = frozenset({frame.EVENTS, frame.RECORDS})
_NOBODY: Final = ProducerInfo()
_ONLY_METRICS: Final = frozenset({FlatMetrics})


class ReaderState(msgspec.Struct):
    """Where a reader is, to be stored and read on from. Independent of the reader it came from."""

    positions: dict[str, Position] = {}
    """{writer: where its first row starts that was not handed out completely}"""
    producers: dict[bytes, ProducerInfo] = {}
    recorders: dict[bytes, list[Range]] = {}
    """{bus process: sequence numbers of its records that were handed out}"""


class ReaderStatistics(NamedTuple):
    """What one `JournalReader` met since it was made."""

    writers: int
    rows: int
    events: int
    """Handed out, records included."""
    duplicates: int
    """Events that were there before, also those read again after a restart."""
    gaps: int
    """Times that missing sequence numbers were given up."""
    held_events: int
    held_bytes: int
    undecodable: int
    """Events in good frames that this version cannot read."""
    unknown_kinds: int
    """Frames of a kind that this version does not know."""
    corrupt: dict[str, int]
    """{reason: stretches of bytes, frames or files that were skipped}"""
    skipped_bytes: int
    newest_ns: int
    """Latest receive time of any row: the journal's own clock."""


class JournalReader:
    """Follow the journal of one run: every (producer, sequence number) once, in order per producer.

    What is available is merged by the writers' receive times; writers may appear at any time and in any order. Events behind
    missing sequence numbers wait until ``gap_hold`` of *journal time* has passed (or the run is closed), so that a replay decides
    as live reading did; when the missing ones arrive later, they are handed out then. Nothing found in the files makes it raise.

    Holds no file open and a bounded amount in memory: ``read_bytes`` of rows and ``hold_bytes`` of frames behind gaps.

    Args:
        journal_dir: ``<run>/journal``; it need not exist yet.
        state: where to go on; it is copied.
        tuning: see above.
        monotonic: the clock that decides when damage in a live segment is given up, see `SegmentReader`.
    """

    def __init__(
        self, journal_dir: Path, state: ReaderState | None = None, *, tuning: Tuning, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        state = state or ReaderState()
        self._large_values = journal_dir.parent / "blobs"
        self._rows = RowMerger(journal_dir, state.positions, tuning=tuning, monotonic=monotonic)
        self._waiting = WaitingRoom(hold_ns=int(tuning.gap_hold * 1e9), limit_bytes=tuning.hold_bytes)
        self._producers = {uuid: Producer(uuid, msgspec.structs.replace(info)) for uuid, info in state.producers.items()}
        self._recorders = {uuid: Producer(uuid, ProducerInfo(read=read), ordered=False) for uuid, read in state.recorders.items()}
        self._attempts = _attempts_of(self._producers)
        self._released: deque[Piece] = deque()
        self._batch: Batch | None = None
        self._newest_ns = 0
        self._taken = self._events = self._duplicates = self._undecodable = self._unknown_kinds = self._miscounted = 0

    def read(self, limit: int) -> list[Item]:
        """Return up to *limit* next items; [] means up to date.

        Being up to date costs a directory listing and a few system calls per writer.
        """
        items: list[Item] = []
        self._rows.poll()
        while (room := limit - len(items)) > 0:
            batch = self._batch or self._next_batch()
            if batch is None:
                break
            items += batch.take(room)
            self._batch = None if batch.done else batch
        self._events += len(items)
        return items

    def finish(self) -> list[Item]:
        """Return everything that is left, for a reader of a run that nobody writes any more: torn ends are ends, gaps stay gaps."""
        self._rows.close()
        items = self._read_all()
        self._released.extend(self._waiting.give_up_all())
        return items + self._read_all()

    def state(self) -> ReaderState:
        """Return where to go on. A reader made from it repeats nothing and misses nothing; held events are read again."""
        return ReaderState(
            positions=self._rows.positions(),
            producers={uuid: producer.snapshot() for uuid, producer in self._producers.items()},
            recorders={uuid: recorder.handed_out.ranges() for uuid, recorder in self._recorders.items()},
        )

    @property
    def producers(self) -> Mapping[bytes, ProducerInfo]:
        """{producer uuid: what is known about it}, a snapshot."""
        return {uuid: producer.snapshot() for uuid, producer in self._producers.items()}

    @property
    def attempts(self) -> AttemptTable:
        """The attempts as far as they were read."""
        return self._attempts

    def statistics(self) -> ReaderStatistics:
        """Return a snapshot."""
        corrupt, skipped_bytes = self._rows.damage()
        if self._miscounted:
            corrupt["frame_count"] = self._miscounted
        return ReaderStatistics(
            writers=self._rows.writers,
            rows=self._taken,
            events=self._events,
            duplicates=self._duplicates,
            gaps=self._waiting.given_up,
            held_events=self._waiting.events,
            held_bytes=self._waiting.bytes,
            undecodable=self._undecodable,
            unknown_kinds=self._unknown_kinds,
            corrupt=dict(corrupt),
            skipped_bytes=skipped_bytes,
            newest_ns=self._newest_ns,
        )

    def _read_all(self) -> list[Item]:
        items: list[Item] = []
        while more := self.read(_NO_LIMIT):
            items += more
        return items

    def _next_batch(self) -> Batch | None:
        while not self._released:
            taken = self._rows.take()
            if taken is None:
                return None
            self._sort_in(taken)
        return self._decode(self._released.popleft())

    # Rows become pieces: new events only, in order.

    def _sort_in(self, taken: TakenRow) -> None:
        self._taken += 1
        checked = taken.row.frame
        if taken.row.received_ns > self._newest_ns:
            self._newest_ns = taken.row.received_ns
            self._released.extend(self._waiting.give_up_due(self._newest_ns))
        if checked.kind not in _STORED_KINDS:
            self._unknown_kinds += 1
        elif not _holds_what_it_claims(checked):
            self._refuse(checked)
        elif checked.kind == frame.EVENTS:
            self._offer(self._producer(checked.producer), taken)
        else:
            self._take_records(taken)

    def _refuse(self, checked: Frame) -> None:
        self._miscounted += 1
        if self._miscounted == 1:
            whose, count = checked.producer.hex(), checked.count
            logger.warning("a frame of producer %s claims %d events and holds others; it is skipped, more are only counted", whose, count)

    def _producer(self, uuid: bytes) -> Producer:
        producer = self._producers.get(uuid)
        if producer is None:
            producer = self._producers[uuid] = Producer(uuid, ProducerInfo())
        return producer

    def _take_records(self, taken: TakenRow) -> None:
        checked = taken.row.frame
        recorder = self._recorders.get(checked.producer)
        if recorder is None:
            recorder = self._recorders[checked.producer] = Producer(checked.producer, ProducerInfo(), ordered=False)
        records = decode_records(checked.body)
        is_news = bool(recorder.claimed.missing(checked.first_seq, checked.last_seq))
        if is_news and any(type(record) is RunClosed for record in records):
            self._before_closing(taken.row)
        self._offer(recorder, taken, records)

    def _before_closing(self, closing: Row) -> None:
        """Let nothing that the end of the run speaks of come after it."""
        # What another writer wrote before may not have been seen yet when this row was read.
        self._rows.poll()
        while (taken := self._rows.take(older_than_ns=closing.received_ns)) is not None:
            self._sort_in(taken)
        # No rows are promised any more, so journal time may stand still from here on.
        self._released.extend(self._waiting.give_up_all())

    def _offer(self, producer: Producer, taken: TakenRow, events: Sequence[AnyEvent | None] | None = None) -> None:
        checked = taken.row.frame
        fresh = producer.claim(checked.first_seq, checked.last_seq)
        self._duplicates += checked.count - sum(last - first + 1 for first, last in fresh)
        if not fresh:
            return
        source = taken.writer.new_source(taken.before, len(fresh))
        for first, last in fresh:
            piece = Piece(producer, first, last, taken.row, source, events)
            released = producer.offer(piece)
            if released:
                self._waiting.leave(producer, released)
            else:
                released = self._waiting.admit(piece, self._newest_ns)
            self._released.extend(released)

    # Pieces become items.

    def _decode(self, piece: Piece) -> Batch:
        checked, producer = piece.row.frame, piece.producer
        events = decode_events(checked.body, self._large_values) if piece.events is None else piece.events
        if len(events) < checked.count:
            events = [*events, *repeat(None, checked.count - len(events))]
        if checked.count != piece.last - piece.first + 1:
            events = events[piece.first - checked.first_seq : piece.last - checked.first_seq + 1]
        if producer.ordered:
            return Batch(piece, self._event_items(piece, events))
        return Batch(piece, self._record_items(piece, events))

    def _event_items(self, piece: Piece, events: Sequence[AnyEvent | None]) -> list[Item]:
        producer, info = piece.producer, piece.producer.info
        explicit = None
        kinds = set(map(type, events))
        if kinds != _ONLY_METRICS:
            for event in events:
                if type(event) is RunStart:
                    producer.started(event)
                    explicit = event.attempt
                elif type(event) is RunEnd:
                    producer.ended(event)
        producer.assign(self._attempts, piece.row.frame.launch, explicit)
        if RunEnd in kinds:
            self._attempts.ended(producer.uuid)
        who = (repeat(producer.uuid), repeat(info.rank), repeat(info.attempt), repeat(info.role))
        seqs: Iterable[int] = range(piece.first, piece.last + 1)
        if type(None) in kinds:
            self._undecodable += sum(event is None for event in events)
            seqs = [seq for seq, event in zip(seqs, events, strict=True) if event is not None]
            events = [event for event in events if event is not None]
        return list(map(new_item, zip(repeat(piece.row.received_ns), *who, seqs, events, strict=False)))

    def _record_items(self, piece: Piece, records: Sequence[AnyEvent | None]) -> list[Item]:
        items = []
        for seq, record in enumerate(records, piece.first):
            about = self._learn(record)
            if record is not None:
                items.append(Item(piece.row.received_ns, piece.producer.uuid, about.rank, about.attempt, about.role, seq, record))
        self._undecodable += len(records) - len(items)
        return items

    def _learn(self, record: AnyEvent | None) -> ProducerInfo:
        """Take over what a bus process says about a producer, and return what is known about that one."""
        if not isinstance(record, ProducerJoined | ProducerState):
            return _NOBODY
        producer = self._producer(record.producer)
        if isinstance(record, ProducerJoined):
            producer.joined(record)
            self._attempts.learn(record.producer, launch=record.launch, rank=record.rank, role=record.role, attempt=record.attempt)
        else:
            producer.changed(record)
        if producer.info.status:
            self._attempts.ended(record.producer)
        return producer.info


def _attempts_of(producers: Mapping[bytes, Producer]) -> AttemptTable:
    table = AttemptTable()
    for uuid, producer in producers.items():
        info = producer.info
        if info.attempt >= 0:
            table.learn(uuid, launch=info.launch, rank=info.rank, role=info.role, attempt=info.attempt)
            if info.status:
                table.ended(uuid)
    return table


def _holds_what_it_claims(checked: Frame) -> bool:
    # An event is at least a byte, so a count beyond the body's length is a lie even if its array says the same.
    return array_length(checked.body) == checked.count <= len(checked.body) and checked.last_seq <= _LAST_SEQ


__all__ = ["Item", "JournalReader", "ReaderState", "ReaderStatistics"]
