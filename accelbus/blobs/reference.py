"""What stands for a file in an event, and reading the file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec

from accelbus.errors import CorruptDataError

EXTENSION: Final = 1
"""Extension code of a reference to a value; never to be used for anything else."""
UNFINISHED: Final = ".part"
"""End of the name of an empty file that lies beside what is still being copied; touched about once a second."""
_STALLED: Final = 60.0
"""Seconds without a touch after which nobody copies any more; network file systems show times late."""


class Reference(msgspec.Struct, array_like=True, frozen=True):
    """Where something is: a file, or for an artifact also a directory."""

    name: str
    """Relative to the run's directory of large values."""
    size: int
    """Bytes."""
    crc32c: int = 0
    """Of the file; 0: not checked."""


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


def whole(path: Path, *, stalled: float = _STALLED, poll: float = 0.2) -> Path:
    """Return *path*, of a file or directory that `BlobStore.adopt` has taken, when all of it is there; waits while it is being copied.

    Raises:
        CorruptDataError: it is gone, or who copied it ended before it was complete.
    """
    marker = path.with_name(path.name + UNFINISHED)
    touched, since = 0, time.monotonic()
    while (now := _touched(marker)) is not None:
        if now != touched:
            touched, since = now, time.monotonic()
        elif time.monotonic() - since > stalled:
            raise CorruptDataError("artifact", f"{path} is not complete: the process that copied it has ended")
        time.sleep(poll)
    if not path.exists():
        raise CorruptDataError("artifact", f"{path} is gone")
    return path


def _touched(marker: Path) -> int | None:
    try:
        return marker.stat().st_mtime_ns
    except FileNotFoundError:
        return None


__all__ = ["EXTENSION", "UNFINISHED", "Reference", "load", "read", "whole"]
