"""Find where the values of a msgpack array begin and end, without decoding them.

Without recursion too: one value nested a thousand levels deep makes every decoder give up, and must not cost its neighbours.
"""

from __future__ import annotations

from typing import Final

_NIL_AND_BOOLS: Final = (0xC0, 0xC2, 0xC3)
_FIXED: Final = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
"""{first byte of a number: bytes that follow}"""
_FIXED_EXT: Final = {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_COUNTED: Final = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
"""{first byte of bytes, extension or text: (size of the length, bytes beside the content)}"""
_NESTING: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""{first byte of an array or map: (size of the count, values per element)}"""


def array_length(body: memoryview) -> int:
    """Return how many elements the array at the start of *body* claims, -1 when there is no array."""
    return -1 if (start := _array_start(body)) is None else start[0]


def array_spans(body: memoryview) -> list[memoryview]:
    """Return the elements of the array at the start of *body*, as many as are whole."""
    start = _array_start(body)
    if start is None:
        return []
    count, at = start
    spans: list[memoryview] = []
    while len(spans) < count and (end := _end_of_value(body, at)) is not None:
        spans.append(body[at:end])
        at = end
    return spans


def _array_start(body: memoryview) -> tuple[int, int] | None:
    """Return the count of the array and where its first element begins."""
    if len(body) >= 5 and body[0] == 0xDD:
        return int.from_bytes(body[1:5], "big"), 5
    if len(body) >= 3 and body[0] == 0xDC:
        return int.from_bytes(body[1:3], "big"), 3
    return (body[0] & 0x0F, 1) if len(body) and body[0] & 0xF0 == 0x90 else None


def _end_of_value(body: memoryview, at: int) -> int | None:
    """Return where the value at *at* ends, None when it does not end in *body* or is no msgpack."""
    to_pass = 1
    while to_pass:
        if at >= len(body):
            return None
        step = _step(body, at)
        if step is None:
            return None
        length, values = step
        at += length
        to_pass += values - 1
    return at if at <= len(body) else None


def _step(body: memoryview, at: int) -> tuple[int, int] | None:
    """Return the length of the value at *at* without the values it contains, and how many those are."""
    first = body[at]
    if first <= 0x7F or first >= 0xE0 or first in _NIL_AND_BOOLS:
        return 1, 0
    if first <= 0x8F:
        return 1, 2 * (first & 0x0F)
    if first <= 0x9F:
        return 1, first & 0x0F
    if first <= 0xBF:
        return 1 + (first & 0x1F), 0
    if size := _FIXED.get(first) or _FIXED_EXT.get(first):
        return 1 + size, 0
    if first in _COUNTED:
        size, beside = _COUNTED[first]
        return 1 + size + beside + int.from_bytes(body[at + 1 : at + 1 + size], "big"), 0
    if first in _NESTING:
        size, values = _NESTING[first]
        return 1 + size, values * int.from_bytes(body[at + 1 : at + 1 + size], "big")
    return None
