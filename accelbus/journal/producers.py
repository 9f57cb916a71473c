"""What a reader knows about each producer: who it is, and which of its events were seen."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

import msgspec

from accelbus.events import AnyEvent, ProducerJoined, ProducerState, RunEnd, RunStart
from accelbus.journal.attempts import AttemptTable
from accelbus.journal.follow import Row
from accelbus.journal.intervals import Intervals, Range
from accelbus.journal.rows import Source

_STATUS_OF_STATE: Final = {"finished": "finished", "dead": "killed", "lost": "lost"}
"""{state that ends a producer: status when no better one is known}"""


class ProducerInfo(msgspec.Struct):
    """One producer, as far as the journal has been read."""

    rank: int = -1
    """-1: not known."""
    attempt: int = -1
    role: str = ""
    world_size: int = 0
    host: str = ""
    pid: int = 0
    launch: bytes = b""
    last_seq: int = 0
    """Highest sequence number that it is known to have written, read or not."""
    state: str = ""
    """Last state a bus process wrote down."""
    status: str = ""
    """How it ended; empty while it has not."""
    dropped: dict[str, int] = {}
    read: list[Range] = []
    """Sequence numbers that were handed out."""

    @property
    def missing(self) -> list[Range]:
        """Sequence numbers up to ``last_seq`` that were not handed out: still to come, held behind a gap, or lost."""
        return Intervals(self.read).missing(1, self.last_seq)


class Piece:
    """Neighbouring new events of one row."""

    __slots__ = ("events", "first", "held_since_ns", "last", "producer", "row", "source")

    def __init__(
        self, producer: Producer, first: int, last: int, row: Row, source: Source, events: Sequence[AnyEvent | None] | None = None
    ) -> None:
        self.producer = producer
        self.first = first
        self.last = last
        self.row = row
        self.source = source
        self.events = events
        """Of the whole row, when it had to be decoded early."""
        self.held_since_ns: int | None = None
        """Journal time when it had to wait, None: it did not."""

    def __lt__(self, other: Piece) -> bool:
        return self.first < other.first


class Producer:
    """Put the events of one producer back in order, each once.

    *ordered* is False for writers of records: they are written in order by one process, so there is nothing to wait for.
    """

    __slots__ = ("claimed", "handed_out", "held", "info", "next_seq", "ordered", "uuid")

    def __init__(self, uuid: bytes, info: ProducerInfo, *, ordered: bool = True) -> None:
        self.uuid = uuid
        self.info = info
        self.ordered = ordered
        self.handed_out = Intervals(info.read)
        self.claimed = Intervals(info.read)
        """Handed out, about to be, or held."""
        self.next_seq = (self.handed_out.highest or 0) + 1
        """The number that may follow in order."""
        self.held: list[Piece] = []
        """Heap of pieces behind a gap."""

    def claim(self, first: int, last: int) -> list[Range]:
        """Return the numbers of *first* to *last* that are new, and count them as seen."""
        claimed = self.claimed
        fresh = claimed.missing(first, last)
        if fresh:
            claimed.add(first, last)
        return fresh

    def offer(self, piece: Piece) -> list[Piece]:
        """Return what can go out now that *piece* is there, in order; nothing when it has to wait for numbers before it."""
        if self.ordered and piece.first > self.next_seq:
            heappush(self.held, piece)
            return []
        # Numbers before next_seq were given up and arrive after all: better late than never.
        self.next_seq = max(self.next_seq, piece.last + 1)
        if not self.held:
            return [piece]
        return [piece, *self._follow()]

    def give_up_gap(self) -> list[Piece]:
        """Stop waiting for the numbers before the first held piece and return what can go out then."""
        self.next_seq = self.held[0].first
        return self._follow()

    def waiting_since_ns(self) -> int:
        """Return the journal time since when something is held."""
        return min(piece.held_since_ns or 0 for piece in self.held)

    def _follow(self) -> list[Piece]:
        released = []
        while self.held and self.held[0].first <= self.next_seq:
            piece = heappop(self.held)
            self.next_seq = max(self.next_seq, piece.last + 1)
            released.append(piece)
        return released

    def snapshot(self) -> ProducerInfo:
        """Return a copy that later reading does not change."""
        last_seq = max(self.info.last_seq, self.claimed.highest or 0)
        return msgspec.structs.replace(self.info, read=self.handed_out.ranges(), dropped=dict(self.info.dropped), last_seq=last_seq)

    def started(self, event: RunStart) -> None:
        """Learn from the producer's own first event."""
        info = self.info
        info.rank, info.role, info.world_size = event.rank, event.role, event.world_size
        info.host, info.pid, info.launch = event.host, event.pid, event.launch

    def joined(self, record: ProducerJoined) -> None:
        """Learn what a bus process wrote down."""
        info = self.info
        info.rank, info.role, info.world_size, info.attempt = record.rank, record.role, record.world_size, record.attempt
        info.host, info.pid, info.launch = record.host, record.pid, record.launch

    def ended(self, event: RunEnd) -> None:
        """Learn how the producer says it ended."""
        self.info.status = event.status

    def changed(self, record: ProducerState) -> None:
        """Learn a state from a bus process."""
        info = self.info
        info.state = record.state
        info.last_seq = max(info.last_seq, record.last_seq)
        info.dropped.update(record.dropped)
        # What the producer said itself is the better evidence, unless it was the exit code that failed.
        info.status = record.status or info.status or _STATUS_OF_STATE.get(record.state, "")

    def assign(self, attempts: AttemptTable, launch: bytes, explicit: int | None) -> None:
        """Settle the attempt if no bus process did."""
        info = self.info
        if info.attempt < 0:
            info.launch = info.launch or launch
            info.attempt = attempts.assign(self.uuid, launch=info.launch, rank=info.rank, role=info.role, explicit=explicit)
