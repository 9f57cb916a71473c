"""The seam for experiment trackers: names and arguments of ``accelerate.tracking``, trackers in processes of their own.

::

    base.py        GeneralTracker: the interface and its hooks
    choosing.py    LoggerType and what selects trackers, under Accelerate's names
    foreign.py     trackers written for Accelerate, behind the same hooks
    given.py       trackers given as class or instance, and how they get into their process
    ranks.py       trackers of which every rank has one
    media.py       hooks for images, tables, files, …, with fallbacks
    registry.py    which trackers there are

The classes of the built-in trackers (``WandBTracker``, …) are here too; the package of a tracker is imported when its class is.
"""

from __future__ import annotations

from typing import Any

from accelbus.tracking.base import GeneralTracker, RefusedRow, Row, RunInfo
from accelbus.tracking.choosing import LoggerType, filter_trackers, get_available_trackers
from accelbus.tracking.foreign import adapted
from accelbus.tracking.given import Crossing, cross, rebuild, separate
from accelbus.tracking.ranks import name_and_rank, sink_of_rank, wants_every_rank
from accelbus.tracking.registry import (
    BUILT_IN,
    ENTRY_POINTS,
    TrackerSpec,
    extend_path,
    finish_with_status,
    load_tracker_class,
    make_tracker,
    overrides,
    register_tracker_class,
    registered,
    resolve,
)


def __getattr__(name: str) -> Any:
    tracker = next((spec.name for spec in BUILT_IN.values() if spec.class_name == name), None)
    if tracker is None:
        raise AttributeError(f"module 'accelbus.tracking' has no attribute {name!r}")
    return load_tracker_class(tracker)


__all__ = [
    "BUILT_IN",
    "ENTRY_POINTS",
    "Crossing",
    "GeneralTracker",
    "LoggerType",
    "RefusedRow",
    "Row",
    "RunInfo",
    "TrackerSpec",
    "adapted",
    "cross",
    "extend_path",
    "filter_trackers",
    "finish_with_status",
    "get_available_trackers",
    "load_tracker_class",
    "make_tracker",
    "name_and_rank",
    "overrides",
    "rebuild",
    "register_tracker_class",
    "registered",
    "resolve",
    "separate",
    "sink_of_rank",
    "wants_every_rank",
]
