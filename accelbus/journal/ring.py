"""The records in the ring of a spool: how one is written so that it is there whole or not at all, and how they are found again.

The ring fills from its last byte down to its first. A record, by rising address::

    payload             padded with zeros to 8 bytes
    payload length      8 bytes
    sequence number     8 bytes, the *commit word*

So the commit word of the next record lies right below a record, at a place that is known before its length is. A word with the next
sequence number is a committed record. The same number with the highest bit set says that the next record starts at the top again.
Anything else: nothing has been committed there.

**Why a record is never taken for whole when it is not.** One call of `struct.Struct.pack_into` clears the record's room and the word
below it, copies the payload, stores the length, and stores the commit word last, each by its own step and in this order; the last is
one aligned store of 8 bytes, because native ``Q`` goes through ``unsigned long long``. A process that is killed has executed some
first part of its instructions and nothing of the rest, on x86 and arm64 alike: whatever the processor had in flight beyond is not
visible. What it had stored is in the file's pages, which outlive it, and whoever reads them took the record lock that the kernel
released after that. So there is the commit word and all that was stored before it, or there is no commit word. What lay below from an
earlier lap cannot be taken for one either: the word where the reader looks next was cleared before this record was committed. (A
reader on arm64 that does not wait for the end of the producer may see stores in another order. It looks, it does not bring in.)

No signal handler, finaliser or thread of Python runs within the call.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from struct import Struct
from typing import Final

from accelbus.journal.spool_file import HEADER_BYTES

WRAP: Final = 1 << 63
"""In a commit word: the next record starts at the top of the ring."""
_COMMON_SIZES: Final = 1024

Write = Callable[[mmap.mmap, int, bytes, int, int], None]
"""Writes a record: (file, offset of the word below it, payload, its length, sequence number)."""


def make_write(size: int) -> Write:
    """Return what writes a record with a payload of *size* bytes."""
    return Struct(f"8x{size + 7 & -8}sQQ").pack_into


_OF_WORDS: Final = [make_write(size) for size in range(0, _COMMON_SIZES, 8)]
WRITES: Final[list[Write]] = [_OF_WORDS[(size + 7) >> 3] for size in range(_COMMON_SIZES - 7)]
"""`make_write` of the usual sizes."""


def words_of(size: int) -> int:
    """Return the words that a record with a payload of *size* bytes takes. The word below it must be free too."""
    return size + 23 >> 3


def place_of(index: int, capacity: int) -> int:
    """Return the offset in the file of the commit word that lies *index* words below the top of a ring of *capacity* words."""
    return HEADER_BYTES + (capacity - 1 - index << 3)


def read(words: memoryview, file: bytes | mmap.mmap, index: int, seq: int) -> tuple[bytes, int] | None:
    """Return the payload of record *seq* and how many words further the next one is, None when it has not been committed.

    Args:
        words: the ring.
        file: all of the file.
        index: where to look, in words below the top of the ring.
        seq: the sequence number that is due there.
    """
    at = len(words) - 1 - index
    skipped = 0
    if words[at] != seq:
        if words[at] != seq | WRAP:
            return None
        skipped, at = at + 1, len(words) - 1
        if words[at] != seq:
            return None
    size = words[at - 1]
    needed = size + 23 >> 3
    if needed > at:
        return None
    start = HEADER_BYTES + (at - 1 << 3) - (size + 7 & -8)
    return file[start : start + size], skipped + needed
