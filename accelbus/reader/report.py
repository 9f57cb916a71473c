"""How a run is: from its bus process while that reports, else counted from the journal."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from accelbus.config import Tuning, from_environment
from accelbus.delivery.status import DONE, RankCounts, SinkStatus
from accelbus.errors import CorruptDataError
from accelbus.journal.merge import JournalReader
from accelbus.reader.audit import Audit, audit
from accelbus.reader.books import RankBooks, SinkAudit, sinks_of
from accelbus.reader.document import BusReport, RankReport, RankValues, Report, SinkReport, SinkState
from accelbus.reader.snapshot import ProducerLine, Snapshot, find_silent_bus, read_snapshot
from accelbus.rundir import RunDir, RunRecord

_LIVE = frozenset({"alive", "silent"})
_NO_LONGER_DELIVERED = frozenset({"stopped", "fenced"})
_NOT_HERE = frozenset({"waiting", "stopped", "fenced"})
"""States of a sink that the bus process does not deliver to."""
_FRESH: Final = 2.5
"""Seconds for which a worker's word, which comes every second, is of now."""
_SILENT: Final = 5.0
"""Seconds after which a worker that says nothing is spoken of; what it says is written down every two seconds."""
_YOUNG: Final = 10.0
"""Seconds that a run may take to get going: its bus process has to be started."""
_NO_ROOM: Final = 64 * 1024
"""Bytes free on a disk that is called full."""


def report(
    run_dir: RunDir, *, exact: bool = False, tuning: Tuning | None = None, progress: Callable[[JournalReader], None] | None = None
) -> Report:
    """Return how the run in *run_dir* is. Quick while a bus process reports; else, and with *exact*, the journal is read.

    Raises:
        RunNotFoundError: there is no journal.
    """
    tuning = tuning if tuning is not None else from_environment(Tuning)
    snapshot = read_snapshot(run_dir.status_path, tuning=tuning)
    if snapshot.bus_state in ("unknown", "gone", "left"):
        find_silent_bus(run_dir, snapshot, tuning)
    notes: list[str] = []
    record = None
    try:
        record = run_dir.read_record()
    except (CorruptDataError, OSError) as error:
        notes.append(f"run.json cannot be read ({error})")
    if snapshot.is_current and not exact and not _has_riddle(snapshot, tuning):
        found = _from_bus(run_dir, snapshot, record)
    else:
        is_young = record is not None and time.time_ns() - record.created_ns < _YOUNG * 1e9
        found = _from_journal(run_dir, snapshot, audit(run_dir, tuning=tuning, progress=progress), is_young=is_young)
    found.problems = [*found.problems, *_silence(run_dir, snapshot, found)]
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


def _has_riddle(snapshot: Snapshot, tuning: Tuning) -> bool:
    """Whether only the journal knows: events of producers that ended were never acked, so they are spilled or lost; or a sink is
    delivered to by somebody else, by nobody, or by a worker that has not reported for a while.
    """
    if any(line.logged > line.acked and line.state not in _LIVE for line in snapshot.ranks):
        return True
    fresh = _FRESH * max(1.0, tuning.status_interval)
    if snapshot.age > fresh:
        return True
    return any(state.state in _NOT_HERE or _silent_seconds(state, snapshot) > fresh for state in snapshot.sink_states().values())


def _silent_seconds(status: SinkStatus, snapshot: Snapshot) -> float:
    """Return for how long a worker that should report has not; 0 when nothing is expected of it, or it never said when."""
    if not status.reported_ns or status.state in DONE:
        return 0.0
    # What the bus process says of it is as old as that word, which is no silence of the worker.
    until_ns = snapshot.updated_ns if status.sink in snapshot.sinks else time.time_ns()
    return max(0.0, (until_ns - status.reported_ns) / 1e9)


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
        spool=line.spool,
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
        dead_letters=status.dead_letters,
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


def _from_journal(run_dir: RunDir, snapshot: Snapshot, found: Audit, *, is_young: bool) -> Report:
    ranks = _ranks_of(found, snapshot)
    _hear_bus(found, snapshot)
    # A young run's bus process may be about to come for those that live; nobody starts one for those that are gone.
    unattended = [] if snapshot.is_current else [rank for rank in ranks if not (is_young and rank.state in _LIVE)]
    waiting = sum(rank.pending for rank in unattended)
    problems = list(found.problems)
    if waiting and any(rank.pending and rank.state == "alive" for rank in ranks):
        problems.append(f"{waiting:,} events wait with their ranks; nobody brings them into the run directory")
    return Report(
        run_id=found.run_id,
        path=os.path.abspath(run_dir.path),
        project="",
        status=found.status,
        source="journal",
        bus=_bus(snapshot),
        ranks=ranks,
        sinks=[_sink_of_audit(sink, found, waiting) for sink in found.sinks.values()],
        lost=found.lost,
        dropped=found.dropped,
        balanced=found.balanced,
        problems=problems,
        notes=[*found.notes, *(note for sink in found.sinks.values() for note in _silence_of_worker(sink, snapshot))],
    )


def _silence(run_dir: RunDir, snapshot: Snapshot, found: Report) -> list[str]:
    """Return what is wrong when a bus process lives and does not report."""
    if snapshot.bus_state != "silent":
        return []
    who = f"its bus process {snapshot.bus.pid or ''}".rstrip()
    try:
        is_full = shutil.disk_usage(run_dir.path).free < _NO_ROOM
    except OSError:
        is_full = False
    why = f"; the disk of {found.path} is full" if is_full else ""
    return [f"{who} on {snapshot.bus.host} is there and does not report{why}"]


def _hear_bus(found: Audit, snapshot: Snapshot) -> None:
    """Take what the bus process says of its sinks for the last word, where nobody else has said more since."""
    for name, status in snapshot.sink_states().items():
        sink = found.sinks.get(name)
        if sink is not None and (sink.last is None or sink.last.reported_ns < status.reported_ns):
            sink.last = status


def _silence_of_worker(sink: SinkAudit, snapshot: Snapshot) -> list[str]:
    seconds = _silent_seconds(sink.last, snapshot) if sink.owner and sink.last is not None else 0.0
    return [f"{sink.sink}: its worker has not reported for {seconds:.0f} s"] if seconds > _SILENT else []


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
            spool=lines.get(producer.producer, unknown).spool,
            heard_seconds=None,
            producer=producer.producer,
        )
        for producer in found.producers
    ]


def _sink_of_audit(sink: SinkAudit, found: Audit, waiting: int) -> SinkReport:
    last = sink.last or SinkStatus(sink=sink.sink)
    last.sink = sink.sink
    lag = _lag_of(sink, last) if sink.owner else None
    return _sink(last, sink.total, state=_state_of(sink, last, found, waiting), owner=sink.owner, lag=lag, ranks=sink.ranks)


def _lag_of(sink: SinkAudit, last: SinkStatus) -> float:
    """Return the age of the oldest value that is not durable: what the worker said, and what has become of it since."""
    said = max(0.0, last.lag_seconds)
    age = max(0.0, (time.time_ns() - last.reported_ns) / 1e9) if last.reported_ns else 0.0
    if age <= _FRESH or not sink.pending:
        return said
    unread = max(0.0, (time.time_ns() - sink.oldest_ns) / 1e9) if sink.oldest_ns else 0.0
    return round(max(unread, said + age if said else 0.0), 3)


def _state_of(sink: SinkAudit, last: SinkStatus, found: Audit, waiting: int) -> SinkState:
    """Return how the sink is, *waiting* events being on their way with nobody who brings them in."""
    if sink.owner and last.state not in _NO_LONGER_DELIVERED:
        # Somebody delivers right now, a sync for example, and says how it goes.
        is_old = last.reported_ns and time.time_ns() - last.reported_ns > _FRESH * 1e9
        return "running" if last.state == "up_to_date" and ((sink.pending and is_old) or waiting) else last.state
    if sink.pending or waiting:
        return "owed"
    if found.is_closed and sink.finished_as is None:
        # Every value is there, and the tracker still shows the run as running.
        return "owed"
    return "finished" if found.is_closed else "up_to_date"


__all__ = ["Report", "report"]
