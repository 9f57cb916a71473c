"""How a run is: from its bus process while that reports, else counted from the journal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping

from accelbus.config import Tuning, from_environment
from accelbus.delivery.status import RankCounts, SinkStatus
from accelbus.errors import CorruptDataError
from accelbus.journal.merge import JournalReader
from accelbus.reader.audit import Audit, audit
from accelbus.reader.books import RankBooks, SinkAudit, sinks_of
from accelbus.reader.document import BusReport, RankReport, RankValues, Report, SinkReport, SinkState
from accelbus.reader.snapshot import ProducerLine, Snapshot, read_snapshot
from accelbus.rundir import RunDir, RunRecord

_LIVE = frozenset({"alive", "silent"})
_NO_LONGER_DELIVERED = frozenset({"stopped", "fenced"})


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


__all__ = ["Report", "report"]
