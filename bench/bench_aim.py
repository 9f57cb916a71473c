"""What does a step of 4 metrics cost in a repository of Aim's, through the sink and with ``Run.track``?"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path

from bench.harness import Bench, Numbers

STEPS = 2000
QUICK_STEPS = 200
ROWS_PER_CALL = 500


def sink(quick: bool) -> Numbers:
    """`AimTracker.log_batch`."""
    from accelbus.tracking import Row, RunInfo
    from accelbus_sinks.aim import AimTracker

    steps = QUICK_STEPS if quick else STEPS
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-") as directory:
        tracker = AimTracker("bench", directory)
        tracker.run_info = RunInfo("bench", state_dir=Path(directory, "state"))
        tracker.start()
        rows = [Row(step, _values(step), 10**18 + step) for step in range(steps)]
        start = time.perf_counter()
        for first in range(0, steps, ROWS_PER_CALL):
            tracker.log_batch(rows[first : first + ROWS_PER_CALL])
        seconds = time.perf_counter() - start
        tracker.finish()
        # Aim closes its files when nobody has the run any more, and waits for ever for files that are gone.
        del tracker
        gc.collect()
    return {"us_per_step": seconds / steps * 1e6, "n": float(steps)}


def track(quick: bool) -> Numbers:
    """``Run.track`` once per value."""
    from aim import Repo, Run

    steps = QUICK_STEPS if quick else STEPS
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-") as directory:
        run = Run(repo=Repo.from_path(directory, init=True), system_tracking_interval=None, capture_terminal_logs=False)
        start = time.perf_counter()
        for step in range(steps):
            for name, value in _values(step).items():
                run.track(value, name=name, step=step)
        seconds = time.perf_counter() - start
        run.close()
        del run
        gc.collect()
    return {"us_per_step": seconds / steps * 1e6, "n": float(steps)}


def _values(step: int) -> dict[str, float]:
    return {"loss": 1.0 / (step + 2), "accuracy": step * 1e-3, "lr": 1e-3, "grad_norm": 1.5}


BENCH = Bench(
    question="Aim in files: a step of 4 metrics",
    subjects={"sink": sink, "track": track},
    baselines={"sink": "track"},
    ratio_of=("us_per_step",),
    repeats=5,
)
