"""What do nine trackers at once cost the processes that train, and does each of them get every point?

A real job: ``torchrun`` with two ranks, a small network under DDP, ten metrics logged in each rank at each step (the trackers get their
mean), every tracker offline. Compared are no tracker (``mode="disabled"``), twice, so that the difference of equal runs shows;
TensorBoard alone; and nine trackers. CPU time per step is that of the training process, all its threads included, around the loop of
training and logging; workers have the lowest priority. When the ranks have ended, each tracker's own reader finds what is stored: every
point must be there once, with its value. ``init`` is the time of that call in each rank, cold.
"""

from __future__ import annotations

import functools
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench import harness
from bench.harness import ROOT, Bench, Numbers, Result
from bench.readers import READERS, Stored, check, points

RANKS = 2
STEPS = 2_000
QUICK_STEPS = 200
WARM_UP_STEPS = 20
"""Not timed, and not logged."""
METRICS = ("loss", "accuracy", "lr", "grad_norm", "tokens", "perplexity", "entropy", "weight_norm", "data_time", "step_time")
JOB_SECONDS = 900.0
TRACKERS_SECONDS = 600.0
"""How long the main rank waits for the trackers at the end."""
NINE = tuple(READERS)
INIT_KWARGS = {"wandb": {"mode": "offline"}, "swanlab": {"mode": "offline"}, "comet_ml": {"online": False}}
SHOWN = ("cpu_ms_per_step", "wall_ms_per_step", "init_ms", "finish_s", "job_s")
OFF, ONE, ALL, OFF_AGAIN = "disabled", "one tracker", "nine trackers", "disabled again"


def job(trackers: Sequence[str], quick: bool) -> Numbers:
    """Run the job with *trackers* and return the means over its ranks."""
    steps = QUICK_STEPS if quick else STEPS
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-", ignore_cleanup_errors=True) as directory:
        where = Path(directory)
        began = time.monotonic()
        _torchrun(where, trackers, steps)
        seconds = time.monotonic() - began
        ranks = [msgspec.json.decode(path.read_bytes(), type=Numbers) for path in sorted(where.glob("rank-*.json"))]
        assert len(ranks) == RANKS, f"{len(ranks)} ranks have said what they measured"
        numbers = {name: statistics.fmean(rank[name] for rank in ranks) for name in ranks[0]}
        return {**numbers, "job_s": seconds, **_read_back(where, trackers, steps)}


def report(results: Sequence[Result]) -> str:
    """Return what CPU time, ``init`` and reading back say."""
    found = {result.subject: result for result in results}
    lines = [f"{'':<15}{''.join(f'{name:>27}' for name in SHOWN)}", *map(_line, results)]
    if {OFF, OFF_AGAIN} <= found.keys():
        same = [again / off for again, off in _pairs(found[OFF_AGAIN], found[OFF])]
        lines += ["", f"CPU time per step, {OFF_AGAIN} / {OFF}: {_spread(same)}"]
        for subject in (ONE, ALL):
            if subject in found:
                base = [statistics.fmean(pair) for pair in _pairs(found[OFF], found[OFF_AGAIN])]
                change = [mine / its for mine, its in zip(found[subject].of("cpu_ms_per_step"), base, strict=True)]
                lines.append(f"CPU time per step, {subject} / mean of the two: {_spread(change)}")
    if {ONE, ALL} <= found.keys():
        pairs = zip(found[ALL].of("init_ms"), found[ONE].of("init_ms"), strict=True)
        lines += ["", f"init, {ALL} / {ONE}: {_spread([mine / its for mine, its in pairs])}"]
    if ALL in found:
        lines += ["", *_stored(found[ALL])]
    return "\n".join(lines)


def _line(result: Result) -> str:
    cells = []
    for name in SHOWN:
        low, middle, high = harness.spread(result.of(name))
        cells.append(f"{f'{middle:.3g} ({low:.3g} … {high:.3g})':>27}")
    return f"{result.subject:<15}{''.join(cells)}"


def _stored(result: Result) -> list[str]:
    lines = [f"{'tracker':<12} {'points expected':>15} {'points read':>12}   (fewest of {len(result.numbers)} jobs)"]
    return lines + [f"{name:<12} {result.of('expected')[0]:>15,.0f} {min(result.of(f'read_{name}')):>12,.0f}" for name in NINE]


def _pairs(one: Result, other: Result) -> list[tuple[float, float]]:
    return list(zip(one.of("cpu_ms_per_step"), other.of("cpu_ms_per_step"), strict=True))


def _spread(ratios: Sequence[float]) -> str:
    low, middle, high = harness.spread(ratios)
    return f"{middle:.3f} ({low:.3f} … {high:.3f})"


def _torchrun(where: Path, trackers: Sequence[str], steps: int) -> None:
    """Run the job in *where*; raise when a rank fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "ACCELBUS_DIR": str(where / "runs"),
        "ACCELBUS_RUN_ID": "bench",
        "ACCELBUS_MODE": "online" if trackers else "disabled",
        "ACCELBUS_LOG_WITH": ",".join(trackers),
        "ACCELBUS_INIT_KWARGS": msgspec.json.encode({name: INIT_KWARGS[name] for name in INIT_KWARGS if name in trackers}).decode(),
        "ACCELBUS_FINISH_TIMEOUT": str(TRACKERS_SECONDS),
        "TRACKIO_DIR": str(where / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{where}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "CLEARML_OFFLINE_MODE": "1",
    }
    subprocess.run([*command, "-m", "bench.bench_nine", str(where), str(steps)], cwd=where, env=environ, check=True, timeout=JOB_SECONDS)  # noqa: S603  our own module


def _read_back(where: Path, trackers: Sequence[str], steps: int) -> Numbers:
    """Return how many points each tracker has; raise AssertionError unless they are those that were logged."""
    os.environ.update(TRACKIO_DIR=str(where / "trackio"), MLFLOW_TRACKING_URI=f"sqlite:///{where}/mlflow.db")
    expected = {
        (step, name): statistics.fmean(_value(index, step, rank) for rank in range(RANKS))
        for step, (index, name) in itertools.product(range(steps), enumerate(METRICS))
    }
    numbers: Numbers = {}
    for name in trackers:
        run = where / "runs" / "bench"
        found = points(name, Stored(run / name, run / "sinks" / name / "state"))
        print(f"{name}: {len(found)} of {len(expected)} points", flush=True)
        check(found, expected, name)
        numbers[f"read_{name}"] = float(len(found))
    return {**numbers, "expected": float(len(expected))}


def _value(index: int, step: int, rank: int) -> float:
    """Return a value whose mean over ranks is exact."""
    return step * 0.5 + index + 4.0 * rank


# In each rank


def _rank(where: str, steps: int) -> None:
    import torch
    from torch import distributed

    import accelbus

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    train = _training_step()
    for _ in range(WARM_UP_STEPS):
        train()
    distributed.barrier()
    began = time.perf_counter()
    run = accelbus.init("bench", config={"lr": 1e-3})
    inited = time.perf_counter()
    distributed.barrier()
    used, looped = time.process_time(), time.perf_counter()
    for step in range(steps):
        train()
        run.log({name: _value(index, step, rank) for index, name in enumerate(METRICS)}, step=step)
    used, looped = time.process_time() - used, time.perf_counter() - looped
    distributed.barrier()
    ended = time.perf_counter()
    run.finish()
    numbers = {
        "cpu_ms_per_step": used / steps * 1e3,
        "wall_ms_per_step": looped / steps * 1e3,
        "init_ms": (inited - began) * 1e3,
        "finish_s": time.perf_counter() - ended,
    }
    Path(where, f"rank-{rank}.json").write_bytes(msgspec.json.encode(numbers))
    dropped = sum(run.statistics().dropped.values())
    assert not dropped, f"{dropped} events were dropped"
    distributed.destroy_process_group()


def _training_step() -> Callable[[], None]:
    """Return a step of a small convolutional network under DDP: some 10 ms."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 64, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    images, targets = torch.rand(64, 1, 8, 8), torch.randint(10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(images), targets))
        optimizer.step()

    return step


BENCH = Bench(
    question=f"{len(NINE)} trackers at once, {RANKS} ranks, {len(METRICS)} metrics per step of DDP training: what the training processes pay",
    # The two without trackers at the ends: what drifts hits the others no more than them.
    subjects={
        OFF: functools.partial(job, ()),
        ONE: functools.partial(job, ("tensorboard",)),
        ALL: functools.partial(job, NINE),
        OFF_AGAIN: functools.partial(job, ()),
    },
    baselines={ONE: OFF, ALL: OFF},
    ratio_of=("cpu_ms_per_step", "wall_ms_per_step"),
    report=report,
    repeats=3,
    quick_repeats=1,
    subject_seconds=1_200.0,
)


if __name__ == "__main__":
    _rank(sys.argv[1], int(sys.argv[2]))
