"""The rows of all writers of a run, merged by receive time."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

from accelbus.config import KIB, MIB, Tuning
from accelbus.journal.follow import START, Position, Row, SegmentReader

logger = logging.getLogger(__name__)


class Source:
    """A row of which some pieces still have to be handed out; reading has to start again from ``before`` until there are none."""

    __slots__ = ("before", "pieces")

    def __init__(self, before: Position, pieces: int) -> None:
        self.before = before
        self.pieces = pieces


class Writer:
    """One writer's rows that were read and not taken yet, and where reading would have to start again."""

    __slots__ = ("_sources", "_time_ns", "poll", "position", "reader", "rows")

    def __init__(self, reader: SegmentReader) -> None:
        self.reader = reader
        self.rows: deque[Row] = deque()
        self.position = reader.position
        """After the last row that was taken."""
        self.poll = 0
        """Number of the last poll at or after which it was read."""
        self._time_ns = 0
        self._sources: deque[Source] = deque()
        """In the order of their rows; those behind the first may be done already."""

    @property
    def next_ns(self) -> int:
        """Receive time of the next row. Never steps back, whatever the file says: a writer's rows stay in their order."""
        self._time_ns = max(self._time_ns, self.rows[0].received_ns)
        return self._time_ns

    def new_source(self, before: Position, pieces: int) -> Source:
        """Return what keeps `safe_position` at *before* until *pieces* pieces are handed out."""
        source = Source(before, pieces)
        self._forget_done()
        self._sources.append(source)
        return source

    def safe_position(self) -> Position:
        """Return the position before which everything was handed out."""
        self._forget_done()
        if self._sources:
            return self._sources[0].before
        return self.position if self.rows else self.reader.position

    def _forget_done(self) -> None:
        while self._sources and not self._sources[0].pieces:
            self._sources.popleft()


class TakenRow(NamedTuple):
    """A row and where it came from."""

    row: Row
    writer: Writer
    before: Position


class RowMerger:
    """Follow every writer's directory in *directory*; `take` returns their rows by receive time, as far as they are there.

    Between two calls of `poll`, no row is taken before an older one of another writer that was there at the first. Writers that
    come late, or whose clock differs, still make times step back.
    """

    def __init__(
        self, directory: Path, positions: Mapping[str, Position], *, tuning: Tuning, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory = directory
        self.corrupt: Counter[str] = Counter()
        self._tuning = tuning
        self._monotonic = monotonic
        self._closed = False
        self._start_at = dict(positions)
        self._writers: dict[str, Writer] = {}
        self._foreign: set[str] = set()
        self._heads: list[tuple[int, str]] = []
        """Heap: receive time of the next row of each writer that has one."""
        self._polls = 0
        self._idle: set[str] = set()
        """Writers without a row in memory."""

    def poll(self) -> None:
        """Look for new writers and for new rows of those that had none."""
        self._polls += 1
        self._find_writers()
        for name in tuple(self._idle):
            self._fill(name)

    def take(self, *, older_than_ns: int | None = None) -> TakenRow | None:
        """Return the next row, None when there is none, or none received before *older_than_ns*."""
        if not self._heads or (older_than_ns is not None and self._heads[0][0] >= older_than_ns):
            return None
        _, name = heappop(self._heads)
        writer = self._writers[name]
        row = writer.rows.popleft()
        before, writer.position = writer.position, row.position
        if writer.rows:
            heappush(self._heads, (writer.next_ns, name))
        else:
            self._idle.add(name)
            self._look_further(name)
        return TakenRow(row, writer, before)

    def close(self) -> None:
        """Take it that nobody writes any more: what is torn stays torn."""
        self._closed = True
        for writer in self._writers.values():
            writer.reader.closed = True

    def positions(self) -> dict[str, Position]:
        """Return where a later merger goes on, for every writer ever seen."""
        return {**self._start_at, **{name: writer.safe_position() for name, writer in self._writers.items()}}

    @property
    def writers(self) -> int:
        return len(self._writers)

    def damage(self) -> tuple[Counter[str], int]:
        """Return {reason: count} and the number of bytes skipped."""
        readers = [writer.reader for writer in self._writers.values()]
        return sum((reader.corrupt for reader in readers), self.corrupt), sum(reader.skipped_bytes for reader in readers)

    def _look_further(self, name: str) -> None:
        """Read on before another writer's row is taken that may be newer than what this one has to come."""
        writer = self._writers[name]
        if not writer.reader.is_at_end:
            # A backlog. It is read in pieces, and time passes: those that had nothing are looked at again.
            self._fill(name)
            self.poll()
        elif writer.poll < self._polls:
            # It had rows in memory when the others were polled. Once per poll is enough, or a thousand writers cost a million looks.
            self._fill(name)

    def _find_writers(self) -> None:
        try:
            with os.scandir(self.directory) as entries:
                new = [entry for entry in entries if entry.name not in self._writers and entry.name not in self._foreign]
                for entry in new:
                    self._meet(entry)
        except FileNotFoundError:
            return
        except OSError as error:
            self._count("unreadable", f"cannot be listed ({error.strerror or error})", self.directory)

    def _meet(self, entry: os.DirEntry[str]) -> None:
        try:
            is_writer = entry.is_dir()
        except OSError:  # a link to itself; it must not hide what is listed after it
            is_writer = False
        if not is_writer:
            self._foreign.add(entry.name)
            self._count("foreign_file", "is no writer's directory", self.directory / entry.name)
            return
        position = Position(*self._start_at.get(entry.name, START))
        reader = SegmentReader(Path(entry.path), position, tuning=self._tuning, closed=self._closed, monotonic=self._monotonic)
        self._writers[entry.name] = Writer(reader)
        self._idle.add(entry.name)

    def _fill(self, name: str) -> None:
        writer = self._writers[name]
        share = self._tuning.read_bytes // len(self._writers)
        writer.poll = self._polls
        writer.rows.extend(writer.reader.read(max(64 * KIB, min(share, MIB))))
        if writer.rows:
            self._idle.discard(name)
            heappush(self._heads, (writer.next_ns, name))

    def _count(self, reason: str, what: str, path: Path) -> None:
        self.corrupt[reason] += 1
        if self.corrupt[reason] == 1:
            logger.warning("%s %s (%s); more of the kind is only counted", path, what, reason)
