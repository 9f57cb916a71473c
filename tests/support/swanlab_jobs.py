"""What tests of the SwanLab tracker do in processes of their own: ``python -m tests.support.swanlab_jobs JOB BASE ARGUMENT``."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

from accelbus.tracking import Row, RunInfo
from accelbus_sinks import _swanlab_core, _swanlab_run, swanlab
from accelbus_sinks.swanlab import SwanLabTracker

STAGES = {
    "opened": (swanlab, "attach"),
    "attached": (_swanlab_run, "merge"),
    "merged": (_swanlab_core.SwanLabCore, "continue_file"),
    "continued": (swanlab.shutil, "rmtree"),
}
"""{stage of start: what comes after it}"""


def tracker_of(base: Path, **arguments: Any) -> SwanLabTracker:
    """Return a tracker that is not started."""
    tracker = SwanLabTracker("digits", **arguments)
    tracker.run_info = RunInfo("r1", "digits", "first", "sweep", ("baseline",), "why", state_dir=base / "state", output_dir=base / "output")
    return tracker


def rows_of(steps: range, attempt: int = 0, offset: float = 0.0) -> list[Row]:
    return [Row(step, {"loss": step + offset, "note": f"step {step}"}, 10**18 + step * 10**9, attempt) for step in steps]


def killed_in_start(base: Path, argument: str) -> None:
    """Die at a stage of start."""
    stage, _, checkpoint = argument.partition(" ")
    place, name = STAGES[stage]
    setattr(place, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    tracker = tracker_of(base, mode="offline")
    tracker.restore(json.loads(checkpoint))
    tracker.start()


def left_alone(base: Path, argument: str) -> None:
    """Log, and leave without a word."""
    tracker = tracker_of(base, mode="offline")
    tracker.start()
    tracker.log_batch(rows_of(range(3)))
    tracker.flush()
    report(tracker.checkpoint())


def killed_online(base: Path, argument: str) -> None:
    """Log 20 steps up to a cursor, five more that arrive, and one that does not; then die."""
    tracker = tracker_of(base)
    tracker.restore({})
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log_batch(rows_of(range(20)))
    tracker.flush()
    report(tracker.checkpoint())
    tracker.log_batch(rows_of(range(20, 25)))
    tracker.flush()
    tracker.log_batch(rows_of(range(25, 26)))
    os.kill(os.getpid(), signal.SIGKILL)


def resumed_online(base: Path, checkpoint: str) -> None:
    """Log again what was behind the cursor, and more, and a later attempt at earlier steps."""
    tracker = tracker_of(base)
    tracker.restore(json.loads(checkpoint))
    tracker.start()
    tracker.log_batch(rows_of(range(20, 30)))
    tracker.log_batch(rows_of(range(28, 32), attempt=1, offset=0.5))
    report({"url": tracker.url})
    tracker.finish("failed")


def refused_online(base: Path, argument: str) -> None:
    """Log what the server takes, what it does not take, and what it takes, a flush each."""
    tracker = tracker_of(base)
    tracker.tell_user = (said := []).append
    tracker.start()
    refused = []
    for row in (
        Row(1, {"loss": 1.0}, 10**18),
        Row(2, {"bad": 2.0, "word": "x"}, 10**18, attempt=3),
        Row(3, {"loss": math.inf}, 10**18),
        Row(4, {"loss": 4.0}, 10**18),
    ):
        tracker.log_batch([row])
        tracker.log_console([f"line {row.step}"])
        tracker.flush()
        refused.append(tracker.refused_rows())
    tracker.finish("finished")
    report({"refused": refused, "then": tracker.refused_rows(), "said": said})


def report(value: Any) -> None:
    os.write(int(os.environ["REPORT"]), json.dumps(value).encode())


if __name__ == "__main__":
    os.environ["REPORT"] = str(os.dup(1))
    os.dup2(2, 1)
    globals()[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
