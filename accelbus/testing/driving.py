"""Trackers made and fed as delivery does it, here or in a process of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from accelbus.rundir import RunRecord
from accelbus.tracking import GeneralTracker, Row, RunInfo, adapted, load_tracker_class, make_tracker

EPOCH_NS: Final = 1_767_139_200_000_000_000
"""Wall clock of the rows in these tests: in the past, so that a tracker's own clock shows."""


def state_dir(logging_dir: Path) -> Path:
    """Return where `SinkContract` lets a tracker keep its ids and caches."""
    return logging_dir.with_name(logging_dir.name + "-state")


def environment_of(tracker_class: type[Any], directory: Path) -> dict[str, str]:
    """Return what the class wants to be set before its package is imported."""
    wanted = getattr(tracker_class, "environment", None)
    return dict(wanted(directory, os.environ)) if callable(wanted) else {}


def made(tracker_class: type[Any], logging_dir: Path, init_kwargs: Mapping[str, Any], *, resumed: bool = False) -> GeneralTracker:
    """Return a tracker as delivery makes one."""
    run_id = f"contract-{logging_dir.name}"
    tracker = adapted(make_tracker(tracker_class, RunRecord(run_id=run_id, project="contract"), logging_dir, init_kwargs))
    tracker.run_info = RunInfo(run_id, "contract", run_id, resumed=resumed, state_dir=state_dir(logging_dir), output_dir=logging_dir)
    return tracker


def row_of(step: int, values: Mapping[str, Any], attempt: int = 0) -> Row:
    """Return a row with the time that belongs to its step."""
    return Row(step, dict(values), EPOCH_NS + step * 1_000_000_000, attempt)


def live(path: str, logging_dir: str, init_kwargs: dict[str, Any], script: Iterable[str]) -> None:
    """What the children of `SinkContract` do: end as told with ``["feed"]``, else kill themselves."""
    # As in delivery, what a library prints is no report.
    report = os.dup(1)
    os.dup2(2, 1)
    tracker_class = load_tracker_class(path)
    os.environ.update(environment_of(tracker_class, state_dir(Path(logging_dir))))
    tracker = made(tracker_class, Path(logging_dir), init_kwargs)
    tracker.restore({})
    tracker.start()
    if script == ["feed"]:
        for line in sys.stdin:
            step, values = json.loads(line)
            tracker.log_batch([row_of(step, values)])
            os.write(report, b"ok\n")
        tracker.finish()
        return
    tracker.log_batch([row_of(step, {"损失": float(step)}) for step in range(10)])
    for order in script:
        if order == "log":
            tracker.log_batch([row_of(step, {"损失": -1.0}) for step in range(10, 20)])
        if order in {"flush", "checkpoint"}:
            tracker.flush()
        if order == "checkpoint":
            os.write(report, json.dumps(tracker.checkpoint()).encode() + b"\n")
    os.kill(os.getpid(), signal.SIGKILL)


__all__ = ["EPOCH_NS", "environment_of", "live", "made", "row_of", "state_dir"]
