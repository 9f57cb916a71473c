"""What does a step of 4 metrics cost in MLflow's SQLite, through the sink and with ``mlflow.log_metrics``?

The sink gets rows in calls of some hundred, as delivery hands them over when there are many.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import Bench, Numbers

STEPS = 2000
FLUENT_STEPS = 200
QUICK = 10
"""Divides the numbers of steps."""
ROWS_PER_CALL = 500


def sink(quick: bool) -> Numbers:
    """`MLflowTracker.log_batch`."""
    from accelbus.tracking import Row, RunInfo

    steps = STEPS // (QUICK if quick else 1)
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-") as directory:
        _use_database(directory)
        from accelbus_sinks.mlflow import MLflowTracker

        tracker = MLflowTracker("bench")
        tracker.run_info = RunInfo("bench", state_dir=Path(directory, "state"))
        tracker.start()
        rows = [Row(step, _values(step), 10**18 + step) for step in range(-1, steps)]
        tracker.log_batch(rows[:1])

        def feed() -> None:
            for first in range(1, len(rows), ROWS_PER_CALL):
                tracker.log_batch(rows[first : first + ROWS_PER_CALL])

        numbers = _timed(feed, steps)
        assert tracker.tracker is not None
        _check(tracker.tracker.info.run_id, steps + 1)
        tracker.finish()
    return numbers


def fluent(quick: bool) -> Numbers:
    """``mlflow.log_metrics`` once per step."""
    steps = FLUENT_STEPS // (QUICK if quick else 1)
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-") as directory:
        _use_database(directory)
        import mlflow

        mlflow.create_experiment("bench", artifact_location=directory)
        mlflow.set_experiment("bench")
        with mlflow.start_run() as run:
            mlflow.log_metrics(_values(-1), step=-1)

            def feed() -> None:
                for step in range(steps):
                    mlflow.log_metrics(_values(step), step=step)

            numbers = _timed(feed, steps)
        _check(run.info.run_id, steps + 1)
    return numbers


def _use_database(directory: str) -> None:
    os.environ.update(MLFLOW_TRACKING_URI=f"sqlite:///{directory}/mlflow.db", MLFLOW_DISABLE_TELEMETRY="true")


def _values(step: int) -> dict[str, float]:
    return {"loss": 1.0 / (step + 2), "accuracy": step * 1e-3, "lr": 1e-3, "grad_norm": 1.5}


def _timed(feed: Callable[[], None], steps: int) -> Numbers:
    start = time.perf_counter()
    feed()
    return {"us_per_step": (time.perf_counter() - start) / steps * 1e6, "n": float(steps)}


def _check(run_id: str, expected: int) -> None:
    from mlflow import MlflowClient

    found = len(MlflowClient().get_metric_history(run_id, "loss"))
    assert found == expected, f"{found} points, expected {expected}"


BENCH = Bench(
    question="MLflow on SQLite: a step of 4 metrics",
    subjects={"sink": sink, "log_metrics": fluent},
    baselines={"sink": "log_metrics"},
    ratio_of=("us_per_step",),
    repeats=5,
)
