"""Read one writer's directory of segment files, while it is being written or long after."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from accelbus import frame
from accelbus.config import Tuning
from accelbus.errors import FrameError, SegmentError
from accelbus.frame import Frame
from accelbus.journal import layout

logger = logging.getLogger(__name__)

_WINDOW: Final = 1024 * 1024
"""Bytes looked at together when the next row has to be searched."""
_LIST_INTERVAL: Final = 5.0
"""Segment numbers are dense, so the next file is usually found by its name; so often the directory is listed all the same."""


class Position(NamedTuple):
    """Where the next row starts."""

    segment: int
    offset: int


START: Final = Position(0, 0)
"""Before the first segment, whichever it is."""


class Row(NamedTuple):
    """One good row."""

    received_ns: int
    frame: Frame
    position: Position
    """Right after the row."""


class SegmentReader:
    """Follow one writer from a position. Holds no file open between calls and at most `limit_bytes` and one row in memory.

    Bytes that fail their check at the end of what the writer has written so far are "not yet": they are looked at again with the
    next `read`. They are damaged once something good follows: a later segment, or (after ``torn_hold`` seconds, because a network
    file system may show a file's pages out of order) a later row. Then they are counted in `corrupt` by reason, warned about
    once per reason, and skipped.

    Args:
        directory: the writer's; it need not exist yet.
        position: where to go on.
        tuning: ``torn_hold`` and ``unreadable_hold`` are used.
        closed: the writer is gone for good: what is torn stays torn. May be set later.
        monotonic: the clock for both.
    """

    def __init__(
        self,
        directory: Path,
        position: Position = START,
        *,
        tuning: Tuning,
        closed: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self._directory = os.fspath(directory)
        self.position = position
        self.closed = closed
        self.corrupt: Counter[str] = Counter()
        """{reason: damaged stretches skipped, or files not understood}"""
        self.skipped_bytes = 0
        self.is_at_end = False
        """The last `read` found nothing more; False when it stopped at its limit."""
        self._torn_hold = tuning.torn_hold
        self._unreadable_hold = tuning.unreadable_hold
        self._monotonic = monotonic
        self._list_at = float("-inf")
        self._foreign: set[str] = set()
        self._suspect = (START, 0.0)
        """Damage with something good behind it, and when it was first seen."""
        self._searched = (START, 0)
        """Damage, and up to where no row was found behind it."""
        self._complained_segment = 0

    def read(self, limit_bytes: int) -> list[Row]:
        """Return the next good rows, about *limit_bytes* of them and at least one if there is one; [] means there is nothing new yet.

        Never raises for what it finds. A file that cannot be read now is counted (`unreadable`) and tried again next time, for
        ``unreadable_hold`` seconds if a later one can be read.
        """
        rows: list[Row] = []
        room = limit_bytes
        self.is_at_end = False
        while room > 0:
            before = self.position
            try:
                room -= self._read_some(room, rows)
            except OSError as error:
                self._count("unreadable", f"cannot be read ({error.strerror or error})")
                later = self._later(self.position.segment)
                if later and (self.closed or self._is_hopeless(later)):
                    self.position = Position(later, 0)
            if self.position == before:
                self.is_at_end = True
                break
        return rows

    def _read_some(self, room: int, rows: list[Row]) -> int:
        """Move `position` on by rows, damaged bytes or to the next segment; leave it where it is when there is nothing more.

        Returns the bytes of the rows.
        """
        # Asked before the file is opened: whatever is read after a later segment exists is all there will ever be.
        later = self._later(self.position.segment)
        try:
            # O_NONBLOCK: a named pipe with a segment's name must not stop a reader for ever.
            descriptor = os.open(self._path(self.position.segment), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            # Nothing there yet, or pruned.
            if later := later or self._listed_after(self.position.segment):
                self.position = Position(later, 0)
            return 0
        try:
            return self._read_segment(descriptor, later, room, rows)
        finally:
            os.close(descriptor)

    def _read_segment(self, descriptor: int, later: int | None, room: int, rows: list[Row]) -> int:
        final = self.closed or later is not None
        if self.position.offset == 0 and not self._pass_header(descriptor, final=final):
            return 0
        offset = self.position.offset
        data = os.pread(descriptor, room, offset) if offset else b""
        self._take_rows(data, rows)
        if self.position.offset > offset:
            return self.position.offset - offset
        size = os.fstat(descriptor).st_size
        if offset < size:
            return self._pass_trouble(descriptor, size, rows, final=final)
        if later is not None:
            self.position = Position(later, 0)
        return 0

    def _take_rows(self, data: bytes, rows: list[Row]) -> None:
        segment, base = self.position
        start = 0
        while (prefix := layout.parse_row_prefix(data, start)) is not None:
            begin = start + layout.ROW_PREFIX_BYTES
            end = begin + prefix[0]
            if end > len(data):
                break
            try:
                checked = frame.parse(data[begin:end])
            except FrameError:
                break
            start = end
            rows.append(Row(prefix[1], checked, Position(segment, base + end)))
        self.position = Position(segment, base + start)

    def _pass_header(self, descriptor: int, *, final: bool) -> bool:
        """Move behind the header; False: it is not written yet. After a wrong one, rows are searched as after any other damage."""
        data = os.pread(descriptor, layout.HEADER_LIMIT, 0)
        try:
            _, length = layout.parse_header(data)
        except SegmentError as error:
            if not data or (error.reason == "short" and not final):
                return final
            if self._complained_segment != self.position.segment:
                self._complained_segment = self.position.segment
                self._count(f"segment_{error.reason}", str(error))
        else:
            self.position = Position(self.position.segment, length)
        return True

    def _pass_trouble(self, descriptor: int, size: int, rows: list[Row], *, final: bool) -> int:
        """Deal with bytes that are no row of the size that was read: a larger row, an unfinished one, damage."""
        offset = self.position.offset
        reason, search_from = "row", offset + 1
        prefix = layout.parse_row_prefix(os.pread(descriptor, layout.ROW_PREFIX_BYTES, offset)) if offset else None
        if prefix is not None:
            end = offset + layout.ROW_PREFIX_BYTES + prefix[0]
            if end <= size:
                row = os.pread(descriptor, end - offset, offset)
                self._take_rows(row, rows)
                if self.position.offset > offset:
                    return end - offset
                reason, search_from = _frame_trouble(row), end
            elif final:
                reason = "torn"
            else:
                return 0
        target = self._end_of_damage(descriptor, search_from, size, final=final, sure=reason == "frame_version")
        if target is not None:
            self._skip_to(target, reason)
        return 0

    def _end_of_damage(self, descriptor: int, search_from: int, size: int, *, final: bool, sure: bool) -> int | None:
        """Return where to go on, None when the bytes may still become good."""
        if sure:
            return search_from
        if final:
            found = self._search(descriptor, search_from, size)
            return size if found is None else found
        if self._searched[0] != self.position:
            self._searched = (self.position, search_from)
        found = self._search(descriptor, self._searched[1], size)
        # What starts less than a prefix before the end can still become a row; the rest is not searched at every poll.
        self._searched = (self.position, max(self._searched[1], size - layout.ROW_PREFIX_BYTES if found is None else found))
        if found is None or not self._held_long_enough(self._torn_hold):
            return None
        return self._search(descriptor, search_from, size)

    def _skip_to(self, target: int, reason: str) -> None:
        skipped = target - self.position.offset
        self.skipped_bytes += skipped
        if self.position.offset:
            self._count(reason, f"{skipped} bytes are not understood and skipped")
        self.position = Position(self.position.segment, target)

    def _is_hopeless(self, later: int) -> bool:
        """Whether a file that cannot be read has had its time, and the trouble is its own and not the file system's."""
        if not self._held_long_enough(self._unreadable_hold):
            return False
        try:
            descriptor = os.open(self._path(later), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            return bool(os.pread(descriptor, 1, 0))
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _held_long_enough(self, seconds: float) -> bool:
        now = self._monotonic()
        if self._suspect[0] != self.position:
            self._suspect = (self.position, now)
        return now - self._suspect[1] >= seconds

    def _search(self, descriptor: int, start: int, size: int) -> int | None:
        """Return where the next row begins, None when there is none up to *size*."""
        for position in range(start, size, _WINDOW):
            data = os.pread(descriptor, _WINDOW + layout.ROW_PREFIX_BYTES - 1, position)
            at = data.find(layout.ROW_MAGIC)
            while at >= 0:
                if layout.parse_row_prefix(data, at) is not None:
                    return position + at
                at = data.find(layout.ROW_MAGIC, at + 1)
        return None

    def _path(self, segment: int) -> str:
        # Text: with a thousand writers, half the cost of looking for news would be that of Path objects.
        return f"{self._directory}/{layout.segment_name(segment)}"

    def _later(self, segment: int) -> int | None:
        """Return the number of the next segment if there is one."""
        if os.path.exists(self._path(segment + 1)):
            return segment + 1
        now = self._monotonic()
        if not self.closed and now < self._list_at:
            return None
        self._list_at = now + _LIST_INTERVAL
        return self._listed_after(segment)

    def _listed_after(self, segment: int) -> int | None:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return None
        numbers = {name: layout.segment_number(name) for name in names}
        for name, number in numbers.items():
            if number is None and name not in self._foreign:
                self._foreign.add(name)
                self._count("foreign_file", f"{name!r} is no segment and left alone")
        return min((number for number in numbers.values() if number is not None and number > segment), default=None)

    def _count(self, reason: str, what: str) -> None:
        self.corrupt[reason] += 1
        if self.corrupt[reason] == 1:
            segment, offset = self.position
            logger.warning("%s at byte %d (%s): %s; more of the kind is only counted", self._path(segment), offset, reason, what)


def _frame_trouble(row: bytes) -> str:
    try:
        frame.parse(row[layout.ROW_PREFIX_BYTES :])
    except FrameError as error:
        return f"frame_{error.reason}"
    return "frame"
