"""Values as JSON, which has no NaN: how a number that is not finite is written, wherever this package writes lines.

It is one of the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which ``float()`` understands, and the line names its key, so
that it differs from null and from text::

    {"step":21,"values":{"loss":"NaN","note":"NaN"},"non_finite":["loss"]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

_encode: Final = msgspec.json.Encoder().encode


def json_line(line: dict[str, Any], *, default: Callable[[Any], Any] | None = None, names: bool = True) -> bytes:
    """Return *line*, whose ``values`` may hold anything that is logged, as one line of valid JSON.

    Fast for what is usual. msgspec writes NaN as null, so a line with a null gets a second look.

    Args:
        line: what is not finite outside its ``values`` is spelled out too, and not named.
        default: returns plain data for what JSON does not know; not given: that raises.
        names: list the keys of numbers that are not finite in ``non_finite``.

    Raises:
        TypeError: something in it is nothing JSON knows.
    """
    try:
        data = _encode(line)
    except (TypeError, ValueError, OverflowError):
        # Integers beyond 64 bits and lone surrogates, which the json module takes; the rest is for *default*.
        return _odd_line(line, default, names=names)
    return data + b"\n" if b"null" not in data else _odd_line(line, default, names=names)


def spelled_out(value: Any) -> Any:
    """Return *value* with its numbers that are not finite as texts, and all keys as text."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): spelled_out(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled_out(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _odd_line(line: dict[str, Any], default: Callable[[Any], Any] | None, *, names: bool) -> bytes:
    spelled = spelled_out(line)
    values = line.get("values")
    if names and isinstance(values, Mapping):
        # The texts of keys, in the order of the values.
        non_finite = [key for key, value in zip(spelled["values"], values.values(), strict=True) if _has_non_finite(value)]
        if non_finite:
            spelled["non_finite"] = non_finite
    return json.dumps(spelled, separators=(",", ":"), allow_nan=False, default=default).encode() + b"\n"


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_non_finite, value))
    return isinstance(value, float) and not math.isfinite(value)


__all__ = ["json_line", "spelled_out"]
