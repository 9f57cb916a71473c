"""How a run is: from its bus process while that reports, else counted from the journal.

`Report` is what ``accelbus status --json`` prints, documented in ``docs/reference/cli.md``. Fields are added, never renamed or removed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from accelbus.config import Tuning, from_environment
from accelbus.delivery.status import RankCounts, SinkStatus
from accelbus.errors import CorruptDataError
from accelbus.journal.intervals import Range
from accelbus.journal.merge import JournalReader
from accelbus.reader.audit import Audit, audit, sinks_of
from accelbus.reader.books import RankBooks, SinkAudit
from accelbus.reader.snapshot import BusState, ProducerLine, Snapshot, read_snapshot
from accelbus.rundir import RunDir, RunRecord

SinkState: TypeAlias = Literal[
    "starting", "running", "up_to_date", "retrying", "blocked", "waiting", "finished", "owed", "stopped", "fenced"
]
"""Of a sink with somebody who delivers: as in `accelbus.delivery.status.State`. Else finished, up_to_date (nothing is owed as far as
the run has come), or owed."""
_FAILING = frozenset({"retrying", "blocked"})
_LIVE = frozenset({"alive", "silent"})
_NO_LONGER_DELIVERED = frozenset({"stopped", "fenced"})


class BusReport(msgspec.Struct, kw_only=True):
    """The bus process."""

    state: BusState
    pid: int = 0
    host: str = ""
    age_seconds: float | None = None
    """Since its last report."""
    disk_failing: bool = False
    bad_frames: int = 0


class RankReport(msgspec.Struct, kw_only=True):
    """One producer. Events."""

    rank: int
    attempt: int
    role: str
    host: str
    pid: int
    state: str
    status: str
    logged: int
    acked: int
    journal: int | None
    """In the journal; null while the bus process is asked instead."""
    pending: int
    """Logged, and not in the journal yet."""
    lost: int
    missing: list[Range]
    """Sequence numbers that are not in the journal; empty while the bus process is asked instead."""
    dropped: dict[str, int]
    salvageable: bool
    heard_seconds: float | None
    producer: str


class RankValues(msgspec.Struct, kw_only=True):
    """Values of one rank and sink. ``journal = delivered + pending + filtered + superseded + dead_lettered`` where it was counted."""

    journal: int | None
    """In the journal; null while the bus process is asked instead."""
    read: int
    delivered: int
    pending: int
    filtered: int
    superseded: int
    dead_lettered: int
    late: int


class SinkReport(msgspec.Struct, kw_only=True):
    """One sink. Values, summed over ranks; ``ranks`` has them apart."""

    sink: str
    state: SinkState
    url: str
    lag_seconds: float | None
    """Age of the oldest value that is read and not durable; null when nobody delivers."""
    delivered: int
    pending: int
    filtered: int
    superseded: int
    dead_lettered: int
    late: int
    rows: int
    """That the tracker took, repeats included, from its last worker."""
    retries: int
    failing_rows: int
    breaker_open: bool
    restarts: int
    last_error: str
    owner: str
    """Who delivers now; empty when nobody does."""
    ranks: dict[int, RankValues]


class Report(msgspec.Struct, kw_only=True):
    """How one run is."""

    version: int = 1
    run_id: str
    path: str
    project: str
    status: str
    """running; finished, failed, killed, … once the run is closed; open when nobody runs it and nobody closed it."""
    source: Literal["bus", "journal"]
    """Who counted."""
    bus: BusReport
    ranks: list[RankReport]
    sinks: list[SinkReport]
    lost: int
    """Events that are nowhere any more."""
    dropped: dict[str, int]
    """{reason: what producers did not keep in the first place}"""
    balanced: bool | None
    """Whether the books balance exactly; null while the bus process is asked instead of the journal."""
    problems: list[str]
    """What is wrong, a sentence each."""
    notes: list[str]
    """What is odd."""

    @property
    def is_fine(self) -> bool:
        """Nothing is lost or failing, and what is owed is on its way."""
        owed = any(sink.state == "owed" for sink in self.sinks) or any(rank.pending and rank.state != "alive" for rank in self.ranks)
        failing = any(sink.state in _FAILING or sink.dead_lettered for sink in self.sinks)
        return not (owed or failing or self.lost or self.dropped or self.problems)

    def lost_to(self, sink: SinkReport | None) -> int:
        """Return how much of what was logged will never be in *sink*, for whatever reason."""
        return self.lost + sum(self.dropped.values()) + (sink.dead_lettered if sink is not None else 0)


def report(
    run_dir: RunDir, *, exact: bool = False, tuning: Tuning | None = None, progress: Callable[[JournalReader], None] | None = None
) -> Report:
    """Return how the run in *run_dir* is. Quick while a bus process reports; else, and with *exact*, the journal is read.

    Raises:
        RunNotFoundError: there is no journal.
    """
    tuning = tuning if tuning is not None else from_environment(Tuning)
    snapshot = read_snapshot(run_dir.status_path, tuning=tuning)
    notes: list[str] = []
    record = None
    try:
        record = run_dir.read_record()
    except (CorruptDataError, OSError) as error:
        notes.append(f"run.json cannot be read ({error})")
    if snapshot.is_current and not exact and not _has_riddle(snapshot):
        found = _from_bus(run_dir, snapshot, record)
    else:
        found = _from_journal(run_dir, snapshot, audit(run_dir, tuning=tuning, progress=progress))
    found.project = record.project if record is not None else ""
    found.notes = [*notes, *(note for note in found.notes if not note.startswith("run.json"))]
    return found


def _bus(snapshot: Snapshot) -> BusReport:
    return BusReport(
        state=snapshot.bus_state,
        pid=snapshot.bus.pid,
        host=snapshot.bus.host,
        age_seconds=round(snapshot.age, 1) if snapshot.updated_ns else None,
        disk_failing=snapshot.bus.disk_failing,
        bad_frames=snapshot.bus.bad_frames,
    )


# While the bus process reports


def _has_riddle(snapshot: Snapshot) -> bool:
    """Whether events of producers that ended were never acked: spilled, or lost. Only the journal knows."""
    return any(line.logged > line.acked and line.state not in _LIVE for line in snapshot.ranks)


def _from_bus(run_dir: RunDir, snapshot: Snapshot, record: RunRecord | None) -> Report:
    states = snapshot.sink_states()
    sinks = [_sink_of_bus(states[name]) for name in states]
    sinks += [
        _sink_not_started(name) for name in sinks_of(run_dir, record) if name not in states and (record is None or record.mode == "online")
    ]
    ranks = [_rank_of_bus(line) for line in snapshot.ranks]
    problems = [
        f"the disk of {snapshot.bus.host} refuses the journal; events stay with their ranks until it works"
    ] * snapshot.bus.disk_failing
    problems += [f"rank {line.rank} ({line.host}, pid {line.pid}) is silent" for line in snapshot.ranks if line.state == "silent"]
    return Report(
        run_id=run_dir.path.resolve().name,
        path=os.path.abspath(run_dir.path),
        project="",
        status=snapshot.status or "running",
        source="bus",
        bus=_bus(snapshot),
        ranks=ranks,
        sinks=sinks,
        lost=0,
        dropped=dict(sum((Counter(line.dropped) for line in snapshot.ranks), Counter())),
        balanced=None,
        problems=problems,
        notes=[],
    )


def _rank_of_bus(line: ProducerLine) -> RankReport:
    return RankReport(
        rank=line.rank,
        attempt=line.attempt,
        role=line.role,
        host=line.host,
        pid=line.pid,
        state=line.state,
        status=line.status,
        logged=line.logged,
        acked=line.acked,
        journal=None,
        pending=max(line.logged - line.acked, 0),
        lost=0,
        missing=[],
        dropped=line.dropped,
        salvageable=line.salvageable,
        heard_seconds=line.heard_s,
        producer=line.producer,
    )


def _sink_of_bus(status: SinkStatus) -> SinkReport:
    lag = status.lag_seconds if status.state != "finished" else None
    return _sink(status, status.values, state=status.state, owner="", lag=lag, ranks=status.ranks)


def _sink_not_started(name: str) -> SinkReport:
    return _sink(SinkStatus(sink=name), RankCounts(), state="starting", owner="", lag=None, ranks={})


def _sink(
    status: SinkStatus, counts: RankCounts, *, state: SinkState, owner: str, lag: float | None, ranks: Mapping[int, RankCounts]
) -> SinkReport:
    return SinkReport(
        sink=status.sink,
        state=state,
        url=status.url,
        lag_seconds=lag,
        delivered=counts.delivered,
        pending=counts.pending,
        filtered=counts.filtered,
        superseded=counts.superseded,
        dead_lettered=counts.dead_lettered,
        late=counts.late,
        rows=status.rows,
        retries=status.retries,
        failing_rows=status.failing_rows,
        breaker_open=state == "blocked",
        restarts=status.restarts,
        last_error=status.last_error,
        owner=owner,
        ranks={rank: _values(of_rank) for rank, of_rank in ranks.items()},
    )


def _values(counts: RankCounts) -> RankValues:
    return RankValues(
        journal=counts.journal if isinstance(counts, RankBooks) else None,
        read=counts.read,
        delivered=counts.delivered,
        pending=counts.pending,
        filtered=counts.filtered,
        superseded=counts.superseded,
        dead_lettered=counts.dead_lettered,
        late=counts.late,
    )


# From the journal


def _from_journal(run_dir: RunDir, snapshot: Snapshot, found: Audit) -> Report:
    ranks = _ranks_of(found, snapshot)
    return Report(
        run_id=found.run_id,
        path=os.path.abspath(run_dir.path),
        project="",
        status=found.status,
        source="journal",
        bus=_bus(snapshot),
        ranks=ranks,
        sinks=[_sink_of_audit(sink, found) for sink in found.sinks.values()],
        lost=found.lost,
        dropped=found.dropped,
        balanced=found.balanced,
        problems=found.problems,
        notes=found.notes,
    )


def _ranks_of(found: Audit, snapshot: Snapshot) -> list[RankReport]:
    lines = {line.producer: line for line in snapshot.ranks}
    unknown = ProducerLine()
    return [
        RankReport(
            rank=producer.rank,
            attempt=producer.attempt,
            role=producer.role,
            host=producer.host,
            pid=producer.pid,
            state=producer.state,
            status=producer.status,
            logged=producer.logged,
            acked=producer.acked,
            journal=producer.journal,
            pending=producer.pending,
            lost=producer.lost,
            missing=producer.missing,
            dropped=producer.dropped,
            salvageable=lines.get(producer.producer, unknown).salvageable,
            heard_seconds=None,
            producer=producer.producer,
        )
        for producer in found.producers
    ]


def _sink_of_audit(sink: SinkAudit, found: Audit) -> SinkReport:
    last = sink.last or SinkStatus(sink=sink.sink)
    last.sink = sink.sink
    lag = max(0.0, last.lag_seconds) if sink.owner else None
    return _sink(last, sink.total, state=_state_of(sink, last, found), owner=sink.owner, lag=lag, ranks=sink.ranks)


def _state_of(sink: SinkAudit, last: SinkStatus, found: Audit) -> SinkState:
    if sink.owner and last.state not in _NO_LONGER_DELIVERED:
        # Somebody delivers right now, a sync for example, and says how it goes.
        return last.state
    if sink.pending:
        return "owed"
    if found.is_closed and sink.finished_as is None:
        # Every value is there, and the tracker still shows the run as running.
        return "owed"
    return "finished" if found.is_closed else "up_to_date"


__all__ = ["BusReport", "RankReport", "RankValues", "Report", "SinkReport", "SinkState", "report"]
