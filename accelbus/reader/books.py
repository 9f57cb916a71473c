"""The books of one sink, checked against the journal: where every value is."""

from __future__ import annotations

from collections import Counter

import msgspec

from accelbus.config import Tuning
from accelbus.delivery.cursor import Cursor, read_cursor
from accelbus.delivery.ownership import is_live, read_owner
from accelbus.delivery.status import RankCounts, SinkStatus, read_status
from accelbus.errors import CursorError
from accelbus.journal.intervals import Intervals
from accelbus.rundir import RunDir, RunRecord
from accelbus.view import Rules, View


class RankBooks(RankCounts, kw_only=True):
    """Values of one rank and sink: ``journal = delivered + pending + filtered + superseded + dead_lettered``."""

    journal: int = 0
    """In the journal, read by the sink or not."""


class SinkAudit(msgspec.Struct, kw_only=True):
    """One sink."""

    sink: str
    cursor: str = "none"
    """ok; none: nothing was delivered durably yet; unreadable: everything will be delivered again from the beginning."""
    ranks: dict[int, RankBooks] = {}
    finished_as: str | None = None
    """Status with which the tracker was finished."""
    owner: str = ""
    """Who delivers now; empty when nobody does."""
    oldest_ns: int = 0
    """Receive time of the oldest value in the journal that the sink has not read; 0: it has read them all."""
    last: SinkStatus | None = None
    """What its last supervisor left; the counts in it may be older than the cursor."""
    problems: list[str] = []

    @property
    def balanced(self) -> bool:
        return not self.problems

    @property
    def total(self) -> RankBooks:
        """The sum over all ranks."""
        total = RankBooks()
        for books in self.ranks.values():
            for field in RankBooks.__struct_fields__:
                setattr(total, field, getattr(total, field) + getattr(books, field))
        return total

    @property
    def pending(self) -> int:
        return self.total.pending


class SinkLedger:
    """A sink's cursor on the one hand, the journal's values on the other. Made before the journal is scanned: a cursor never knows
    more than the journal that was there before it.
    """

    def __init__(self, run_dir: RunDir, sink: str, *, tuning: Tuning) -> None:
        directory = run_dir.sink(sink)
        self.audit = SinkAudit(sink=sink)
        self._cursor = Cursor()
        self._tuning = tuning
        try:
            cursor = read_cursor(directory)
        except (CursorError, OSError) as error:
            self.audit.cursor = "unreadable"
            self.audit.problems.append(f"{sink}: the cursor cannot be read, so everything will be delivered again ({error})")
        else:
            if cursor is not None:
                self._cursor = cursor
                self.audit.cursor = "ok"
                self.audit.finished_as = cursor.finished_as
        self.audit.last = read_status(directory)
        self.audit.owner = _live_owner(run_dir, sink, tuning)
        reader = self._cursor.reader
        # {producer: (up to here everything was read, what was read)}
        self._read = {uuid: (_whole_until(info.read), Intervals(info.read)) for uuid, info in (reader.producers if reader else {}).items()}
        self._read_values: Counter[int] = Counter()

    def meet(self, producer: bytes, rank: int, seq: int, values: int, received_ns: int = 0) -> None:
        """Take note of one event in the journal."""
        read = self._read.get(producer)
        if read is not None and (seq <= read[0] or seq in read[1]):
            self._read_values[rank] += values
        elif values and not self.audit.oldest_ns:
            self.audit.oldest_ns = received_ns

    def settle(self, journal: dict[int, int]) -> SinkAudit:
        """Return the books, given the values of each rank in the *journal*."""
        counts = self._cursor.view.counts if self._cursor.view is not None else {}
        held = Counter(View(Rules(), self._cursor.view, tuning=self._tuning).pending())
        for media in self._cursor.media:
            held.update(media.contributions)
        for rank in sorted(journal.keys() | counts.keys() | self._cursor.ranks.keys()):
            self.audit.ranks[rank] = self._books(rank, journal.get(rank, 0), held[rank])
        self._check_reading()
        return self.audit

    def _books(self, rank: int, journal: int, held: int) -> RankBooks:
        view = self._cursor.view.counts.get(rank) if self._cursor.view is not None else None
        settled = self._cursor.ranks.get(rank)
        books = RankBooks(journal=journal)
        if view is not None:
            books.read, books.filtered, books.superseded, books.late = view.read, view.filtered, view.superseded, view.late
        if settled is not None:
            books.delivered, books.dead_lettered = settled.delivered, settled.dead_lettered
            books.filtered += settled.filtered
        accounted = books.delivered + books.filtered + books.superseded + books.dead_lettered
        # Not journal - accounted: what was read and then lost from the journal would hide what is pending, or make it negative.
        books.pending = journal - self._read_values[rank] + held
        if books.read != accounted + held:
            self._complain(
                f"rank {rank}: {books.read} values read = {books.delivered} delivered + {held} held + {books.filtered} filtered + "
                f"{books.superseded} superseded + {books.dead_lettered} dead letters is off by {books.read - accounted - held:+d}"
            )
        return books

    def _check_reading(self) -> None:
        """Compare what the sink says it read with the values of exactly those events."""
        said = {rank: books.read for rank, books in self.audit.ranks.items() if books.read}
        found = {rank: values for rank, values in self._read_values.items() if values}
        # A producer read before its first event came was nobody's: then only the sums can be compared.
        if said == found or (-1 in said.keys() | found.keys() and sum(said.values()) == sum(found.values())):
            return
        for rank in sorted(said.keys() | found.keys()):
            if said.get(rank, 0) != found.get(rank, 0):
                said_of, found_of = said.get(rank, 0), found.get(rank, 0)
                self._complain(
                    f"rank {rank}: {said_of:,} values were read, and the journal holds only {found_of:,} of them now"
                    if said_of > found_of
                    else f"rank {rank}: the cursor counts {said_of} values read, the events it has read hold {found_of}"
                )

    def _complain(self, what: str) -> None:
        self.audit.problems.append(f"{self.audit.sink}, {what}")


def sinks_of(run_dir: RunDir, record: RunRecord | None) -> list[str]:
    """Return the names of the sinks of a run: those it asked for, and those that ``sync`` added."""
    wanted = list(record.sinks) if record is not None else []
    root = run_dir.path / "sinks"
    added = sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
    return list(dict.fromkeys([*wanted, *added]))


def _whole_until(ranges: list[tuple[int, int]]) -> int:
    return ranges[0][1] if ranges and ranges[0][0] == 1 else 0


def _live_owner(run_dir: RunDir, sink: str, tuning: Tuning) -> str:
    directory = run_dir.sink(sink)
    try:
        owner = read_owner(directory)
        return str(owner) if owner is not None and is_live(directory, owner, tuning=tuning) else ""
    except OSError:
        # A directory that cannot be read or written, such as an archive: nobody delivers from there.
        return ""


__all__ = ["RankBooks", "SinkAudit", "SinkLedger", "sinks_of"]
