"""A run whose journal a test writes itself, and its sinks, delivered by real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from accelbus import frame
from accelbus.blobs import BlobStore
from accelbus.config import Tuning
from accelbus.delivery.cursor import read_cursor
from accelbus.delivery.status import RankCounts, SinkStatus
from accelbus.events import ConfigUpdate, Metrics, RunClosed, RunEnd, RunStart, Tick
from accelbus.journal.segments import JournalWriter
from accelbus.media import Wrapper, pack
from accelbus.rundir import RunDir, RunRecord
from tests.support.trackers import lines

TRACKERS = "tests.support.trackers"

QUICK = Tuning(
    poll_interval=0.02,
    cursor_interval=0.1,
    retry_first=0.05,
    retry_max=0.4,
    status_interval=0.1,
    lease_interval=0.1,
    lease_expires=1.0,
    exclusion_patience=0.5,
    failures_of_last_row=4,
    worker_nice=0,
    stop_grace=0.5,
)

encode = msgspec.msgpack.Encoder().encode


class Run:
    """A run directory with a journal, written like a bus process does."""

    def __init__(self, path: Path, *sinks: str, ranks: int = 2, **arguments: Any) -> None:
        self.dir = RunDir(path / "run-1")
        self.dir.create()
        self.ranks = ranks
        self.sinks = tuple(sink if ":" in sink else f"{TRACKERS}:{sink}" for sink in sinks)
        self.outputs = {sink: path / "trackers" / sink.partition(":")[2] for sink in self.sinks}
        kwargs = {sink: {"directory": str(self.outputs[sink]), **arguments} for sink in self.sinks}
        self.record = RunRecord(run_id="run-1", project="digits", sinks=self.sinks, init_kwargs=kwargs, world_size=ranks)
        self.dir.write_record(self.record)
        self._writer = JournalWriter(self.dir.journal / "bus-test", tuning=Tuning())
        self._next: Counter[bytes] = Counter()
        self.logged: Counter[int] = Counter()
        """{rank: values logged}"""

    @property
    def sink(self) -> str:
        return self.sinks[0]

    @property
    def output(self) -> Path:
        return self.outputs[self.sink]

    def start(self, attempt: int = 0) -> None:
        for rank in range(self.ranks):
            self.write(rank, [RunStart(time.time_ns(), "run-1", rank, self.ranks, rank, "host", 1, launch=self._launch(attempt))], attempt)

    def log(self, *steps: int, attempt: int = 0, ranks: tuple[int, ...] | None = None) -> None:
        """Every rank logs a loss and an accuracy at each of *steps*; the mean of the losses over two ranks is step + 0.5."""
        for rank in range(self.ranks) if ranks is None else ranks:
            self.write(rank, [Metrics(time.time_ns(), step, {"loss": float(step + rank), "acc": 0.5}) for step in steps], attempt)
            self.logged[rank] += 2 * len(steps)

    def config(self, rank: int, values: dict[str, Any]) -> None:
        self.write(rank, [ConfigUpdate(time.time_ns(), values)])

    def media(self, *steps: int, rank: int = 0, **wrappers: Wrapper) -> None:
        """A rank logs media at each of *steps*, which is all that it logs there."""
        store = BlobStore(self.dir.blobs, f"rank-{rank}-{sum(self.logged.values())}", quota=10**9)
        packed = {key: pack(wrapper.to_media(store), store) for key, wrapper in wrappers.items()}
        self.write(rank, [Metrics(time.time_ns(), step, packed) for step in steps])
        self.logged[rank] += len(packed) * len(steps)

    def end(self, attempt: int = 0) -> None:
        for rank in range(self.ranks):
            self.write(rank, [RunEnd(time.time_ns(), "finished")], attempt)

    def close(self, status: str = "finished") -> None:
        self.records(RunClosed(time.time_ns(), status))

    def tick(self) -> None:
        self.records(Tick(time.time_ns()))

    def records(self, *records: Any) -> None:
        self._append(frame.RECORDS, b"bus process 0001", records, bytes(16))

    def write(self, rank: int, events: list[Any], attempt: int = 0) -> None:
        """Append events of a rank; none twice, none missing."""
        self._append(frame.EVENTS, f"rank {rank:4} try {attempt:2}".encode().ljust(16), events, self._launch(attempt))

    def _append(self, kind: int, producer: bytes, events: Any, launch: bytes) -> None:
        first = self._next[producer] + 1
        self._next[producer] += len(events)
        body = frame.join_events([encode(event) for event in events], len(events))
        self._writer.append([frame.pack(kind, body, producer=producer, launch=launch, first_seq=first, count=len(events))])

    @staticmethod
    def _launch(attempt: int) -> bytes:
        return f"launch {attempt:4}".encode().ljust(16)

    # What came of it

    def durable(self, sink: str = "") -> list[dict[str, Any]]:
        """Return the rows in the tracker's storage, in order."""
        return lines(self.outputs[sink or self.sink] / "durable.jsonl")

    def merged(self, sink: str = "") -> dict[int, dict[str, Any]]:
        """Return {step: values}, the last value of each key."""
        steps: dict[int, dict[str, Any]] = {}
        for row in self.durable(sink):
            steps.setdefault(row["step"], {}).update(row["values"])
        return steps

    def expected(self, *steps: int) -> dict[int, dict[str, float]]:
        mean = (self.ranks - 1) / 2
        return {step: {"loss": step + mean, "acc": 0.5} for step in steps}

    def calls(self, name: str, sink: str = "") -> list[Any]:
        """Return what the tracker wrote down of its ``starts``, ``finishes``, ``configs.jsonl`` …"""
        return lines(self.outputs[sink or self.sink] / name)

    def worker_log(self, sink: str = "") -> str:
        path = self.dir.logs / f"{sink or self.sink}.log"
        return path.read_text() if path.exists() else ""

    def check_books(self, status: SinkStatus) -> None:
        """The equation holds for every rank, in the status and in the cursor."""
        for rank, counts in status.ranks.items():
            check_counts(rank, counts)
        cursor = read_cursor(self.dir.sink(status.sink))
        if cursor is None or cursor.view is None:
            return
        held: Counter[int] = Counter()
        for point in cursor.view.open:
            held.update(rank for rank, value in point.values.items() if value is not None)
        for media in cursor.media:
            held.update(media.contributions)
        for rank, counts in cursor.view.counts.items():
            settled = cursor.ranks.get(rank)
            out = (settled.delivered + settled.dead_lettered + settled.filtered) if settled else 0
            assert counts.read == out + held[rank] + counts.filtered + counts.superseded, (rank, counts, settled)


def check_counts(rank: int, counts: RankCounts) -> None:
    out = counts.delivered + counts.pending + counts.filtered + counts.superseded + counts.dead_lettered
    assert counts.read == out, (rank, counts)


async def until(condition: Callable[[], Any], what: str | Callable[[], str], timeout: float = 20.0) -> None:
    """Wait until *condition* holds."""
    with anyio.move_on_after(timeout):
        while not condition():
            await anyio.sleep(0.01)
        return
    raise AssertionError(f"not within {timeout} s: {what if isinstance(what, str) else what()}")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    assert pid > 0, "no report with a pid has come yet: 0 would be this process's own group"
    os.kill(pid, number)


def group_is_gone(group: int) -> bool:
    """Whether no process of this group runs; one that nobody has waited for yet does not count."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group and fields[0] != "Z":
                    return False
    return True
