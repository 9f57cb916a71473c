"""Hyperparameters for a tracker: flat, within its limits, and complete in a file where the limits are too tight."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from accelbus.durable import write_atomically
from accelbus.values import flatten
from accelbus.values.json_lines import spelled_out

ELLIPSIS: Final = "…"
"""Last character of a text that was cut."""


class FlatConfig(NamedTuple):
    """A configuration under flat names with ``/``."""

    values: dict[str, Any]
    shortened: tuple[str, ...] = ()
    """Names whose value was cut; `write_config` has them in full."""


def flat_config(config: Mapping[str, Any], *, longest: int | None = None, as_text: bool = False) -> FlatConfig:
    """Return *config* for a tracker without nesting.

    Numbers, bools and None are kept, lists become JSON; text is cut to *longest* characters.

    Args:
        config: nested plain data.
        longest: most characters of a text.
        as_text: every value becomes text, see `text_of`.
    """
    values: dict[str, Any] = {}
    shortened = []
    for name, value in flatten(config).items():
        shown = text_of(value) if as_text or not isinstance(value, bool | int | float | None) else value
        if isinstance(shown, str) and longest is not None and len(shown) > longest:
            shortened.append(name)
            shown = shorten(shown, longest)
        values[name] = shown
    return FlatConfig(values, tuple(shortened))


def text_of(value: Any) -> str:
    """Return *value* as text: text as it is, lists and mappings as JSON (with NaN and Infinity), the rest as Python prints it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def shorten(text: str, longest: int) -> str:
    """Return *text* with at most *longest* characters, the last of them an ellipsis where something was cut."""
    return text if len(text) <= longest else text[: longest - 1] + ELLIPSIS


def write_config(path: Path, config: Mapping[str, Any]) -> Path:
    """Write *config*, nested and complete, to the JSON file *path*, and return it. Numbers that are not finite are texts there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(spelled_out(config), indent=2, default=str)
    write_atomically(path, text.encode() + b"\n", mode=0o644)
    return path


__all__ = ["ELLIPSIS", "FlatConfig", "flat_config", "shorten", "spelled_out", "text_of", "write_config"]
