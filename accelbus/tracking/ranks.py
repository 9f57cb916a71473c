"""Trackers of which every rank has one: ``main_process_only = False``, or the option ``per_rank``.

Each is a sink of its own, called ``<name>@rank<number>``, which gets what that rank logged, as it logged it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

MOST: Final = 64
"""Ranks that can have a tracker each: every one is a process on the head node."""
_RANKED: Final = re.compile(r"(?P<name>.+)@rank(?P<rank>\d+)")


def sink_of_rank(name: str, rank: int) -> str:
    """Return what the tracker *name* of *rank* is called."""
    return f"{name}@rank{rank}"


def name_and_rank(sink: str) -> tuple[str, int | None]:
    """Return (the tracker's name, whose it is); None for a tracker of all ranks."""
    found = _RANKED.fullmatch(sink)
    return (found["name"], int(found["rank"])) if found else (sink, None)


def wants_every_rank(tracker: Any) -> bool:
    """Whether *tracker*, a class or an instance, says that every rank is to have one.

    Not those that come with Accelerate: its W&B, Trackio and SwanLab trackers say so, and its ``Accelerator`` makes them in the main
    process all the same.
    """
    kind = tracker if inspect.isclass(tracker) else type(tracker)
    return getattr(tracker, "main_process_only", True) is False and kind.__module__.partition(".")[0] != "accelerate"


__all__ = ["MOST", "name_and_rank", "sink_of_rank", "wants_every_rank"]
