"""A file that only grows, and can be cut back to what was durable at some moment."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from accelbus.durable import sync_directory

logger = logging.getLogger(__name__)

BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Beyond this `AppendFile.make_room` flushes: memory stays bounded when rows come faster than flushes."""


class AppendFile:
    """Bytes at the end of one file, kept in memory until `flush` writes and syncs them.

    A failed flush leaves the file as it was, as far as the file system lets us, and the bytes in memory: the next flush tries
    again. Bytes whose sync failed are cut off and written again, since a second sync of the same pages would report success
    without having them on disk. One thread, one writer per file.
    """

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
        self.path = path
        self._descriptor = os.open(path, flags, 0o644)
        sync_directory(path.parent)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._torn = False
        self.length = os.fstat(self._descriptor).st_size
        """Bytes that are durable."""

    def append(self, data: bytes) -> None:
        """Add *data*. Touches memory only and cannot fail."""
        self._pending.append(data)
        self._pending_bytes += len(data)

    def make_room(self) -> None:
        """Flush if a lot is pending. Called before a batch is taken, so that a failure refuses the batch as a whole."""
        if self._pending_bytes > BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write and sync everything appended.

        Raises:
            OSError: nothing of it counts as written; it is still there for the next call.
        """
        if not self._pending:
            return
        data = b"".join(self._pending)
        if self._torn:
            self._cut()
        self._torn = True
        try:
            _write_all(self._descriptor, data)
            _sync(self._descriptor)
        except OSError:
            self._try_cut()
            raise
        self._torn = False
        self.length += len(data)
        self._pending.clear()
        self._pending_bytes = 0

    def close(self) -> None:
        """Flush and close; stays open when the flush fails."""
        self.flush()
        os.close(self._descriptor)

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.length)
        self._torn = False

    def _try_cut(self) -> None:
        try:
            self._cut()
        except OSError as error:
            logger.warning("%s has a torn end (%s); it is cut off before the next write", self.path, error)


def cut_back(path: Path, length: int) -> None:
    """Forget what follows the first *length* bytes of *path*. A missing or shorter file is left alone, with a warning."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        size = -1
    if size < length:
        logger.warning(
            "%s should hold %d bytes and %s: values delivered to it earlier are missing",
            path,
            length,
            f"has {size}" if size >= 0 else "is gone",
        )
    elif size > length:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, length)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def set_aside(path: Path, name: str) -> None:
    """Rename *path* to *name* beside it: its content will be delivered again, but what we did not make, we do not delete."""
    logger.info("%s is set aside as %s: its values are delivered again", path, name)
    os.replace(path, path.with_name(name))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:  # macOS
        os.fsync(descriptor)
