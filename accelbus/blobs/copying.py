"""Take a file or directory of the user's as it is now, in a time that does not grow with its size where the file system allows that.

Small files are copied. What is larger is cloned (a copy that shares its blocks) or hard-linked, and where neither is possible, on
another file system, opened now and copied later: an open file outlives its deletion.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

COPIED_BYTES: Final = 64 * 1024 * 1024
"""Of one file or directory, the smallest files first; copying more would hold up training."""
_CHUNK: Final = 8 * 1024 * 1024
_CLONED_BYTES: Final = 1024 * 1024
"""Smaller files are copied as fast as cloned."""
_FICLONE: Final = 0x40049409
_MOST_OPEN: Final = 64
"""Files kept open to be copied later; of more the rest is copied at once."""


class Later(NamedTuple):
    """A file that is to be copied."""

    source: int
    """Descriptor."""
    target: Path


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a directory."""
    return sum(_sizes(path))


def take(path: Path, target: Path) -> list[Later]:
    """Make *target* a copy of *path*; return what is to be copied later.

    Raises:
        OSError: it cannot be read, or the disk is full.
    """
    later: list[Later] = []
    largest = _largest_copied(_sizes(path))

    def copy(source: str | Path, to: str | Path) -> None:
        size = os.stat(source).st_size
        if size > _CLONED_BYTES and _clone(source, to):
            return
        if size <= largest:
            shutil.copyfile(source, to)
        elif not _link(source, to):
            if len(later) < _MOST_OPEN:
                later.append(Later(os.open(source, os.O_RDONLY | os.O_CLOEXEC), Path(to)))
            else:
                shutil.copyfile(source, to)

    try:
        if path.is_dir():
            shutil.copytree(path, target, copy_function=copy, ignore_dangling_symlinks=True)
        else:
            copy(path, target)
    except OSError:
        for one in later:
            os.close(one.source)
        raise
    return later


def copy_later(later: Later, tick: Callable[[], None]) -> None:
    """Copy, durably; *tick* is called often. The descriptor is closed in any case.

    Raises:
        OSError: it cannot be read or written.
    """
    try:
        descriptor = os.open(later.target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while chunk := os.read(later.source, _CHUNK):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(descriptor, view) :]
                tick()
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    finally:
        os.close(later.source)


def remove(path: Path) -> None:
    """Remove a file or directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _sizes(path: Path) -> list[int]:
    if not path.is_dir():
        return [path.stat().st_size]
    return [file.stat().st_size for file in path.rglob("*") if file.is_file()]


def _largest_copied(sizes: list[int]) -> int:
    """Return the size up to which files are copied."""
    room, largest = COPIED_BYTES, -1
    for size in sorted(sizes):
        room -= size
        if room < 0:
            break
        largest = size
    return largest


def _link(source: str | Path, target: str | Path) -> bool:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another file system, or one without links
        return False
    return True


def _clone(source: str | Path, target: str | Path) -> bool:
    """Let *target* share the blocks of *source* until one of them is written to."""
    if not sys.platform.startswith("linux"):
        return False
    import fcntl  # noqa: PLC0415  not on every system

    with open(source, "rb") as origin, open(target, "wb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, origin.fileno())
        except OSError:  # a file system that cannot, or another one
            pass
        else:
            return True
    os.unlink(target)
    return False


__all__ = ["COPIED_BYTES", "Later", "copy_later", "remove", "size_of", "take"]
