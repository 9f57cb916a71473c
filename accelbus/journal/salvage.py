"""Read what a producer left in its spool. Works on the file alone, whoever is dead."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from accelbus import frame
from accelbus.control import Hello
from accelbus.errors import SpoolError
from accelbus.events import STATUSES
from accelbus.journal import ring
from accelbus.journal.batch import Batch
from accelbus.journal.spool_file import (
    CAPACITY_WORD,
    CLOSED_WORD,
    DESCRIPTION_AT,
    ENDING_WORD,
    HEADER_BYTES,
    INDEX_MASK,
    LAST_WORD,
    MAGIC,
    MAX_CAPACITY,
    TAIL_WORD,
    read_counters,
)


class Remains(NamedTuple):
    """What a producer left behind."""

    description: Hello
    batches: list[Batch]
    """Committed events that were not acked."""
    last_seq: int
    """Highest sequence number the producer is known to have committed."""
    dropped: dict[str, int]
    status: str
    """How the producer said it ends: finished, failed, preempted; empty when it did not say."""
    closed: bool
    """The producer said goodbye and got its last ack."""
    released_seq: int = 0
    """Up to here it knew its events to be safe. A queue in memory does not write that down."""


def open_spool(path: Path | str) -> int:
    """Return a descriptor of the spool at *path* for `producer_is_gone` and `salvage`.

    Raises:
        OSError: it is not there, not ours, or not a regular file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "expected a regular file of this user", str(path))
    return descriptor


def producer_is_gone(descriptor: int) -> bool:
    """Whether the producer's record lock could be taken; if so, it is held until *descriptor* is closed.

    Raises:
        OSError: this file system has no record locks.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def salvage(descriptor: int, *, max_events: int, max_bytes: int) -> Remains:
    """Read what is left in a spool. Reads only; may be repeated, and run while the producer lives.

    Raises:
        SpoolError: the file is not a spool of this format.
    """
    size = os.fstat(descriptor).st_size
    if size > HEADER_BYTES + MAX_CAPACITY:
        raise SpoolError("length", f"no spool is as large as {size} bytes")
    data = os.pread(descriptor, size, 0)
    header = _check_header(data)
    description = _read_description(data)
    closed = bool(header[CLOSED_WORD])
    status = STATUSES[header[ENDING_WORD] - 1] if 0 < header[ENDING_WORD] <= len(STATUSES) else ""
    dropped = read_counters(header)
    tail = header[TAIL_WORD]
    if header[CAPACITY_WORD] == 0:
        return Remains(description, [], max(header[LAST_WORD], (tail >> 24) - 1), dropped, status, closed)
    first_seq = tail >> 24
    if tail & INDEX_MASK >= header[CAPACITY_WORD] // 8:
        raise SpoolError("tail", f"the oldest event is said to be at word {tail & INDEX_MASK} of a ring of {header[CAPACITY_WORD]} bytes")
    payloads = list(_follow(data, tail & INDEX_MASK, first_seq))
    batches = list(_in_batches(payloads, first_seq, max_events, max_bytes))
    return Remains(description, batches, first_seq + len(payloads) - 1, dropped, status, closed, first_seq - 1)


def read_description(descriptor: int) -> Hello:
    """Return what the producer of a spool says about itself.

    Raises:
        SpoolError: the file is not a spool of this format, or not yet.
    """
    data = os.pread(descriptor, HEADER_BYTES, 0)
    _check_magic(data)
    return _read_description(data)


def _follow(data: bytes, index: int, seq: int) -> Iterator[bytes]:
    """Yield the payloads of the committed records from *index* words below the top of the ring on."""
    words = memoryview(data)[HEADER_BYTES:].cast("Q")
    travelled = 0
    while travelled < len(words) and (found := ring.read(words, data, index, seq)) is not None:
        payload, step = found
        yield payload
        index, seq, travelled = (index + step) % len(words), seq + 1, travelled + step


def _in_batches(payloads: list[bytes], first_seq: int, max_events: int, max_bytes: int) -> Iterator[Batch]:
    start = 0
    while start < len(payloads):
        end, size = start, frame.ARRAY_HEADER_BYTES
        while end < len(payloads) and end - start < max_events and (end == start or size + len(payloads[end]) <= max_bytes):
            size += len(payloads[end])
            end += 1
        yield Batch(first_seq + start, end - start, frame.join_events(payloads[start:end], end - start))
        start = end


def _check_magic(data: bytes) -> None:
    if len(data) >= HEADER_BYTES and data[:8] == MAGIC:
        return
    if not data[:8].strip(b"\0"):
        raise SpoolError("unfinished", "the file is no spool yet: its producer has not written the header, or never will")
    raise SpoolError("magic", f"expected a spool that starts with {MAGIC!r}, got {len(data)} bytes that start with {data[:8]!r}")


def _check_header(data: bytes) -> memoryview:
    _check_magic(data)
    header = memoryview(data)[:HEADER_BYTES].cast("Q")
    if header[CAPACITY_WORD] != len(data) - HEADER_BYTES or header[CAPACITY_WORD] % 8:
        raise SpoolError("length", f"the header claims a ring of {header[CAPACITY_WORD]} bytes, the file has {len(data) - HEADER_BYTES}")
    return header


def _read_description(data: bytes) -> Hello:
    length = int.from_bytes(data[DESCRIPTION_AT : DESCRIPTION_AT + 4], sys.byteorder)
    if DESCRIPTION_AT + 4 + length > HEADER_BYTES:
        raise SpoolError("description", f"the description claims {length} bytes")
    try:
        return msgspec.msgpack.decode(data[DESCRIPTION_AT + 4 : DESCRIPTION_AT + 4 + length], type=Hello)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SpoolError("description", f"the producer's description cannot be read ({error})") from error
