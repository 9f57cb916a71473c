"""Run directories by hand: real journals, spools and cursors of producers that this process plays."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from accelbus import frame, host
from accelbus.config import Tuning
from accelbus.control import Hello
from accelbus.delivery.cursor import Cursor, read_cursor, write_cursor
from accelbus.delivery.ledger import Ledger
from accelbus.delivery.source import Source
from accelbus.events import ConfigUpdate, Metrics, ProducerJoined, ProducerState, RunClosed, RunEnd, RunStart
from accelbus.journal.segments import JournalWriter
from accelbus.journal.spool import Spool
from accelbus.journal.spool_file import SpoolFile
from accelbus.rundir import RunDir, RunRecord
from tests.support.journals import LAUNCH, pack

SECOND = 10**9
_encode = msgspec.msgpack.Encoder().encode


@functools.cache
def dead_pid() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


class HandRun:
    """A run directory whose producers, bus process and sinks are played by a test."""

    def __init__(
        self, root: Path, *, run_id: str = "hand", sinks: Sequence[str] = ("jsonl",), mode: str = "online", record: bool = True
    ) -> None:
        self.dir = RunDir(root / run_id)
        self.dir.create()
        self.sinks = tuple(sinks)
        if record:
            self.dir.write_record(RunRecord(run_id=run_id, project="project", sinks=self.sinks, mode=mode, world_size=1))
        self.bus = HandBus(self)
        self.spools = root / "spools"
        self.spools.mkdir(exist_ok=True)
        self._producers = 0

    @property
    def path(self) -> Path:
        return self.dir.path

    @property
    def tuning(self) -> Tuning:
        return Tuning(spool_dir=str(self.spools))

    def producer(self, rank: int = 0, *, ranks: int = 1, **about: Any) -> HandProducer:
        """Return a new producer; nothing of it is written yet."""
        self._producers += 1
        return HandProducer(self, rank, ranks, self._producers.to_bytes(16, "big"), **about)

    def write(self, writer: str, *frames: bytes) -> None:
        """Append *frames* as a writer of its own."""
        found = JournalWriter(self.dir.journal / writer, tuning=Tuning())
        found.append(list(frames))
        found.close()

    def write_status(
        self, *producers: HandProducer, pid: int | None = None, where: str | None = None, age: float = 0.0, **more: Any
    ) -> None:
        """Leave a ``status.json`` as a bus process would; of a process that is not there unless told otherwise."""
        status = {
            "run_id": self.dir.run_id,
            "state": "open",
            "status": "running",
            "updated_ns": time.time_ns() - int(age * SECOND),
            "bus": {"pid": pid or dead_pid(), "host": where or host.name(), "disk_failing": False, "bad_frames": 0},
            "ranks": [producer.line() for producer in producers],
            "sinks": {},
            **more,
        }
        self.dir.status_path.write_bytes(msgspec.json.encode(status))

    def deliver(self, sink: str = "jsonl", *, items: int = 10**9, dead: int = 0, finish: bool = False) -> Cursor:
        """Play the worker of *sink*: read on, at most *items*, settle everything, write its cursor. *dead* rows go to the dead letters."""
        directory = self.dir.sink(sink)
        directory.mkdir(parents=True, exist_ok=True)
        cursor = read_cursor(directory) or Cursor()
        source, ledger = Source(self.dir, cursor, tuning=self.tuning), Ledger(cursor.ranks)
        batches = [source.read(items)]
        if finish:
            batches.append(source.finish())
        for batch in batches:
            ledger.queue(batch.rows)
            for row in batch.rows:
                if dead:
                    dead -= 1
                    ledger.give_up(row)
                else:
                    ledger.take([row])
        ledger.settle()
        source.save_to(cursor)
        cursor.ranks = ledger.settled()
        cursor.finished_as = source.closed_as if finish else None
        write_cursor(directory, cursor)
        return cursor


class HandProducer:
    """One producer: numbers events, and says where they go."""

    def __init__(
        self,
        run: HandRun,
        rank: int,
        ranks: int,
        uuid: bytes,
        *,
        role: str = "trainer",
        launch: bytes = LAUNCH,
        pid: int | None = None,
        where: str | None = None,
    ) -> None:
        self.run = run
        self.rank = rank
        self.ranks = ranks
        self.uuid = uuid
        self.role = role
        self.launch = launch
        self.pid = pid or dead_pid()
        self.host = where or host.name()
        self.events: list[bytes] = []
        self.acked = 0
        self.state = "alive"
        self.dropped: dict[str, int] = {}
        self.step = 0
        self.start()

    # Events

    def start(self) -> HandProducer:
        return self.add(RunStart(1, self.run.dir.run_id, self.rank, self.ranks, self.rank, self.host, self.pid, self.role, self.launch))

    def log(self, count: int = 1, **values: Any) -> HandProducer:
        """Add *count* calls of ``log``, a step each."""
        for _ in range(count):
            self.step += 1
            self.add(Metrics(self.step * SECOND, self.step, values or {"loss": self.step / 8, "accuracy": 0.5}))
        return self

    def config(self, **values: Any) -> HandProducer:
        return self.add(ConfigUpdate(2, values))

    def end(self, status: str = "finished") -> HandProducer:
        return self.add(RunEnd(3, status))

    def add(self, event: object) -> HandProducer:
        self.events.append(event if isinstance(event, bytes) else _encode(event))
        return self

    @property
    def last_seq(self) -> int:
        return len(self.events)

    # Where they go

    def frame(self, first: int = 1, last: int | None = None) -> bytes:
        """Return events *first* to *last* as a frame."""
        return pack(self.events[first - 1 : last], producer=self.uuid, first_seq=first, launch=self.launch)

    def write(self, first: int = 1, last: int | None = None) -> HandProducer:
        """Put events *first* to *last* into the journal."""
        self.run.bus.write(self.frame(first, last))
        self.acked = max(self.acked, last or self.last_seq)
        return self

    def hello(self, path: Path | None = None) -> Hello:
        return Hello(
            producer=self.uuid, run_id=self.run.dir.run_id, run_dir=str(self.run.path), rank=self.rank, world_size=self.ranks,
            local_rank=self.rank, local_world_size=self.ranks, host=self.host, pid=self.pid, role=self.role, launch=self.launch,
            launcher="none", base_seq=1, last_seq=0, spool=None if path is None else str(path),
        )  # fmt: skip

    def spool(self, *, acked: int = 0, alive: bool = False, dropped: dict[str, int] | None = None, ending: str = "") -> Path:
        """Leave everything in a spool of which *acked* events were acked; *alive*: keep its lock, until `close_spool`."""
        path = self.run.spools / f"{self.uuid.hex()}.spool"
        file = SpoolFile(path, capacity=1 << 20, description=self.hello(path))
        ring = Spool(file)
        for event in self.events:
            assert ring.append(event)
        if acked:
            ring.take(acked, 1 << 20)
            ring.release(acked)
        for reason, count in (dropped or {}).items():
            file.count_dropped(reason, count)
        if ending:
            file.mark_ending(ending)
        self._ring = ring
        if not alive:
            self.close_spool()
        return path

    def close_spool(self) -> None:
        """Let go of the lock, as the end of the process would."""
        self._ring.close(unlink=False)

    def line(self) -> dict[str, Any]:
        """Return what ``status.json`` says of it."""
        return {
            "rank": self.rank, "attempt": 0, "role": self.role, "host": self.host, "pid": self.pid, "state": self.state, "status": "",
            "logged": self.last_seq, "acked": self.acked, "dropped": self.dropped, "producer": self.uuid.hex(), "heard_s": 0.1, "salvageable": True,
        }  # fmt: skip


class HandBus:
    """Writes frames and records as one incarnation of a bus process."""

    def __init__(self, run: HandRun, name: str = "bus-one") -> None:
        self._run = run
        self._uuid = name.encode().ljust(16, b"-")
        self._name = name
        self._writer: JournalWriter | None = None
        self._records = 0

    def write(self, *frames: bytes) -> None:
        if self._writer is None:
            self._writer = JournalWriter(self._run.dir.journal / self._name, tuning=Tuning())
        self._writer.append(list(frames))

    def record(self, *records: object) -> None:
        self.write(pack(records, producer=self._uuid, first_seq=self._records + 1, kind=frame.RECORDS))
        self._records += len(records)

    def joined(self, producer: HandProducer, attempt: int = 0) -> None:
        about = (producer.rank, producer.ranks, attempt, producer.role, producer.host, producer.pid, producer.launch)
        self.record(ProducerJoined(1, producer.uuid, *about))

    def saw(
        self, producer: HandProducer, state: str, status: str = "", *, last_seq: int | None = None, dropped: dict[str, int] | None = None
    ) -> None:
        self.record(ProducerState(1, producer.uuid, state, last_seq if last_seq is not None else producer.last_seq, status, dropped or {}))

    def close_run(self, status: str = "finished") -> None:
        self.record(RunClosed(1, status))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._name += "+"  # a directory has one writer, ever


def finished_run(root: Path, *, ranks: int = 2, steps: int = 5, **about: Any) -> HandRun:
    """Return a run that ended well, with nothing delivered yet."""
    run = HandRun(root, **about)
    for producer in [run.producer(rank, ranks=ranks) for rank in range(ranks)]:
        run.bus.joined(producer)
        producer.log(steps).end().write()
        run.bus.saw(producer, "finished", "finished")
    run.bus.close_run()
    run.bus.close()
    return run
