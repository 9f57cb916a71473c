"""Every raw event of a run as JSON lines, in the order of the journal: each producer's events in the order in which they were logged.

::

    {"run":"digits-1f","rank":0,"attempt":0,"seq":17,"time":1767139200.25,"step":16,"values":{"loss":0.5}}
    {"run":"digits-1f","rank":0,"attempt":0,"seq":1,"time":…,"type":"start","world_size":2,"local_rank":0,"host":…,"pid":…}
    {"run":"digits-1f","rank":0,"attempt":0,"seq":2,"time":…,"type":"config","values":{"model":{"width":256}}}
    {"run":"digits-1f","rank":0,"attempt":0,"seq":3,"time":…,"type":"record","values":{"argv":["train.py"],"cwd":…}}
    {"run":"digits-1f","rank":0,"attempt":0,"seq":9,"time":…,"type":"console","stream":"stdout","lines":["epoch 1"]}
    {"run":"digits-1f","rank":0,"attempt":0,"seq":99,"time":…,"type":"end","status":"finished","reason":""}

A value that was still on its way from a device when its event was written follows as a line of its own, with the time and step at
which it was logged.

A metric logged without any step has ``"step":null`` and ``"auto_step"``, the number of its call. Producers of another role than trainer
have a ``"role"``. JSON has no NaN: numbers that are not finite are written as the JSONL tracker writes them, as ``"NaN"``,
``"Infinity"`` or ``"-Infinity"`` with the keys listed in ``"non_finite"``; in a configuration as those texts. Summary values and metric
definitions are lines of the types ``summary`` and ``definition``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from accelbus.config import Tuning, from_environment
from accelbus.delivery.statements import loaded
from accelbus.errors import CorruptDataError, RunNotFoundError
from accelbus.events import (
    TRAINER,
    AnyEvent,
    ConfigUpdate,
    ConsoleLines,
    Fill,
    MetricDefinition,
    Metrics,
    RunEnd,
    RunFacts,
    RunStart,
    Summary,
)
from accelbus.journal.bodies import PendingMetrics
from accelbus.journal.fills import Fills
from accelbus.journal.layout import segment_number
from accelbus.journal.merge import Item, JournalReader, ReaderState
from accelbus.journal.producers import ProducerInfo
from accelbus.media import EXTENSION, spelled_out
from accelbus.reader.accounts import ProducerAudit, account_for
from accelbus.reader.evidence import Evidence
from accelbus.rundir import RunDir
from accelbus.values.json_lines import json_line


class Progress(NamedTuple):
    """How far an export is, in bytes of the journal."""

    done: int
    total: int


class Gaps(NamedTuple):
    """Events that should have been there, by rank, as far as anybody knows of them."""

    events: dict[int, int]
    """Missing, with everything that could still have them."""
    pending: dict[int, int]
    """In the spools of ranks that are gone: a sync or a salvage brings them into the journal."""
    coming: dict[int, int]
    """With ranks that live, and on their way."""
    undecodable: int
    corrupt: dict[str, int]
    is_proved: bool
    """Every producer that is known has said where its events end, and they are all there: damage cost nothing."""

    @property
    def is_whole(self) -> bool:
        """Nothing is missing but what ranks that live have just logged."""
        return not (self.events or self.pending or self.undecodable or (self.corrupt and not self.is_proved))


class Export:
    """One pass over the journal of *run_dir*. Iterate for the lines; memory is bounded whatever the length of the run.

    Args:
        run_dir: of the run, which may be going on: the export ends where the journal ended when it was reached.
        tuning: bounds of memory; the environment's when not given.

    Raises:
        RunNotFoundError: there is no journal.
    """

    def __init__(self, run_dir: RunDir, *, tuning: Tuning | None = None) -> None:
        if not run_dir.journal.is_dir():
            raise RunNotFoundError(f"{str(run_dir.path)!r} is no run directory: it has no journal")
        self._run_dir = run_dir
        self._tuning = tuning if tuning is not None else from_environment(Tuning)
        # Before the journal: what is under way is seen at least once.
        self._evidence = Evidence(run_dir, tuning=self._tuning)
        self._reader = JournalReader(run_dir.journal, tuning=self._tuning)
        self._fills = Fills()
        self._run_id = run_dir.path.resolve().name
        self.lines = 0
        """Written so far."""

    def chunks(self) -> Iterator[bytes]:
        """Yield whole lines, a few thousand together."""
        while items := self._reader.read(self._tuning.read_events):
            yield self._lines_of(items)
        rest = self._reader.finish()
        for start in range(0, len(rest), self._tuning.read_events):
            yield self._lines_of(rest[start : start + self._tuning.read_events])

    def progress(self) -> Progress:
        """Return how far it is. Lists the journal: not to be asked for every chunk."""
        return progress_of(self._run_dir, self._reader.state())

    def gaps(self) -> Gaps:
        """Return what is missing, once everything was read: held against what bus processes and spools say that there should be."""
        infos = dict(self._reader.producers)
        for producer, witness in self._evidence.witnesses.items():
            infos.setdefault(producer, witness.describe())
        missing: dict[int, int] = {}
        pending: dict[int, int] = {}
        coming: dict[int, int] = {}
        for producer, info in infos.items():
            found = self._account(producer, info)
            _add(missing, info.rank, found.lost)
            _add(coming if found.state == "alive" else pending, info.rank, found.pending)
        statistics = self._reader.statistics()
        is_proved = bool(infos) and not missing and all(info.status for info in infos.values())
        return Gaps(missing, pending, coming, statistics.undecodable, self._damage(statistics.corrupt), is_proved)

    def _account(self, producer: bytes, info: ProducerInfo) -> ProducerAudit:
        bus_is_running = self._evidence.snapshot.is_current
        return account_for(producer, info, self._evidence.of(producer), bus_is_running=bus_is_running, values=0)[0]

    def _damage(self, corrupt: dict[str, int]) -> dict[str, int]:
        # A row that is being written looks torn.
        return {reason: count for reason, count in corrupt.items() if not (reason == "torn" and self._evidence.snapshot.is_current)}

    def _lines_of(self, items: Sequence[Item]) -> bytes:
        lines = [line for item in items for event in self._events(item) if (line := self._line(item, event)) is not None]
        self.lines += len(lines)
        return b"".join(lines)

    def _events(self, item: Item) -> Sequence[AnyEvent]:
        """Return the event of *item*, and values that come late as what they are."""
        event = item.event
        if type(event) is PendingMetrics:
            filled = self._fills.expect(item, event, event.step)
            return [event, *filled] if event.values else filled
        return self._fills.take(item, event) if isinstance(event, Fill) else [event]

    def _line(self, item: Item, event: AnyEvent) -> bytes | None:
        describe = _DESCRIBED.get(type(event))
        if isinstance(event, Metrics):
            details: dict[str, Any] = {"step": event.step, "values": event.values}
            if event.step is None:
                details["auto_step"] = event.auto_step
        elif describe is not None:
            details = describe(event)
            if "values" in details:
                details["values"] = loaded(details["values"], self._run_dir.blobs)
        else:
            return None  # a record of a bus process: about producers, not of one
        details |= _addressed(event)
        line = {"run": self._run_id, "rank": item.rank, "attempt": item.attempt, "seq": item.seq, "time": _time_of(event), **details}
        if item.role not in ("", TRAINER):
            line["role"] = item.role
        return json_line(line, default=_described, names="type" not in line)


def _add(events: dict[int, int], rank: int, count: int) -> None:
    if count:
        events[rank] = events.get(rank, 0) + count


def _time_of(event: Any) -> float:
    """Any producer's event has one."""
    time_ns: int = event.time_ns
    return time_ns / 1e9


def _of_start(event: RunStart) -> dict[str, Any]:
    return {
        "type": "start",
        "world_size": event.world_size,
        "local_rank": event.local_rank,
        "host": event.host,
        "pid": event.pid,
        "launcher": event.launcher,
    }


_DESCRIBED: Final[Mapping[type, Callable[[Any], dict[str, Any]]]] = {
    RunStart: _of_start,
    ConfigUpdate: lambda event: {"type": "config", "values": event.values},
    RunFacts: lambda event: {"type": "record", "values": event.facts},
    ConsoleLines: lambda event: {"type": "console", "stream": event.stream, "lines": event.lines},
    Summary: lambda event: {"type": "summary", "values": event.values},
    MetricDefinition: lambda event: {
        "type": "definition",
        "pattern": event.pattern,
        "axis": event.axis,
        "summary": event.summary,
        "goal": event.goal,
    },
    RunEnd: lambda event: {"type": "end", "status": event.status, "reason": event.reason},
}


def _addressed(event: Any) -> dict[str, Any]:
    """Return whom *event* is for, where that is not everybody, and what a tracker gets beside it."""
    sinks = getattr(event, "sinks", ())
    details: dict[str, Any] = {"to": sinks} if sinks else {}
    if isinstance(event, Metrics) and event.log_kwargs:
        details["log_kwargs"] = event.log_kwargs
    return details


def _described(value: object) -> object:
    """Return media as plain data, and everything else that JSON does not know as text."""
    if isinstance(value, msgspec.msgpack.Ext) and value.code == EXTENSION:
        try:
            return spelled_out(value)
        except CorruptDataError as error:
            return f"({error})"
    return str(value)


def progress_of(run_dir: RunDir, state: ReaderState) -> Progress:
    """Return how much of the journal of *run_dir* lies before *state*."""
    done = total = 0
    for segment in run_dir.journal.glob("*/*.seg"):
        number = segment_number(segment.name)
        position = state.positions.get(segment.parent.name)
        if number is None:
            continue
        size = segment.stat().st_size
        total += size
        if position is not None and number <= position.segment:
            done += size if number < position.segment else min(position.offset, size)
    return Progress(done, total)


__all__ = ["Export", "Gaps", "Progress", "progress_of"]
