"""Hyperparameters within W&B's limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from accelbus_sinks._config import shorten, spelled_out, text_of

CONFIG_BYTES: Final = 10 * 1024 * 1024
"""W&B's limit is 15 MB for everything, its own additions included."""
_LENGTHS: Final = (10_000, 1_000, 100, 10)
"""Characters left of a value that is too long, the first that makes the whole fit."""


class FittedConfig(NamedTuple):
    """A configuration as W&B takes it."""

    values: dict[str, Any]
    is_cut: bool


def fitted(config: Mapping[str, Any]) -> FittedConfig:
    """Return *config* nested as it is, with numbers that are not finite as text (W&B makes null of NaN), and within W&B's limit."""
    values = {f"logged/{key}" if key == "_wandb" else key: spelled_out(value) for key, value in config.items()}
    if _size(values) <= CONFIG_BYTES:
        return FittedConfig(values, is_cut=False)
    for length in _LENGTHS:
        values = {key: shorten(text_of(value), length) if _size(value) > length else value for key, value in values.items()}
        if _size(values) <= CONFIG_BYTES:
            break
    return FittedConfig(values, is_cut=True)


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value, enc_hook=str))


__all__ = ["FittedConfig", "fitted"]
