"""One segment file while it is being written."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from accelbus.host import boot_id
from accelbus.journal import layout

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors after which it is known what a file holds."""


class SegmentFile:
    """An open segment file. ``size`` counts whole rows only."""

    def __init__(self, descriptor: int, path: Path, number: int) -> None:
        self.number = number
        self.size = 0
        self.synced_size = 0
        self.broken = False
        """No row may follow: it is not known where the file ends."""
        self._descriptor = descriptor
        self._header_bytes = 0
        self._name = str(path)

    @classmethod
    def create(cls, directory: Path, number: int, created_ns: int) -> SegmentFile:
        """Create segment *number* of *directory* with its header, or leave nothing behind and raise `OSError`."""
        header = layout.pack_header(
            layout.SegmentInfo(number=number, created_ns=created_ns, writer=directory.name, host=os.uname().nodename, boot_id=boot_id())
        )
        path = directory / layout.segment_name(number)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        segment = cls(descriptor, path, number)
        try:
            segment.write([header], len(header))
        except OSError:
            # The number is used again, so the name has to go; nobody can have read past an unfinished header.
            segment.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        segment._header_bytes = len(header)
        return segment

    @property
    def has_rows(self) -> bool:
        return self.size > self._header_bytes

    def write(self, buffers: list[bytes], size: int) -> None:
        """Append *buffers*, together *size* bytes; on `OSError` the torn row at the end is cut off, or the segment is ``broken``."""
        written = 0
        try:
            written = os.writev(self._descriptor, buffers)
            if written < size:
                rest = memoryview(b"".join(buffers))
                while written < size:
                    written += os.write(self._descriptor, rest[written:])
        except OSError as error:
            self._keep_whole_rows(buffers, written, error)
            raise
        self.size += size

    def _keep_whole_rows(self, buffers: list[bytes], written: int, error: OSError) -> None:
        whole = 0
        for prefix, frame in zip(buffers[::2], buffers[1::2], strict=False):
            row = len(prefix) + len(frame)
            if whole + row > written:
                break
            whole += row
        self.size += whole
        self.broken = error.errno not in DISK_FULL
        if written > whole and not self.broken:
            # Readers never get past a whole row, so the torn one can be replaced; it would take the room that is missing.
            try:
                os.ftruncate(self._descriptor, self.size)
            except OSError:
                self.broken = True

    def sync(self) -> None:
        """Wait until the file is on disk.

        Raises:
            OSError: it is not; that includes a file which somebody removed.
        """
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._descriptor)
        else:
            os.fsync(self._descriptor)
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the segment was removed while it was written", self._name)

    def close(self) -> None:
        # An error here speaks of data that a sync has confirmed, or that is written again elsewhere.
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
