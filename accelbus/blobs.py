"""Values too large for an event: a file in the run directory, and a reference to it in the event.

A reference is a msgpack extension, so that an event with one is an ordinary event to everybody who only passes it on.
"""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec

from accelbus.errors import CorruptDataError

EXTENSION: Final = 1
"""Extension code of a reference to a value; never to be used for anything else."""
COPIED_BYTES: Final = 64 * 1024 * 1024
"""Larger files are hard-linked where that is possible: copying them would hold up training."""


class Reference(msgspec.Struct, array_like=True, frozen=True):
    """Where something is: a file, or for an artifact also a directory."""

    name: str
    """Relative to the run's directory of large values."""
    size: int
    """Bytes."""
    crc32c: int = 0
    """Of the file; 0: not checked."""


class BlobStore:
    """The blobs one producer writes. Not for readers."""

    def __init__(self, directory: Path, owner: str, *, quota: int) -> None:
        """Files are named after *owner*; together they take at most *quota* bytes."""
        self._directory = directory
        self._owner = owner
        self._quota = quota
        self._written = 0
        self._numbers = count(1)
        """Any thread may log: two of them never get one name."""

    def write(self, encoded: bytes) -> msgspec.msgpack.Ext:
        """Keep the *encoded* value and return what stands for it in an event.

        Raises:
            OSError: the disk, or the quota, is full.
        """
        return msgspec.msgpack.Ext(EXTENSION, msgspec.msgpack.encode(self.keep(encoded)))

    def keep(self, data: bytes) -> Reference:
        """Write *data* to a file of its own; see `write`."""
        self._reserve(len(data))
        name = self._next_name()
        descriptor = os.open(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            # Half a file is of no use to anybody, and takes the room that is missing.
            self._written -= len(data)
            (self._directory / name).unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return Reference(name, len(data), google_crc32c.value(data))

    def adopt(self, path: Path) -> Reference:
        """Keep the file or directory at *path* as it is now; the original may be deleted right away.

        Raises:
            OSError: it cannot be read, the disk is full, or the quota is.
        """
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else path.stat().st_size
        self._reserve(size)
        name = self._next_name()
        target = self._directory / name
        try:
            if path.is_dir():
                shutil.copytree(path, target, copy_function=_copy_or_link, ignore_dangling_symlinks=True)
            else:
                _copy_or_link(path, target)
        except OSError:
            self._written -= size
            _remove(target)
            raise
        return Reference(name, size)

    def _reserve(self, size: int) -> None:
        if self._written + size > self._quota:
            raise OSError(f"the quota of {self._quota} bytes for large values is used up")
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._written += size

    def _next_name(self) -> str:
        return f"{self._owner}-{next(self._numbers)}"


def load(reference: bytes, directory: Path) -> Any:
    """Return the value that the *reference* in an event stands for.

    Raises:
        CorruptDataError: the reference or its file is damaged, or the file is gone.
    """
    try:
        return msgspec.msgpack.decode(read(msgspec.msgpack.decode(reference, type=Reference), directory))
    except msgspec.MsgspecError as error:
        raise CorruptDataError("blob", f"the reference, or what it stands for, cannot be read ({error})") from error


def read(reference: Reference, directory: Path) -> bytes:
    """Return the bytes of a file written by `BlobStore.keep`; see `load` for the errors."""
    if os.path.basename(reference.name) != reference.name:
        raise CorruptDataError("blob", f"{reference.name!r} is not a name in the run's directory of large values")
    try:
        data = (directory / reference.name).read_bytes()
    except OSError as error:
        raise CorruptDataError("blob", f"the file of a large value cannot be read ({error})") from error
    if google_crc32c.value(data) != reference.crc32c:
        raise CorruptDataError("blob", f"{directory / reference.name} does not hold what was written")
    return data


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _copy_or_link(source: str | Path, target: str | Path) -> None:
    if os.stat(source).st_size > COPIED_BYTES:
        try:
            os.link(source, target)
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, target)
    else:
        shutil.copyfile(source, target)
