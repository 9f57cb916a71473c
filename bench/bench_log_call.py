"""What does one ``run.log`` of four floats cost, against encoding the same event with msgspec and nothing else?

*warm*: bursts of calls at a rate that the pump keeps up with. *cold*: one call after each step of a real training loop, whose working set
has pushed everything of ours out of the caches. Times are of single calls and include reading the clock, which *empty* shows alone.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from bench.harness import Bench, Numbers, percentiles

VALUES = {"loss": 0.6931471805599453, "accuracy": 0.8125, "lr": 0.0003, "grad_norm": 1.4142135623730951}
BURST_CALLS = 500
BURST_INTERVAL = 0.025
WARM_UP_CALLS = 2_000
COLD_WARM_UP_STEPS = 20

Call = Callable[[int], Any]
"""What is measured; the argument is the step."""


@contextlib.contextmanager
def _empty() -> Iterator[Call]:
    yield lambda step: None


@contextlib.contextmanager
def _encode() -> Iterator[Call]:
    """Construct the event and encode it; not even the clock is read."""
    from accelbus.events import Metrics

    encode = msgspec.msgpack.Encoder().encode
    now = time.time_ns()
    yield lambda step: encode(Metrics(now, step, VALUES))


@contextlib.contextmanager
def _log(durability: str) -> Iterator[Call]:
    import accelbus

    with tempfile.TemporaryDirectory(prefix="accelbus-bench-") as directory:
        run = accelbus.init("bench", dir=directory, mode="offline", durability=durability, finish_timeout=0.0)
        log = run.log
        yield lambda step: log(VALUES, step=step)
        run.finish()
        dropped = sum(run.statistics().dropped.values())
        assert not dropped, f"{dropped} events were dropped while measuring"


def _warm(subject: Subject, quick: bool) -> Numbers:
    bursts = 40 if quick else 400
    durations = array("q", bytes(8 * bursts * BURST_CALLS))
    clock = time.perf_counter_ns
    with subject() as call:
        for step in range(WARM_UP_CALLS):
            call(step)
        index = 0
        for _ in range(bursts):
            time.sleep(BURST_INTERVAL)
            for step in range(index, index + BURST_CALLS):
                start = clock()
                call(step)
                durations[step] = clock() - start
            index += BURST_CALLS
    return percentiles(durations)


def _cold(subject: Subject, quick: bool) -> Numbers:
    steps = 60 if quick else 400
    train = _training_step()
    durations = array("q")
    clock = time.perf_counter_ns
    with subject() as call:
        for step in range(COLD_WARM_UP_STEPS + steps):
            train()
            start = clock()
            call(step)
            durations.append(clock() - start)
    return percentiles(durations[COLD_WARM_UP_STEPS:])


def _training_step() -> Callable[[], None]:
    """Return one forward, backward and optimizer step of a small convolutional network on scikit-learn's digits (about 15 ms)."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    targets = torch.tensor(digits.target)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 64, 256),
        nn.Linear(256, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    position = 0

    def step() -> None:
        nonlocal position
        batch = slice(position, position + 64)
        position = (position + 64) % (len(targets) - 64)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(images[batch]), targets[batch]))
        optimizer.step()

    return step


Subject = Callable[[], contextlib.AbstractContextManager[Call]]

SUBJECTS: dict[str, Subject] = {
    "empty call": _empty,
    "msgspec encoding alone": _encode,
    "run.log, process": lambda: _log("process"),
    "run.log, memory": lambda: _log("memory"),
}
LOOPS = {"warm": _warm, "cold": _cold}
LOGS = [f"{state}: run.log, {kind}" for state in LOOPS for kind in ("process", "memory")]

BENCH = Bench(
    question="run.log of 4 floats, ns per call; net: without the cost of an empty call",
    subjects={f"{state}: {name}": functools.partial(loop, subject) for state, loop in LOOPS.items() for name, subject in SUBJECTS.items()},
    baselines={log: f"{log[:4]}: msgspec encoding alone" for log in LOGS},
    floors={log: f"{log[:4]}: empty call" for log in LOGS},
)
