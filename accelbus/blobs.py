"""Values too large for an event: a file in the run directory, and a reference to it in the event.

A reference is a msgpack extension, so that an event with one is an ordinary event to everybody who only passes it on. The file
holds the value's msgpack.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec

from accelbus.errors import CorruptDataError

EXTENSION: Final = 1
"""Extension code of a reference; never to be used for anything else."""


class Reference(msgspec.Struct, array_like=True, frozen=True):
    """Where a value is."""

    name: str
    size: int
    """Bytes of the file."""
    crc32c: int


class BlobStore:
    """The blobs one producer writes. Not for readers."""

    def __init__(self, directory: Path, owner: str, *, quota: int) -> None:
        """Files are named after *owner*; together they take at most *quota* bytes."""
        self._directory = directory
        self._owner = owner
        self._quota = quota
        self._written = 0
        self._count = 0

    def write(self, encoded: bytes) -> msgspec.msgpack.Ext:
        """Keep the *encoded* value and return what stands for it.

        Raises:
            OSError: the disk, or the quota, is full.
        """
        if self._written + len(encoded) > self._quota:
            raise OSError(f"the quota of {self._quota} bytes for large values is used up")
        self._directory.mkdir(mode=0o700, exist_ok=True)
        name = f"{self._owner}-{self._count}.msgpack"
        descriptor = os.open(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(encoded)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        self._written += len(encoded)
        self._count += 1
        return msgspec.msgpack.Ext(EXTENSION, msgspec.msgpack.encode(Reference(name, len(encoded), google_crc32c.value(encoded))))


def load(reference: bytes, directory: Path) -> Any:
    """Return the value a reference stands for.

    Raises:
        CorruptDataError: the reference or its file is damaged, or the file is gone.
    """
    try:
        where = msgspec.msgpack.decode(reference, type=Reference)
    except msgspec.MsgspecError as error:
        raise CorruptDataError("blob", f"the reference cannot be read ({error})") from error
    if os.path.basename(where.name) != where.name:
        raise CorruptDataError("blob", f"{where.name!r} is not a name in the run's directory of large values")
    try:
        encoded = (directory / where.name).read_bytes()
    except OSError as error:
        raise CorruptDataError("blob", f"the file of a large value cannot be read ({error})") from error
    if google_crc32c.value(encoded) != where.crc32c:
        raise CorruptDataError("blob", f"{directory / where.name} does not hold what was written")
    return msgspec.msgpack.decode(encoded)
