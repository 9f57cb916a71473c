"""Ranks that keep books of what they logged, and somebody who kills and stops everything at random."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from accelbus import host
from tests.support.disks import Limits
from tests.support.job import Job, Rank, wait_until

# The books are mapped: what was written before a SIGKILL stays. Issued before the call, kept after it.
RANK = """
import mmap
run = accelbus.init()
life = int(os.environ["LIFE"])
key = f"{run.rank}.{life}"
with open(f"{os.environ['ROOT']}/books.{key}", "r+b") as file:
    books = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")
number = 0
say("up")
while not os.path.exists(os.environ["ROOT"] + f"/stop.{key}") and not os.path.exists(os.environ["ROOT"] + "/stop"):
    for _ in range(5):
        books[0] = number = number + 1
        run.log({key: (number * 2654435761 + life * 97 + run.rank) % 4294967296 / 8}, step=number)
        books[1] = number
    if number % 50 == 0:
        statistics = run.statistics()
        books[2], books[3], books[4], books[5] = statistics.acked, statistics.reconnects, statistics.spilled, sum(statistics.dropped.values())
        books[6] = statistics.frames
    time.sleep(0.004)
run.finish()
"""


def value(rank: int, life: int, number: int) -> float:
    """Return what a rank logs as event *number* of one of its lives."""
    return (number * 2654435761 + life * 97 + rank) % 4294967296 / 8


class Books(NamedTuple):
    """What one life of a rank wrote down."""

    issued: int
    kept: int
    acked: int
    reconnects: int
    spilled: int
    dropped: int
    frames: int


class Chaos:
    """Three ranks, and faults drawn from *seed* for some seconds. At the end everything runs again."""

    RANKS: Final = 3

    def __init__(self, job: Job, seed: int) -> None:
        self.job = job
        self.faults: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._lives: Counter[int] = Counter()
        self._alive: dict[int, Rank] = {}
        self._doomed: set[int] = set()
        """Ranks that were killed or told to finish, and have not been revived."""
        self._stopped: dict[int, float] = {}
        """{pid: when it may go on}"""
        self._disk = Limits(lambda: [*(rank.pid for rank in self._alive.values()), *job.processes()])
        self._full_until = float("-inf")

    def run(self, seconds: float) -> None:
        """Start the ranks and make trouble."""
        for rank in range(self.RANKS):
            self._revive(rank)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self._random.uniform(0.02, 0.25))
            self._let_go(time.monotonic())
            kind = self._random.choices(*zip(*_WEIGHTS.items(), strict=True))[0]
            self.faults[kind] += getattr(self, f"_{kind}")()
            for rank in [rank for rank in self._doomed if self._alive[rank].process.poll() is not None]:
                self._revive(rank)
        self._let_go(float("inf"))
        for rank in list(self._doomed):
            self._alive[rank].wait()
            self._revive(rank)
        self._overtake()
        self._replace_bus()

    def last_lives(self) -> dict[int, Rank]:
        """{rank: its process}, all of them running."""
        return dict(self._alive)

    def books(self) -> dict[tuple[int, int], Books]:
        """{(rank, life): what it wrote down}"""
        found = {}
        for path in self.job.root.glob("books.*"):
            _, rank, life = path.name.split(".")
            found[int(rank), int(life)] = Books(*struct.unpack_from("7Q", path.read_bytes()))
        return found

    def _overtake(self) -> None:
        """Stop the bus process until ranks have written to the run directory what it has in its socket: then it comes twice."""
        wait_until(self._is_connected, 60, "frames of every rank")
        sent = {rank: self._newest(rank).frames for rank in self._alive}
        wait_until(lambda: all(self._newest(rank).frames > before for rank, before in sent.items()), 60, "more frames")
        pid = self._serving()
        os.kill(pid, signal.SIGSTOP)
        spilled = {rank: self._newest(rank).spilled for rank in self._alive}
        # The first more may be of a spill before.
        wait_until(lambda: all(self._newest(rank).spilled > before + 1 for rank, before in spilled.items()), 60, "spills")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: self.job.status().get("updated_ns", 0) > time.time_ns() - 5e8, 60, "a report")
        after = {rank: self._newest(rank).issued for rank in self._alive}
        wait_until(lambda: all(self._newest(rank).acked > issued for rank, issued in after.items()), 60, "acks of what came after")

    def _is_connected(self) -> bool:
        self._disk.clear()  # a bus process may have been on its way from a rank that could not write when that ended
        return all(self._newest(rank).frames for rank in self._alive)

    def _replace_bus(self) -> None:
        """Kill the bus process and wait until a rank has met the next one."""
        met = {rank: self._newest(rank).reconnects for rank in self._alive}
        os.kill(self._serving(), signal.SIGKILL)
        wait_until(lambda: any(self._newest(rank).reconnects > before for rank, before in met.items()), 60, "another bus process")

    def _serving(self) -> int:
        """Return the bus process that serves; another one may just be finding out that it is not needed."""

        def reports() -> int:
            self._disk.clear()
            status = self.job.status()
            is_fresh = status.get("state") == "open" and time.time_ns() - status["updated_ns"] < 5e8
            return status["bus"]["pid"] if is_fresh and host.process_exists(status["bus"]["pid"]) else 0

        return int(wait_until(reports, 60, "a bus process that reports"))

    def _newest(self, rank: int) -> Books:
        return self.books().get((rank, self._lives[rank]), Books(0, 0, 0, 0, 0, 0, 0))

    def _revive(self, rank: int) -> None:
        self._lives[rank] += 1
        self._doomed.discard(rank)
        (self.job.root / f"books.{rank}.{self._lives[rank]}").write_bytes(bytes(4096))
        (self._alive[rank],) = self.job.start(RANK, first=rank, world_size=self.RANKS, LIFE=str(self._lives[rank]))

    def _any_rank(self) -> int:
        return self._random.randrange(self.RANKS)

    # Faults; each returns whether it found a victim.

    def _kill_rank(self) -> bool:
        self._kill(self._any_rank())
        return True

    def _kill_all_ranks(self) -> bool:
        for rank in self._alive:
            self._kill(rank)
        return True

    def _finish_rank(self) -> bool:
        rank = self._any_rank()
        self._doomed.add(rank)
        self.job.signal_file(f"stop.{rank}.{self._lives[rank]}")
        return True

    def _stop_rank(self) -> bool:
        return self._stop(self._alive[self._any_rank()].pid)

    def _kill_bus(self) -> bool:
        return self._signal(self.job.bus_pid(), signal.SIGKILL)

    def _stop_bus(self) -> bool:
        return self._stop(self.job.bus_pid())

    def _end_bus(self) -> bool:
        return self._signal(self.job.bus_pid(), signal.SIGTERM)

    def _kill_worker(self) -> bool:
        return self._signal(next(iter(self.job.worker_pids()), None), signal.SIGKILL)

    def _stop_worker(self) -> bool:
        return self._stop(next(iter(self.job.worker_pids()), None))

    def _kill(self, rank: int) -> None:
        self._doomed.add(rank)
        self._alive[rank].kill()

    def _fill_disk(self) -> bool:
        if any("up" not in rank.lines for rank in self._alive.values()):
            return False  # a rank that finds no room for a spool keeps its events in memory: a kill loses them, as it says
        self._full_until = time.monotonic() + self._random.uniform(0.1, 1.0)
        self._disk.fill()
        return True

    def _stop(self, pid: int | None) -> bool:
        if pid is not None:
            self._stopped[pid] = time.monotonic() + self._random.uniform(0.1, 1.5)
        return self._signal(pid, signal.SIGSTOP)

    def _let_go(self, now: float) -> None:
        for pid in [pid for pid, until in self._stopped.items() if until <= now]:
            del self._stopped[pid]
            self._signal(pid, signal.SIGCONT)
        if self._full_until <= now:
            # Always: a bus process that was started meanwhile has inherited the limit.
            self._disk.clear()

    @staticmethod
    def _signal(pid: int | None, number: int) -> bool:
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True


_WEIGHTS: Final = {
    "kill_rank": 4, "kill_all_ranks": 1, "finish_rank": 2, "stop_rank": 2, "kill_bus": 4, "stop_bus": 3, "end_bus": 1, "kill_worker": 3,
    "stop_worker": 2, "fill_disk": 2,
}  # fmt: skip


def segments(journal: Path) -> int:
    """Return how many times a writer went on in another segment."""
    return sum(max(0, len(list(writer.glob("*.seg"))) - 1) for writer in journal.iterdir())
