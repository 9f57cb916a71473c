"""Accelerate's names for which trackers there are and which were chosen."""

from __future__ import annotations

import enum
import os
from typing import Any

from accelbus.tracking.given import separate
from accelbus.tracking.registry import available, resolve


class _ByValue(enum.EnumMeta):
    def __contains__(cls, value: object) -> bool:
        """Whether *value* is a member or a member's value, on every version of Python."""
        return value in cls._value2member_map_


class LoggerType(enum.StrEnum, metaclass=_ByValue):
    """Names of the built-in trackers. ``log_with`` takes them as well as plain names."""

    ALL = "all"
    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    COMETML = "comet_ml"
    MLFLOW = "mlflow"
    CLEARML = "clearml"
    DVCLIVE = "dvclive"
    SWANLAB = "swanlab"
    JSONL = "jsonl"

    @classmethod
    def list(cls) -> list[str]:
        """Return the names."""
        return [member.value for member in cls]


def get_available_trackers() -> list[str]:
    """Return the names of the trackers that ``log_with="all"`` stands for: installed, registered, and from entry points."""
    return list(dict.fromkeys(available()))


def filter_trackers(log_with: Any, logging_dir: str | os.PathLike[str] | None = None) -> list[Any]:
    """Return the trackers of *log_with*, names in place of what stands for them, each once; classes and instances as they are.

    Args:
        log_with: names, members of `LoggerType`, tracker classes, trackers; None for none.
        logging_dir: taken for Accelerate's sake; every run has a directory.

    Raises:
        ConfigurationError: one of them is no tracker, unknown, or not installed; the message says which are known or how to install
            it. It is a ValueError.
    """
    if log_with is None:
        return []
    names, given = separate(log_with)
    return [given.get(name, name) for name in resolve(names, given=given)]


__all__ = ["LoggerType", "filter_trackers", "get_available_trackers"]
