"""How many points per second does each tracker take through its sink, and how many from the library called in a loop?

A run of steps of four metrics, in the tracker's offline mode. Timed is everything from the first of these steps until all of them are
durable: the calls, and the end of the run (`GeneralTracker.finish`, ``wandb.finish``, ``SummaryWriter.close``, ...; for W&B also the end
of the service that writes its file). Opening the run and one step before are not. The sink gets its rows as delivery hands them over
when many are waiting: as many in a call as it takes in half a second, a flush and a checkpoint every second. CPU is that of the process and of all processes
that it starts. Each side reads back every one of its points with the tracker's own reader.

Ratios above 1: the sink takes more. Bars: TensorBoard 15, MLflow 12, all others 0.9.
"""

from __future__ import annotations

import functools
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bench import cpu, harness
from bench.harness import Bench, Numbers, Result
from bench.plain import LIBRARIES, Values
from bench.readers import Stored, check, points


class Case(NamedTuple):
    """One tracker."""

    name: str
    """As in ``log_with``."""
    steps: int
    """Some seconds of the library's own calls."""
    quick_steps: int
    bar: float = 0.9
    """Least ratio of points per second."""
    init_kwargs: Mapping[str, Any] = MappingProxyType({})
    environ: Mapping[str, str] = MappingProxyType({})
    """Of both sides; ``{}`` stands for the directory of the run."""
    takes_directory: bool = False


CASES = (
    Case("tensorboard", 50_000, 5_000, 15.0, takes_directory=True),
    Case("wandb", 20_000, 2_000, init_kwargs={"mode": "offline"}),
    Case("trackio", 20_000, 2_000, environ={"TRACKIO_DIR": "{}/trackio"}),
    Case(
        "mlflow", 3_000, 300, 12.0,
        environ={"MLFLOW_TRACKING_URI": "sqlite:///{}/mlflow.db", "MLFLOW_DISABLE_TELEMETRY": "true"},
    ),
    Case("comet_ml", 10_000, 1_000, init_kwargs={"online": False}),
    Case("aim", 4_000, 400, takes_directory=True),
    Case("clearml", 60, 30, environ={"CLEARML_OFFLINE_MODE": "1", "CLEARML_CACHE_DIR": "{}/state/clearml"}),
    Case("swanlab", 10_000, 1_000, init_kwargs={"mode": "offline"}),
    Case("dvclive", 1_000, 100),
)  # fmt: skip


Feed = Callable[[int, int], None]
"""Logs the steps from a first one up to an end."""
Side = Callable[[Case, Stored, Sequence[Values]], tuple[Feed, Callable[[], Any]]]
"""Opens a run of a case, for steps of values; returns what feeds them and what ends the run."""


def through_sink(case: Case, where: Stored, logged: Sequence[Values]) -> tuple[Feed, Callable[[], Any]]:
    """The sink, as delivery drives it."""
    from accelbus.config import Tuning
    from accelbus.tracking import Row, RunInfo

    tuning = Tuning()
    kind = _sink_class(case, where)
    tracker = kind("bench", where.output, **case.init_kwargs) if case.takes_directory else kind("bench", **case.init_kwargs)
    tracker.run_info = RunInfo("bench-run", "bench", "bench-run", state_dir=where.state, output_dir=where.output)
    tracker.restore({})
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    started_ns = time.time_ns()
    rows = [Row(step, values, started_ns + step) for step, values in enumerate(logged)]

    def feed(first: int, end: int) -> None:
        size, flushed = 1, time.monotonic()
        while first < end:
            began = time.monotonic()
            tracker.log_batch(rows[first : min(end, first + size)])
            first += size
            now = time.monotonic()
            # As `accelbus.delivery.feeder` does.
            if now - began > tuning.call_seconds:
                size = max(1, size // 2)
            elif now - began < tuning.call_seconds / 4:
                size = min(tuning.call_rows, size * 2)
            if now - flushed > tuning.cursor_interval:
                tracker.flush()
                tracker.checkpoint()
                flushed = time.monotonic()

    def end() -> None:
        tracker.finish("finished")
        if case.name == "wandb":
            import wandb

            wandb.teardown()
        gc.collect()  # Aim closes its files when nobody has the run any more

    return feed, end


def plainly(case: Case, where: Stored, logged: Sequence[Values]) -> tuple[Feed, Callable[[], Any]]:
    """The library's own calls in a loop."""
    log, end = LIBRARIES[case.name](where)

    def feed(first: int, end: int) -> None:
        for step in range(first, end):
            log(logged[step], step)

    return feed, end


def measure(case: Case, open_side: Side, quick: bool) -> Numbers:
    """Return the numbers of one side of *case*."""
    steps = case.quick_steps if quick else case.steps
    logged = [_values(step) for step in range(steps + 1)]
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-", ignore_cleanup_errors=True) as directory:
        where = Stored(Path(directory, "output"), Path(directory, "state"))
        for path in where:
            path.mkdir()
        os.environ.update({name: text.replace("{}", directory) for name, text in case.environ.items()})
        feed, end = open_side(case, where, logged)
        feed(0, 1)
        gc.collect()
        used, began = cpu.seconds(), time.perf_counter()
        feed(1, steps + 1)
        fed = time.perf_counter()
        end()
        ended = time.perf_counter()
        used = cpu.seconds() - used
        check(points(case.name, where), {(step, key): value for step, row in enumerate(logged) for key, value in row.items()}, case.name)
    count = steps * len(logged[0])
    return {"points_per_s": count / (ended - began), "points_per_cpu_s": count / used, "end_s": ended - fed, "n": float(count)}


def report(results: Sequence[Result]) -> str:
    """Return a table: a line for each tracker."""
    sides = {result.subject: result for result in results}
    lines = [f"{'':<12} {'points/s':>10} {'plain':>10}   {'ratio':>6}  {'(spread)':<15} {'per CPU s':>10} {'plain':>10}   {'ratio':>6}"]
    for case in CASES:
        if f"{case.name}: sink" not in sides:
            continue
        sink, plain = sides[f"{case.name}: sink"], sides[f"{case.name}: plain"]
        cells = []
        for measure_name in ("points_per_s", "points_per_cpu_s"):
            ours, theirs = sink.of(measure_name), plain.of(measure_name)
            low, middle, high = harness.spread([mine / its for mine, its in zip(ours, theirs, strict=True)])
            spread = f"({low:.2f} … {high:.2f})"
            cells.append(f"{statistics.median(ours):>10,.0f} {statistics.median(theirs):>10,.0f}   {middle:>5.2f}x  {spread:<15}")
        lines.append(f"{case.name:<12} {' '.join(cells)} bar {case.bar:g}")
    return "\n".join(lines)


def _sink_class(case: Case, where: Stored) -> Any:
    """Import the sink, in its environment; what the case says comes first, as a user's word does."""
    from accelbus.tracking import load_tracker_class

    kind = load_tracker_class(case.name)
    for name, value in kind.environment(where.state, os.environ).items():
        os.environ.setdefault(name, value)
    return kind


def _values(step: int) -> dict[str, float]:
    return {"loss": 1.0 / (step + 1), "accuracy": step * 1e-3, "lr": 1e-3, "grad_norm": 1.5 + step % 7}


SIDES: dict[str, Side] = {"sink": through_sink, "plain": plainly}

BENCH = Bench(
    question="points per second of steps of 4 metrics, through the sink and with the library's own calls; offline, until durable",
    subjects={f"{case.name}: {name}": functools.partial(measure, case, side) for case in CASES for name, side in SIDES.items()},
    baselines={f"{case.name}: sink": f"{case.name}: plain" for case in CASES},
    ratio_of=("points_per_s", "points_per_cpu_s"),
    report=report,
    repeats=5,
    quick_repeats=1,
)
