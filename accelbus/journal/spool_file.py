"""The spool: a rank's memory that survives the rank.

A preallocated file, mapped into the training process. `accelbus.journal.spool.Spool.append` copies an encoded event into it and then
writes one commit word; a SIGKILL at any instant leaves either the whole event or none of it. Acks free the oldest events. When the producer's
record lock on the file can be taken, the producer is gone and `accelbus.journal.salvage` reads what it left.

File format, numbers in host byte order (a spool never leaves its host)::

    offset size  field
    0      8     magic ``ABSPOOL2``
    8      8     ring capacity in bytes (0: the events are in memory, the file only proves life and keeps counters)
    16     8     tail: sequence number (40 bits) and words from the top of the ring (24 bits) of the oldest event that is not acked
    24     8     1 once the producer said goodbye and got its last ack
    32     8     last sequence number (memory queues only; a ring is scanned)
    40     8     how the producer says it ends: 0 not yet, else 1 + index in `accelbus.events.STATUSES`
    64     256   counters of what was not kept, one word per reason in `accelbus.events.DROP_REASONS`
    1024   4     length of the description
    1028         description: the producer's `Hello`, msgpack
    8192         ring

Records are found by following them from the tail; see `accelbus.journal.ring`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from accelbus.control import Hello
from accelbus.events import DROP_REASONS, STATUSES

MAGIC: Final = b"ABSPOOL2"
HEADER_BYTES: Final = 8192
MAX_CAPACITY: Final = 1 << 27
PAGE: Final = 4096
INDEX_MASK: Final = (1 << 24) - 1
"""The words from the top of the ring, in the tail."""
MAX_PAYLOAD: Final = 1 << 24
CAPACITY_WORD, TAIL_WORD, CLOSED_WORD, LAST_WORD, ENDING_WORD, COUNTERS_WORD = 1, 2, 3, 4, 5, 8
DESCRIPTION_AT: Final = 1024

_encode = msgspec.msgpack.Encoder().encode


class SpoolFile:
    """The file of one producer: its header, its counters and the lock that proves the producer alive.

    The lock is a POSIX record lock: a forked child does not inherit it, and the kernel releases it however the process ends.
    Closing any other descriptor of the same file in this process would release it too, so nothing here opens the file twice.
    """

    def __init__(self, path: Path, *, capacity: int, description: Hello) -> None:
        """Create the file, lock it, and allocate it.

        Raises:
            OSError: no room (checked here, because writing into a sparse mapping on a full disk kills the process), no
                permission, the file is there already, or somebody took it for abandoned. Nothing is left behind.
            ValueError: no such capacity; nothing was made.
        """
        if not 0 <= capacity <= MAX_CAPACITY or capacity % PAGE:
            raise ValueError(f"expected a ring of whole pages of {PAGE} bytes, at most {MAX_CAPACITY}, got {capacity}")
        self.path = path
        self.capacity = capacity
        described = _encode(description)
        if DESCRIPTION_AT + 4 + len(described) > HEADER_BYTES:
            raise OSError(errno.ENAMETOOLONG, f"the description of the producer takes {len(described)} bytes", str(path))
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        about = os.fstat(self.descriptor)
        self._place = (about.st_dev, about.st_ino)
        _OPEN.add(self._place)
        try:
            # The lock comes first: a file without a header that nobody has locked is one whose producer was killed while it made it.
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(about, os.stat(path)):
                raise OSError(errno.ESTALE, "the file was taken for abandoned before it was locked", str(path))
            _allocate(self.descriptor, HEADER_BYTES + capacity)
            self.map = mmap.mmap(self.descriptor, HEADER_BYTES + capacity)
        except BaseException:  # a signal handler's exception, too, must not leave megabytes behind
            os.close(self.descriptor)
            _OPEN.discard(self._place)
            path.unlink(missing_ok=True)
            raise
        self.header = memoryview(self.map)[:HEADER_BYTES].cast("Q")
        self.header[CAPACITY_WORD] = capacity
        self.map[DESCRIPTION_AT : DESCRIPTION_AT + 4] = len(described).to_bytes(4, sys.byteorder)
        self.map[DESCRIPTION_AT + 4 : DESCRIPTION_AT + 4 + len(described)] = described
        self.set_tail(1, 0)
        # The magic comes last: a salvager that looks earlier sees a file that is not a spool yet.
        self.map[:8] = MAGIC

    def set_tail(self, seq: int, index: int) -> None:
        """Record the oldest event that is still needed; one word, so a kill leaves the old pair or the new one."""
        self.header[TAIL_WORD] = seq << 24 | index

    def set_last(self, seq: int) -> None:
        """Record how far a memory queue got, for the audit."""
        self.header[LAST_WORD] = seq

    def count_dropped(self, reason: str, events: int = 1) -> None:
        """Count what was not kept. Survives a SIGKILL."""
        word = COUNTERS_WORD + DROP_REASONS.index(reason)
        # No call between reading and writing: neither a thread nor a signal handler can get in between.
        self.header[word] = self.header[word] + events

    def dropped(self) -> dict[str, int]:
        """Return {reason: count} of what was not kept."""
        return read_counters(self.header)

    def mark_ending(self, status: str) -> None:
        """Say how this producer ends, for whoever finds the file without its process."""
        self.header[ENDING_WORD] = STATUSES.index(status) + 1

    def mark_closed(self) -> None:
        """Say that nothing in here is owed any more."""
        self.header[CLOSED_WORD] = 1

    def close(self, *, unlink: bool) -> None:
        """Unmap and unlock; with *unlink* also remove the file."""
        if unlink:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        self.header.release()
        self.map.close()
        os.close(self.descriptor)
        _OPEN.discard(self._place)

    def abandon_in_child(self) -> None:
        """Forget the parent's file after a fork: only the descriptor is closed, the parent's lock stays."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


_OPEN: set[tuple[int, int]] = set()
"""Device and inode of the spools that this process has open."""


def is_open_here(about: os.stat_result) -> bool:
    """Whether this process has the spool open that *about* is of: then it must not open it again, see `SpoolFile`."""
    return (about.st_dev, about.st_ino) in _OPEN


def read_counters(header: memoryview | list[int]) -> dict[str, int]:
    """Return {reason: count} from the words of a spool's header."""
    counters = header[COUNTERS_WORD : COUNTERS_WORD + len(DROP_REASONS)]
    return {reason: count for reason, count in zip(DROP_REASONS, counters, strict=True) if count}


def _allocate(descriptor: int, size: int) -> None:
    """Reserve *size* bytes; a full file system says so now and not with SIGBUS later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS: writing zeros is the portable way.
    block = bytes(1 << 16)
    for offset in range(0, size, len(block)):
        os.pwrite(descriptor, block[: size - offset], offset)
