"""How long from `log` until an event is in the journal, and until its point can be read from the TensorBoard file?

*journal*: two ranks at 100 events/s each. The journal is followed from outside; what is counted is the moment at which an event can
be read there, at most 5 ms (the interval of looking) too late. *TensorBoard*: from the moment the last rank logged a step.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import ROOT, Bench, Numbers, percentiles

RANKS = 2
LOOK_INTERVAL = 0.005
PATIENCE = 30.0


def journal(quick: bool) -> Numbers:
    """Two ranks, an event every 10 ms."""
    from accelbus.config import Tuning
    from accelbus.events import Metrics
    from accelbus.journal.merge import JournalReader

    events = 100 if quick else 1000
    delays: list[int] = []
    with _ranks(events, 0.01, mode="offline") as run_dir:
        reader = JournalReader(run_dir / "journal", tuning=Tuning())

        def look() -> bool:
            now = time.time_ns()
            delays.extend(now - item.event.time_ns for item in reader.read(10_000) if isinstance(item.event, Metrics))
            return len(delays) >= RANKS * events

        _look_until(look, events * 0.01 + PATIENCE)
    return _in_ms(percentiles(delays))


def tensorboard(interval: float, quick: bool) -> Numbers:
    """Two ranks, a step every *interval* seconds."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    steps = 2 if quick else max(4, round(20 / interval))
    seen: dict[int, int] = {}
    with _ranks(steps, interval, mode="online", log_with="tensorboard") as run_dir:
        loaders: dict[Path, EventFileLoader] = {}

        def look() -> bool:
            for path in (run_dir / "tensorboard").rglob("*tfevents*"):
                loader = loaders.setdefault(path, EventFileLoader(str(path)))
                for event in loader.Load():
                    if any(value.tag == "sent" for value in event.summary.value):
                        seen.setdefault(event.step, time.time_ns())
            return len(seen) >= steps

        _look_until(look, steps * interval + PATIENCE)
        logged = _last_logged(run_dir)
    return _in_ms(percentiles([seen[step] - logged[step] for step in range(steps)]))


def _look_until(done: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < deadline, "not everything arrived"
        time.sleep(LOOK_INTERVAL)


@contextmanager
def _ranks(steps: int, interval: float, **settings: str) -> Iterator[Path]:
    """Start the ranks, yield the run directory, wait for their end."""
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-") as directory:
        run_id = f"bench-{uuid.uuid4().hex[:8]}"
        shared = {f"ACCELBUS_{key.upper()}": value for key, value in {"run_id": run_id, "dir": directory, **settings}.items()}
        processes = [
            subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-m", "bench.bench_latency", str(steps), str(interval)],
                cwd=ROOT,
                env={
                    **os.environ,
                    **shared,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(RANKS),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(RANKS),
                },
            )
            for rank in range(RANKS)
        ]
        run_dir = Path(directory) / run_id
        yield run_dir
        assert [process.wait(PATIENCE) for process in processes] == [0] * RANKS


def _last_logged(run_dir: Path) -> dict[int, int]:
    """Return {step: when the last rank logged it}, from the journal."""
    from accelbus.config import Tuning
    from accelbus.events import Metrics
    from accelbus.journal.merge import JournalReader

    reader = JournalReader(run_dir / "journal", tuning=Tuning())
    logged: dict[int, int] = {}
    while items := reader.read(10_000):
        for item in items:
            if isinstance(item.event, Metrics) and item.event.step is not None:
                logged[item.event.step] = max(logged.get(item.event.step, 0), item.event.time_ns)
    return logged


def _in_ms(numbers: Numbers) -> Numbers:
    return {measure: value if measure == "n" else value / 1e6 for measure, value in numbers.items()}


def _rank(steps: int, interval: float) -> None:
    import accelbus

    with accelbus.init("bench", finish_timeout=PATIENCE) as run:
        start = time.monotonic() + 0.5
        for step in range(steps):
            time.sleep(max(0.0, start + step * interval - time.monotonic()))
            run.log({"sent": step}, step=step)


BENCH = Bench(
    question="from log until it can be read, ms",
    subjects={
        "journal, 2 ranks, 100 events/s": journal,
        "TensorBoard, 1-second steps": functools.partial(tensorboard, 1.0),
        "TensorBoard, 10-second steps": functools.partial(tensorboard, 10.0),
    },
    repeats=3,
)


if __name__ == "__main__":
    _rank(int(sys.argv[1]), float(sys.argv[2]))
