"""A value that was on its way when its event was written: what stands in its place, and how readers learn what it became.

The mark is a msgpack extension with a number that is unique to the producer. A `accelbus.events.Fill` of the same producer gives the
value for the number; it may come before its event, because another thread writes it.
"""

from __future__ import annotations

from typing import Final

import msgspec

EXTENSION: Final = 3


def mark(token: int) -> msgspec.msgpack.Ext:
    """Return what stands for the value of *token*."""
    return msgspec.msgpack.Ext(EXTENSION, token.to_bytes(8, "little"))


def token_of(value: object) -> int | None:
    """Return the token in *value*, None if it is no mark."""
    if type(value) is not msgspec.msgpack.Ext or value.code != EXTENSION:
        return None
    return int.from_bytes(bytes(value.data), "little")


__all__ = ["EXTENSION", "mark", "token_of"]
