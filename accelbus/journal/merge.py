"""Read all writers of a run as one stream: every event once, in order per producer."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from accelbus import frame
from accelbus.config import KIB, MIB, Tuning
from accelbus.events import AnyEvent, ProducerJoined, ProducerState, RunClosed, RunEnd, RunStart
from accelbus.frame import Frame
from accelbus.journal.attempts import AttemptTable
from accelbus.journal.bodies import FlatMetrics, array_length, decode_events, decode_records
from accelbus.journal.follow import START, Position, Row, SegmentReader
from accelbus.journal.intervals import Range
from accelbus.journal.producers import Piece, Producer, ProducerInfo, Source

logger = logging.getLogger(__name__)

_LAST_SEQ: Final = 2**62
"""A larger sequence number is damage: it could not be counted on, nor stored in a state."""
_NO_LIMIT: Final = 2**62
_FOR_EVER: Final = 2**63
_NOBODY: Final = ProducerInfo()
_ONLY_METRICS: Final = frozenset({FlatMetrics})


class Item(NamedTuple):
    """One event or record."""

    received_ns: int
    """When its row was written. Not monotonic where writers, or events held behind a gap, interleave."""
    producer: bytes
    """Who wrote it; for a record, the bus process."""
    rank: int
    """Of the producer, for a record of the producer it speaks of; -1 when that is nobody or not known."""
    attempt: int
    role: str
    seq: int
    event: AnyEvent


_item: Final[Callable[[Any], Item]] = partial(tuple.__new__, Item)  # twice as fast as Item(…), and there are millions


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
        self.directory = journal_dir
        self._tuning = tuning
        self._gap_hold_ns = int(tuning.gap_hold * 1e9)
        self._monotonic = monotonic
        self._finishing = False
        self._writers: dict[str, _Writer] = {}
        self._positions = dict(state.positions)
        self._heads: list[tuple[int, str]] = []
        """Heap: the next row of each writer that has one."""
        self._foreign: set[str] = set()
        self._idle: set[str] = set()
        """Writers without a row in memory."""
        self._producers = {uuid: Producer(uuid, msgspec.structs.replace(info)) for uuid, info in state.producers.items()}
        self._recorders = {uuid: _recorder(uuid, ranges) for uuid, ranges in state.recorders.items()}
        self._attempts = _attempts_of(self._producers)
        self._released: deque[Piece] = deque()
        self._batch: _Batch | None = None
        self._gapped: set[Producer] = set()
        """Producers with held pieces."""
        self._give_up_at_ns = _FOR_EVER
        """Journal time at which the first gap may be given up; never later."""
        self._held_bytes = 0
        self._newest_ns = 0
        self._corrupt: Counter[str] = Counter()
        self._rows = self._events = self._duplicates = self._gaps = self._undecodable = self._unknown_kinds = 0

    def read(self, limit: int) -> list[Item]:
        """Return up to *limit* next items; [] means up to date.

        The cost is that of the items; being up to date costs a directory listing and about two system calls per writer.
        """
        items: list[Item] = []
        self._poll()
        while (room := limit - len(items)) > 0:
            batch = self._batch or self._next_batch()
            if batch is None:
                break
            items += batch.take(room)
            self._batch = None if batch.done else batch
        self._events += len(items)
        return items

    def finish(self) -> list[Item]:
        """Return everything that is left, for readers that do not come back: torn ends are ends, nothing is waited for any more.

        Reading on is possible all the same: rows that appear later are read, whole.
        """
        self._finishing = True
        for writer in self._writers.values():
            writer.reader.closed = True
        items: list[Item] = []
        while more := self.read(_NO_LIMIT):
            items += more
        self._give_up_gaps()
        while more := self.read(_NO_LIMIT):
            items += more
        return items

    def state(self) -> ReaderState:
        """Return where to go on. A reader made from it repeats nothing and misses nothing; held events are read again."""
        positions = {**self._positions, **{name: writer.safe_position() for name, writer in self._writers.items()}}
        return ReaderState(
            positions=positions,
            producers={uuid: producer.snapshot() for uuid, producer in self._producers.items()},
            recorders={uuid: recorder.handed_out.ranges() for uuid, recorder in self._recorders.items()},
        )

    @property
    def producers(self) -> Mapping[bytes, ProducerInfo]:
        """{producer uuid: what is known about it}, a snapshot."""
        return {uuid: producer.snapshot() for uuid, producer in self._producers.items()}

    @property
    def attempts(self) -> AttemptTable:
        """The attempts as this reader knows them; a bus process that takes a run over goes on from here."""
        return self._attempts

    def statistics(self) -> ReaderStatistics:
        """Return a snapshot."""
        corrupt = self._corrupt.copy()
        for writer in self._writers.values():
            corrupt.update(writer.reader.corrupt)
        return ReaderStatistics(
            writers=len(self._writers),
            rows=self._rows,
            events=self._events,
            duplicates=self._duplicates,
            gaps=self._gaps,
            held_events=sum(piece.last - piece.first + 1 for producer in self._gapped for piece in producer.held),
            held_bytes=self._held_bytes,
            undecodable=self._undecodable,
            unknown_kinds=self._unknown_kinds,
            corrupt=dict(corrupt),
            skipped_bytes=sum(writer.reader.skipped_bytes for writer in self._writers.values()),
            newest_ns=self._newest_ns,
        )

    # Writers and their rows.

    def _poll(self) -> None:
        """Find new writers and new rows."""
        self._find_writers()
        for name in list(self._idle):
            self._refill(name)

    def _find_writers(self) -> None:
        try:
            with os.scandir(self.directory) as entries:
                new = [entry for entry in entries if entry.name not in self._writers and entry.name not in self._foreign]
        except FileNotFoundError:
            return
        except OSError as error:
            self._count("unreadable", f"cannot be listed ({error.strerror or error})", self.directory)
            return
        for entry in new:
            if entry.name.startswith(".") or not entry.is_dir():
                self._foreign.add(entry.name)
                self._count("foreign_file", "is no writer's directory", self.directory / entry.name)
                continue
            position = Position(*self._positions.get(entry.name, START))
            reader = SegmentReader(Path(entry.path), position, tuning=self._tuning, closed=self._finishing, monotonic=self._monotonic)
            self._writers[entry.name] = _Writer(reader)
            self._idle.add(entry.name)

    def _refill(self, name: str) -> None:
        writer = self._writers[name]
        share = self._tuning.read_bytes // len(self._writers)
        writer.rows.extend(writer.reader.read(max(64 * KIB, min(share, MIB))))
        if writer.rows:
            self._idle.discard(name)
            heappush(self._heads, (writer.rows[0].received_ns, name))
        else:
            self._idle.add(name)

    def _next_batch(self) -> _Batch | None:
        while not self._released:
            if not self._heads:
                return None
            _, name = heappop(self._heads)
            writer = self._writers[name]
            row = writer.rows.popleft()
            before, writer.position = writer.position, row.position
            # Before the row is taken, because what this writer has ready decides which row is the next.
            if writer.rows:
                heappush(self._heads, (writer.rows[0].received_ns, name))
            else:
                self._refill(name)
            self._take(writer, row, before)
        return self._decode(self._released.popleft())

    # Rows become pieces: new events only, in order.

    def _take(self, writer: _Writer, row: Row, before: Position) -> None:
        self._rows += 1
        if row.received_ns > self._newest_ns:
            self._newest_ns = row.received_ns
            if self._newest_ns >= self._give_up_at_ns:
                self._give_up_gaps(self._newest_ns - self._gap_hold_ns)
        checked = row.frame
        if checked.kind not in (frame.EVENTS, frame.RECORDS):
            self._unknown_kinds += 1
        elif not _claims_what_it_holds(checked):
            what = f"holds a frame of producer {checked.producer.hex()} that claims {checked.count} events and has others"
            self._count("frame_count", what, writer.reader.directory)
        else:
            self._sort_in(writer, row, before)

    def _sort_in(self, writer: _Writer, row: Row, before: Position) -> None:
        checked = row.frame
        known = self._producers if checked.kind == frame.EVENTS else self._recorders
        producer = known.get(checked.producer)
        if producer is None:
            producer = known[checked.producer] = Producer(checked.producer, ProducerInfo(), ordered=checked.kind == frame.EVENTS)
        fresh = producer.claim(checked.first_seq, checked.last_seq)
        self._duplicates += checked.count - sum(last - first + 1 for first, last in fresh)
        if not fresh:
            return
        events = None
        if not producer.ordered:
            events = decode_records(checked.body)
            if any(type(event) is RunClosed for event in events):
                # No rows are promised after this one, so journal time may stand still.
                self._give_up_gaps()
        source = writer.new_source(before, len(fresh))
        for first, last in fresh:
            piece = Piece(producer, first, last, row, source, events)
            released = producer.offer(piece)
            if released:
                self._release(producer, released)
            else:
                self._hold(producer, piece)

    def _hold(self, producer: Producer, piece: Piece) -> None:
        piece.held_since_ns = self._newest_ns
        self._held_bytes += len(piece.row.frame.raw)
        self._gapped.add(producer)
        self._give_up_at_ns = min(self._give_up_at_ns, self._newest_ns + self._gap_hold_ns)
        while self._held_bytes > self._tuning.hold_bytes:
            self._give_up_gap(min(self._gapped, key=Producer.waiting_since_ns))

    def _release(self, producer: Producer, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.held_since_ns is not None:
                self._held_bytes -= len(piece.row.frame.raw)
        if not producer.held:
            self._gapped.discard(producer)
        self._released.extend(pieces)

    def _give_up_gaps(self, waiting_since_ns: int = _FOR_EVER) -> None:
        """Give up the gaps that opened at *waiting_since_ns* of journal time or before."""
        for producer in [one for one in self._gapped if one.waiting_since_ns() <= waiting_since_ns]:
            while producer.held and producer.waiting_since_ns() <= waiting_since_ns:
                self._give_up_gap(producer)
        self._give_up_at_ns = min((one.waiting_since_ns() + self._gap_hold_ns for one in self._gapped), default=_FOR_EVER)

    def _give_up_gap(self, producer: Producer) -> None:
        first, last = producer.next_seq, producer.held[0].first - 1
        self._gaps += 1
        if self._gaps == 1:
            who = f"rank {producer.info.rank}, attempt {producer.info.attempt}, producer {producer.uuid.hex()}"
            logger.warning("%s: events %d to %d of %s are missing; reading goes on without them", self.directory, first, last, who)
        self._release(producer, producer.give_up_gap())

    # Pieces become items.

    def _decode(self, piece: Piece) -> _Batch:
        checked, producer = piece.row.frame, piece.producer
        events = decode_events(checked.body) if piece.events is None else piece.events
        if len(events) != checked.count:
            events = [None] * checked.count
        if checked.count != piece.last - piece.first + 1:
            events = events[piece.first - checked.first_seq : piece.last - checked.first_seq + 1]
        if producer.ordered:
            return _Batch(piece, self._event_items(piece, events))
        return _Batch(piece, self._record_items(piece, events))

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
        return list(map(_item, zip(repeat(piece.row.received_ns), *who, seqs, events, strict=False)))

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
        producer = self._producers.get(record.producer)
        if producer is None:
            producer = self._producers[record.producer] = Producer(record.producer, ProducerInfo())
        if isinstance(record, ProducerJoined):
            producer.joined(record)
            self._attempts.learn(record.producer, launch=record.launch, rank=record.rank, role=record.role, attempt=record.attempt)
        else:
            producer.changed(record)
        if producer.info.status:
            self._attempts.ended(record.producer)
        return producer.info

    def _count(self, reason: str, what: str, path: Path) -> None:
        self._corrupt[reason] += 1
        if self._corrupt[reason] == 1:
            logger.warning("%s %s (%s); more of the kind is only counted", path, what, reason)


class _Writer:
    """One writer's rows that were read and not taken yet, and where reading would have to start again."""

    def __init__(self, reader: SegmentReader) -> None:
        self.reader = reader
        self.rows: deque[Row] = deque()
        self.position = reader.position
        """After the last row that was taken."""
        self._sources: deque[Source] = deque()
        """Rows with pieces that were not handed out, in order; others may stand behind the first."""

    def new_source(self, before: Position, pieces: int) -> Source:
        source = Source(before, pieces)
        self._forget_done()
        self._sources.append(source)
        return source

    def safe_position(self) -> Position:
        self._forget_done()
        if self._sources:
            return self._sources[0].before
        return self.position if self.rows else self.reader.position

    def _forget_done(self) -> None:
        while self._sources and not self._sources[0].pieces:
            self._sources.popleft()


class _Batch:
    """The items of one piece, handed out in one go or in parts."""

    def __init__(self, piece: Piece, items: list[Item]) -> None:
        self._piece = piece
        self._items = items
        self._taken = 0
        self._next_seq = piece.first
        self.done = False

    def take(self, room: int) -> list[Item]:
        """Return at most *room* more items, and count them as handed out."""
        items = self._items[self._taken : self._taken + room]
        self._taken += len(items)
        self.done = self._taken == len(self._items)
        # Events that nobody can decode are done with as well: they would never be handed out.
        last = self._piece.last if self.done else items[-1].seq
        self._piece.producer.handed_out.add(self._next_seq, last)
        self._next_seq = last + 1
        self._piece.source.pieces -= self.done
        return items


def _claims_what_it_holds(checked: Frame) -> bool:
    # Each event is at least a byte, so a count beyond the body's length is a lie however the array begins.
    return array_length(checked.body) == checked.count <= len(checked.body) and checked.last_seq <= _LAST_SEQ


def _recorder(uuid: bytes, ranges: list[Range]) -> Producer:
    return Producer(uuid, ProducerInfo(read=ranges), ordered=False)


def _attempts_of(producers: Mapping[bytes, Producer]) -> AttemptTable:
    table = AttemptTable()
    for uuid, producer in producers.items():
        info = producer.info
        if info.attempt >= 0:
            table.learn(uuid, launch=info.launch, rank=info.rank, role=info.role, attempt=info.attempt)
            if info.status:
                table.ended(uuid)
    return table
