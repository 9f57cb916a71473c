"""Cut a call that is too large for one event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from accelbus.digest import digest
from accelbus.values.rules import Encoder, encoder

_EVENT_OVERHEAD: Final = 64
"""Bytes around the values of an event: array, tag, time, step and counter."""
_ENCODER: Final = encoder()


class Pieces(NamedTuple):
    """One call in pieces. Together they hold every value once."""

    parts: list[dict[str, Any]]
    """Each small enough for an event."""
    large: dict[str, Any]
    """Values that are too large even alone."""


def split(values: Mapping[str, Any], limit_bytes: int, encoder: Encoder | None = None) -> Pieces:
    """Cut *values*, as `sanitise` returns them, into events of at most *limit_bytes*.

    A key that takes more than a quarter of an event is shortened to its beginning and a hash, so that an event can name it.
    """
    encode = (encoder or _ENCODER).encode
    room = limit_bytes - _EVENT_OVERHEAD
    parts: list[dict[str, Any]] = []
    large: dict[str, Any] = {}
    left = 0
    for full_key, value in values.items():
        key = _shortened(full_key, limit_bytes // 4)
        size = len(encode(key)) + len(encode(value))
        if size > room:
            large[key] = value
            continue
        if size > left or not parts:
            parts.append({})
            left = room
        parts[-1][key] = value
        left -= size
    return Pieces(parts, large)


def _shortened(key: str, limit_bytes: int) -> str:
    encoded = key.encode()
    if len(encoded) <= limit_bytes:
        return key
    return f"{key[: limit_bytes // 8]}…#{digest(encoded, 8).hex()}"
