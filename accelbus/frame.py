"""The batch frame: the same bytes on the wire, in a spill file and in the journal.

A frame is a fixed header and a body. The header says what the body is and who wrote it, so a frame can be checked, stored,
forwarded and counted without decoding its body::

    offset size  field
    0      4     magic ``ABF1``
    4      4     CRC32C (Castagnoli) of everything after this field, body included
    8      1     version
    9      1     kind
    10     2     flags (0)
    12     4     body length in bytes
    16     16    producer uuid
    32     16    launch token
    48     8     sequence number of the first event
    56     4     number of events
    60     4     reserved (0)
    64           body

All numbers are little-endian. The body of an events frame is one msgpack array32 of ``count`` events, numbered ``first_seq``,
``first_seq + 1``, …
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import google_crc32c

from accelbus.errors import FrameError

MAGIC: Final = b"ABF1"
VERSION: Final = 1

EVENTS: Final = 1
"""Kind: events of a producer."""
RECORDS: Final = 2
"""Kind: what a bus process, or a salvager, knows about producers."""
CONTROL: Final = 64
"""Kind: a control message; kinds from here on live on the wire only and are never stored."""

_HEAD = struct.Struct("<4sI")
_REST = struct.Struct("<BBHI16s16sQII")
HEADER_BYTES: Final = _HEAD.size + _REST.size
_ARRAY32 = struct.Struct(">BI")
ARRAY_HEADER_BYTES: Final = _ARRAY32.size
NOBODY: Final = bytes(16)
"""The producer uuid or launch token of a frame that has none."""
LAST_SEQ: Final = 2**62
"""A larger sequence number is damage: it could not be counted on, nor stored everywhere."""


class Frame(NamedTuple):
    """One checked frame. ``raw`` is the whole frame, ``body`` a view into it."""

    kind: int
    producer: bytes
    launch: bytes
    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    body: memoryview
    raw: bytes | memoryview

    @property
    def last_seq(self) -> int:
        """Sequence number of the last event."""
        return self.first_seq + self.count - 1


def pack(kind: int, body: bytes, *, producer: bytes = NOBODY, launch: bytes = NOBODY, first_seq: int = 0, count: int = 0) -> bytes:
    """Return the frame around *body*."""
    rest = _REST.pack(VERSION, kind, 0, len(body), producer, launch, first_seq, count, 0)
    crc = google_crc32c.extend(google_crc32c.value(rest), body)
    return b"".join((_HEAD.pack(MAGIC, crc), rest, body))


def join_events(events: Iterable[bytes], count: int) -> bytes:
    """Return the body for *count* encoded *events*: one msgpack array of them."""
    return b"".join((_ARRAY32.pack(0xDD, count), *events))


def body_length(header: bytes | memoryview) -> int:
    """Return the body length a header claims, before anything is checked but the magic.

    Raises:
        FrameError: `short` when *header* has fewer than `HEADER_BYTES`, `magic` when it is no frame.
    """
    if len(header) < HEADER_BYTES:
        raise FrameError("short", f"expected at least {HEADER_BYTES} bytes of header, got {len(header)}")
    if bytes(header[:4]) != MAGIC:
        raise FrameError("magic", f"expected a frame that starts with {MAGIC!r}, got {bytes(header[:4])!r}")
    return int.from_bytes(header[12:16], "little")


def check_claims(checked: Frame) -> None:
    """Check that the header of a frame with events tells the truth about their number.

    Whoever acks a frame has to: an ack frees everything up to the last number that the header claims.

    Raises:
        FrameError: ``count`` or ``sequence``.
    """
    if checked.count and not 1 <= checked.first_seq <= checked.last_seq <= LAST_SEQ:
        raise FrameError("sequence", f"expected numbers from 1 to {LAST_SEQ}, got {checked.count} from {checked.first_seq} on")
    if checked.kind != EVENTS:
        return
    start = bytes(checked.body[:ARRAY_HEADER_BYTES])
    # An event is at least a byte, so a count beyond the body's length is a lie even if its array says the same.
    if start != _ARRAY32.pack(0xDD, checked.count) or not 1 <= checked.count <= len(checked.body) - ARRAY_HEADER_BYTES:
        raise FrameError("count", f"the header claims {checked.count} events, the body of {len(checked.body)} bytes starts with {start!r}")


def parse(raw: bytes | memoryview) -> Frame:
    """Check *raw* and return it as a frame.

    Raises:
        FrameError: with ``reason`` `short`, `magic`, `version`, `length` or `crc`.
    """
    length = body_length(raw)
    if raw[8] != VERSION:
        raise FrameError("version", f"expected frame version {VERSION}, got {raw[8]}; it was written by another accelbus version")
    if len(raw) != HEADER_BYTES + length:
        raise FrameError("length", f"the header claims a body of {length} bytes, {len(raw) - HEADER_BYTES} came")
    view = memoryview(raw)
    _, crc = _HEAD.unpack_from(view)
    # google_crc32c's C code takes bytes only; a wire message already is bytes, so slicing copies once.
    if google_crc32c.value(bytes(view[_HEAD.size :])) != crc:
        raise FrameError("crc", f"the checksum of a frame of {len(raw)} bytes does not match")
    _, kind, _, _, producer, launch, first_seq, count, _ = _REST.unpack_from(view, _HEAD.size)
    return Frame(kind, producer, launch, first_seq, count, view[HEADER_BYTES:], raw)
