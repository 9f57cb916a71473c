r"""The bytes of a segment file.

::

    segment = header row*                           row = prefix frame

    header                                          prefix
    offset size  field                              offset size  field
    0      4     magic ``ABSG``                     0      4     magic ``\xa5BR1``
    4      4     CRC32C of everything after it      4      4     length of the frame
    8      2     version                            8      8     received_ns
    10     2     flags (0)                          16     4     CRC32C of the 16 bytes before
    12     4     length of the rest                 20           frame, which carries a CRC of its own
    16           msgpack array: `SegmentInfo`

All numbers of header and prefix are little-endian. A row never spans segments. A reader that lost its place finds the next row
by its magic; the prefix has its own checksum so that neither a value that happens to contain the magic nor a damaged length
leads it astray.
"""

from __future__ import annotations

import re
import struct
from typing import Final

import google_crc32c
import msgspec

from accelbus.errors import SegmentError

SEGMENT_MAGIC: Final = b"ABSG"
ROW_MAGIC: Final = b"\xa5BR1"
VERSION: Final = 1

_HEADER = struct.Struct("<4sIHHI")
_PREFIX = struct.Struct("<4sIQ")
_CRC = struct.Struct("<I")
ROW_PREFIX_BYTES: Final = _PREFIX.size + _CRC.size
HEADER_LIMIT: Final = 16 * 1024
"""No header is longer; a reader looks no further."""

_NAME = re.compile(r"(\d{8,})\.seg", re.ASCII)


class SegmentInfo(msgspec.Struct, array_like=True, frozen=True):
    """Who wrote a segment, for people and tools; readers need none of it. Fields are appended with a default, never reordered."""

    number: int
    created_ns: int
    writer: str
    host: str
    boot_id: str


_encode_info = msgspec.msgpack.Encoder().encode
_decode_info = msgspec.msgpack.Decoder(SegmentInfo).decode


def segment_name(number: int) -> str:
    """Return the file name of segment *number*; the first is 1."""
    return f"{number:08d}.seg"


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name, None when it is no such name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def pack_header(info: SegmentInfo) -> bytes:
    """Return the header of a segment."""
    body = _encode_info(info)
    head = _HEADER.pack(SEGMENT_MAGIC, 0, VERSION, 0, len(body))
    return b"".join((head[:4], _CRC.pack(google_crc32c.value(head[8:] + body)), head[8:], body))


def parse_header(data: bytes) -> tuple[SegmentInfo, int]:
    """Return what the header at the start of *data* says, and its length.

    Raises:
        SegmentError: with ``reason`` `short` (there may be more to come), `magic`, `version`, `crc` or `header`.
    """
    if len(data) < _HEADER.size:
        raise SegmentError("short", f"expected a header of at least {_HEADER.size} bytes, got {len(data)}")
    magic, crc, version, _, length = _HEADER.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise SegmentError("magic", f"expected a segment that starts with {SEGMENT_MAGIC!r}, got {magic!r}")
    if version != VERSION:
        raise SegmentError("version", f"expected segment version {VERSION}, got {version}; was it written by another accelbus version?")
    end = _HEADER.size + length
    if end > HEADER_LIMIT:
        raise SegmentError("header", f"the header claims {end} bytes, at most {HEADER_LIMIT} are possible")
    if len(data) < end:
        raise SegmentError("short", f"the header claims {end} bytes, there are {len(data)}")
    if google_crc32c.value(data[8:end]) != crc:
        raise SegmentError("crc", f"the checksum of a header of {end} bytes does not match")
    try:
        return _decode_info(data[_HEADER.size : end]), end
    except msgspec.MsgspecError as error:
        raise SegmentError("header", f"expected the description of a segment ({error})") from error


def pack_row_prefix(length: int, received_ns: int) -> bytes:
    """Return what stands before a frame of *length* bytes."""
    prefix = _PREFIX.pack(ROW_MAGIC, length, received_ns)
    return prefix + _CRC.pack(google_crc32c.value(prefix))


def parse_row_prefix(data: bytes, offset: int = 0) -> tuple[int, int] | None:
    """Return the frame's length and ``received_ns`` from the prefix at *offset* of *data*, None when no whole, good one is there."""
    end = offset + _PREFIX.size
    if len(data) < end + _CRC.size:
        return None
    magic, length, received_ns = _PREFIX.unpack_from(data, offset)
    if magic != ROW_MAGIC or google_crc32c.value(data[offset:end]) != _CRC.unpack_from(data, end)[0]:
        return None
    return length, received_ns
