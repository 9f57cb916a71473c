"""Whatever is killed whenever: every point arrives, none is altered, and a file tracker has each once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from accelbus.delivery.ownership import read_owner
from accelbus.delivery.status import read_status
from accelbus.events import Metrics
from tests.support.deliveries import Run, kill, until

ROOT = Path(__file__).parents[3]
ROUNDS = 7
TUNING = {"silence_deadline": 1.0, "cursor_interval": 0.05}


class Oracle:
    """A run whose values are a function of step, rank and key, and the violence done to its delivery."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.chance = random.Random(seed)
        self.bus = self._start_bus()
        self.step = 0
        self.done: dict[str, int] = {}

    def expected(self) -> dict[int, dict[str, Any]]:
        return {step: {"loss": sum(_value(step, rank) for rank in range(self.run.ranks)) / self.run.ranks} for step in range(self.step)}

    async def act(self) -> None:
        """Log some steps, ranks in any order and some late, then hurt somebody."""
        for _ in range(self.chance.randrange(1, 40)):
            ranks = list(range(self.run.ranks))
            self.chance.shuffle(ranks)
            for rank in ranks:
                self.run.write(rank, [Metrics(time.time_ns(), self.step, {"loss": _value(self.step, rank)})])
            self.step += 1
        before = len(self.run.calls("calls.jsonl"))
        await until(lambda: len(self.run.calls("calls.jsonl")) > before, "delivery goes on", timeout=40.0)
        what = self.chance.choice(["kill worker", "kill worker", "stop worker", "kill bus", "kill both", "stop bus", "nothing"])
        self.done[what] = self.done.get(what, 0) + 1
        status = read_status(self.run.dir.sink(self.run.sink))
        pid = status.pid if status is not None else 0
        if what in ("kill worker", "kill both"):
            _signal(pid, signal.SIGKILL)
        if what == "stop worker":
            _signal(pid, signal.SIGSTOP)
        if what in ("kill bus", "kill both"):
            self.bus.kill()
            self.bus.wait()
            self.bus = self._start_bus()
        if what == "stop bus":
            # Another one is started while it sleeps, as after a lost heartbeat, and takes the sink when the lease is over.
            kill(self.bus.pid, signal.SIGSTOP)
            other = self._start_bus()
            generation = getattr(read_owner(self.run.dir.sink(self.run.sink)), "generation", 0)
            await until(
                lambda: getattr(read_owner(self.run.dir.sink(self.run.sink)), "generation", 0) > generation, "a new owner", timeout=40.0
            )
            kill(self.bus.pid, signal.SIGCONT)
            self.bus.kill()
            self.bus.wait()
            self.bus = other

    def _start_bus(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "tests.support.supervise", str(self.run.dir.path), json.dumps(TUNING)], cwd=ROOT)


def _value(step: int, rank: int) -> float:
    return step * 8.0 + rank


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if pid:
            kill(pid, number)


@pytest.mark.parametrize("tracker", ["ExactTracker", "BufferedTracker"])
async def test_every_point_arrives_whatever_is_killed(tmp_path, tracker):
    """Workers and supervisors are killed and stopped at random; the run is then closed and must be complete."""
    seed = int(os.environ.get("ACCELBUS_TEST_SEED", random.randrange(2**32)))
    print(f"ACCELBUS_TEST_SEED={seed}")
    run = Run(tmp_path, tracker, ranks=3)
    run.start()
    oracle = Oracle(run, seed)
    try:
        for _ in range(ROUNDS):
            await oracle.act()
        run.end()
        run.close()
        directory = run.dir.sink(run.sink)
        await until(lambda: (status := read_status(directory)) and status.state == "finished", "the end", timeout=60.0)
    finally:
        oracle.bus.kill()
        oracle.bus.wait()
    status = read_status(directory)
    assert status is not None
    run.check_books(status)
    assert status.values.pending == 0
    assert status.values.read == status.values.delivered == 3 * oracle.step
    assert run.merged() == oracle.expected()
    if tracker == "ExactTracker":
        assert [row["step"] for row in run.durable()] == list(range(oracle.step))
    assert len(run.calls("starts")) > 1, oracle.done
