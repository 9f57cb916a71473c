"""Write one writer's directory of segment files."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from accelbus.config import Tuning
from accelbus.durable import sync_directory
from accelbus.journal import layout
from accelbus.journal.segment_file import DISK_FULL, SegmentFile

_FILE_TOO_LARGE: Final = errno.EFBIG
_FRAMES_PER_CALL: Final = max(8, os.sysconf("SC_IOV_MAX") // 2)
"""A row is two buffers, its prefix and its frame."""


class WriterStatistics(NamedTuple):
    """What one `JournalWriter` did so far."""

    mark: int
    """Rows appended."""
    synced_mark: int
    """Rows known to be on disk."""
    unsynced_bytes: int
    segments: int
    bytes: int
    """Written to files, headers and repetitions included."""
    failed_writes: int
    failed_syncs: int
    rewritten_rows: int
    """Written once more because a sync failed."""


class JournalWriter:
    """Append frames to segment files that nobody else writes.

    Nothing is created before the first `append`. Each incarnation of a process needs a *directory* of its own: a segment that is
    already there is never opened, `FileExistsError` is raised instead.

    `append` is for one thread; `sync` may run in another one meanwhile, and is the only call that waits for a disk. Frames that
    are appended and not yet synced are kept in memory (by reference): when a sync fails, Linux forgets the pages it could not
    write, so they are written again, into a new segment. Whoever appends bounds that memory by watching `unsynced_bytes`.

    Args:
        directory: ``<run>/journal/<writer>``; its name is the writer's name.
        tuning: ``segment_bytes`` is used.
        clock: wall clock in nanoseconds.
        monotonic: how time passes while the wall clock is set back.
        local: False on a network file system, where a failed write may speak of an earlier one: everything unsynced is then
            written again, as after a failed sync.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tuning: Tuning,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
        local: bool = True,
    ) -> None:
        self.directory = directory
        self._segment_bytes = tuning.segment_bytes
        self._clock = clock
        self._monotonic = monotonic
        self._local = local
        self._received_ns = 0
        self._received_at_ns = 0
        self._number = 0
        self._closed = False
        self._mark = 0
        self._synced_mark = 0
        self._unsynced: deque[bytes] = deque()
        self._unsynced_bytes = 0
        self._current: SegmentFile | None = None
        self._full: list[SegmentFile] = []
        """Segments that take no more rows and still have to be synced."""
        self._poisoned = False
        self._poisonings = 0
        self._rewritten = 0
        """How many rows of `_unsynced` are in good segments again, while `_poisoned`."""
        self._condemned: list[SegmentFile] = []
        """Poisoned segments whose descriptors a running sync may still use."""
        self._names_synced = 0
        """Number of the newest segment whose name is durable."""
        # Appending and syncing meet only under _lock, which is never held while a disk is waited for; _sync_lock keeps syncs apart.
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._bytes = self._failed_writes = self._failed_syncs = self._rewritten_rows = 0

    def append(self, frames: Sequence[bytes]) -> int:
        """Write *frames*, all of them or none as far as the caller is concerned, and return the mark: rows appended so far.

        Raises:
            OSError: nothing of this call counts (ENOSPC, EDQUOT, EFBIG, EIO, …). The caller keeps its frames, acks nothing and
                calls again later; rows that did reach the file will then be there twice, which readers expect.
            ValueError: the writer is closed.
        """
        with self._lock:
            self._check_open()
            if not frames:
                return self._mark
            self._rewrite()
            self._write(frames)
            self._mark += len(frames)
            self._unsynced.extend(frames)
            self._unsynced_bytes += sum(map(len, frames))
            return self._mark

    def sync(self) -> int:
        """Make everything appended so far durable and return the mark up to which it is.

        Raises:
            OSError: the segments are poisoned: nothing is synced or written there again. What was appended and not synced goes
                into a new segment with the next `append` or `sync`.
            ValueError: the writer is closed.
        """
        with self._sync_lock:
            with self._lock:
                self._check_open()
                self._bury_condemned()
                self._rewrite()
                target, poisonings = self._mark, self._poisonings
                segments = [segment for segment in self._segments() if segment.synced_size < segment.size]
                sizes = [segment.size for segment in segments]
            if target == self._synced_mark:
                return target
            try:
                for segment in segments:
                    segment.sync()
                self._sync_names(max(segment.number for segment in segments))
            except OSError:
                with self._lock:
                    self._failed_syncs += 1
                    self._poison()
                    self._bury_condemned()
                raise
            with self._lock:
                if poisonings == self._poisonings:
                    self._settle(target, segments, sizes)
                return self._synced_mark

    @property
    def mark(self) -> int:
        """Rows appended so far."""
        return self._mark

    @property
    def synced_mark(self) -> int:
        """Rows known to be on disk."""
        return self._synced_mark

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of frames appended and not yet synced, kept in memory."""
        return self._unsynced_bytes

    def statistics(self) -> WriterStatistics:
        """Return a snapshot."""
        return WriterStatistics(
            mark=self._mark,
            synced_mark=self._synced_mark,
            unsynced_bytes=self._unsynced_bytes,
            segments=self._number,
            bytes=self._bytes,
            failed_writes=self._failed_writes,
            failed_syncs=self._failed_syncs,
            rewritten_rows=self._rewritten_rows,
        )

    def close(self) -> None:
        """Sync and let go of the files; calling it again does nothing.

        Raises:
            OSError: what was not synced before may be lost (`synced_mark` says how far it is safe). The files are closed all the same.
        """
        if self._closed:
            return
        try:
            self.sync()
        finally:
            with self._sync_lock, self._lock:
                self._closed = True
                self._condemned += self._segments()
                self._current, self._full = None, []
                self._bury_condemned()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the journal writer of {str(self.directory)!r} is closed")

    def _segments(self) -> list[SegmentFile]:
        return self._full if self._current is None else [*self._full, self._current]

    def _write(self, frames: Sequence[bytes]) -> None:
        # Taken before the bytes move: a row that got into the file although its call failed has this time, and none after it may be older.
        self._received_ns = self._now_ns()
        for rows, size in _batches(frames, self._received_ns, self._segment_bytes):
            segment = self._with_room_for(size)
            before = segment.size
            try:
                segment.write(rows, size)
            except OSError as error:
                self._failed_writes += 1
                self._after_failed_write(error)
                raise
            finally:
                self._bytes += segment.size - before

    def _now_ns(self) -> int:
        """Return a time that neither steps back nor stands still: while the clock is behind, time passes as it does."""
        now, steady = self._clock(), self._monotonic()
        if now < self._received_ns:
            # Until the clock has caught up, whatever waits for journal time to pass would wait, too.
            now = self._received_ns + steady - self._received_at_ns
        self._received_at_ns = steady
        return now

    def _with_room_for(self, size: int) -> SegmentFile:
        segment = self._current
        if segment is not None and (segment.broken or (segment.has_rows and segment.size + size > self._segment_bytes)):
            self._full.append(segment)
            segment = self._current = None
        if segment is None:
            segment = self._current = self._create()
        return segment

    def _create(self) -> SegmentFile:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._number:
            self._claim_directory()
        try:
            segment = SegmentFile.create(self.directory, self._number + 1, self._clock())
        except FileExistsError:
            raise
        except OSError:
            self._failed_writes += 1
            # Normally the name is free again; where even removing it failed, the next try needs another one.
            self._number += (self.directory / layout.segment_name(self._number + 1)).exists()
            raise
        self._number += 1
        self._bytes += segment.size
        return segment

    def _claim_directory(self) -> None:
        taken = next((name for name in os.listdir(self.directory) if layout.segment_number(name) is not None), None)
        if taken is not None:
            raise FileExistsError(errno.EEXIST, "the directory belongs to another journal writer", str(self.directory / taken))

    def _after_failed_write(self, error: OSError) -> None:
        harmless = error.errno == _FILE_TOO_LARGE or (self._local and error.errno in DISK_FULL)
        if not harmless:
            self._poison()

    def _poison(self) -> None:
        self._condemned += self._segments()
        self._current, self._full = None, []
        self._poisoned = True
        self._poisonings += 1
        self._rewritten = 0

    def _bury_condemned(self) -> None:
        while self._condemned:
            self._condemned.pop().close()

    def _rewrite(self) -> None:
        """Write what poisoned segments may have lost into new ones; a failure leaves the rest for the next call."""
        if not self._poisoned:
            return
        while self._rewritten < len(self._unsynced):
            # In pieces, so that a disk that fills up again does not make every attempt start from the first row.
            piece = list(islice(self._unsynced, self._rewritten, self._rewritten + _FRAMES_PER_CALL))
            self._write(piece)
            self._rewritten += len(piece)
            self._rewritten_rows += len(piece)
        self._poisoned = False

    def _sync_names(self, newest: int) -> None:
        if newest <= self._names_synced:
            return
        if not self._names_synced:
            sync_directory(self.directory.parent)
        sync_directory(self.directory)
        self._names_synced = newest

    def _settle(self, target: int, segments: list[SegmentFile], sizes: list[int]) -> None:
        for _ in range(target - self._synced_mark):
            self._unsynced_bytes -= len(self._unsynced.popleft())
        self._synced_mark = target
        for segment, size in zip(segments, sizes, strict=True):
            segment.synced_size = size
        done = [segment for segment in self._full if segment.synced_size == segment.size]
        self._full = [segment for segment in self._full if segment.synced_size < segment.size]
        for segment in done:
            segment.close()


def _batches(frames: Sequence[bytes], received_ns: int, segment_bytes: int) -> Iterator[tuple[list[bytes], int]]:
    """Cut *frames* into what one system call and one segment takes: lists of prefix, frame, prefix, frame, … with their size."""
    buffers: list[bytes] = []
    size = 0
    for frame in frames:
        row = layout.ROW_PREFIX_BYTES + len(frame)
        if buffers and (len(buffers) >= 2 * _FRAMES_PER_CALL or size + row > segment_bytes):
            yield buffers, size
            buffers, size = [], 0
        buffers += (layout.pack_row_prefix(len(frame), received_ns), frame)
        size += row
    if buffers:
        yield buffers, size
