"""The audit: an exact scan of a run's journal, held against what its producers and its sinks say.

Two equations, at any moment, for every producer and for every rank and sink::

    producer → journal, in events:  logged  = journal + pending + lost
    journal → sink, in values:      journal = delivered + pending + filtered + superseded + dead_lettered

``logged`` counts the events that a producer numbered; what it did not take in the first place is in ``dropped``, by reason. An event is
pending while it is in a spool that can be salvaged or its producer lives, and lost otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from accelbus.config import Tuning, from_environment
from accelbus.errors import CorruptDataError, RunNotFoundError
from accelbus.events import Metrics, ProducerJoined, RunClosed, RunStart
from accelbus.journal.intervals import Intervals, Range
from accelbus.journal.merge import Item, JournalReader
from accelbus.journal.producers import ProducerInfo
from accelbus.reader.books import RankBooks, SinkAudit, SinkLedger
from accelbus.reader.evidence import Evidence, most_dropped
from accelbus.rundir import RunDir, RunRecord


class ProducerAudit(msgspec.Struct, kw_only=True):
    """One producer: a rank in one attempt, or a process that attached to the run."""

    producer: str
    rank: int
    attempt: int
    role: str
    host: str
    pid: int
    state: str
    """alive; finished, dead or lost as a bus process saw it; gone: its process is not there any more; unknown: it was on another
    host and nobody reports."""
    status: str
    """How it ended; empty when nobody said."""
    logged: int
    """Highest sequence number it is known to have used."""
    acked: int
    """Up to here everything is in the run's directory, or was said to be."""
    journal: int
    """Events in the journal."""
    pending: int
    """On their way: in a spool on this node, or with a producer that lives."""
    lost: int
    """In neither."""
    missing: list[Range]
    """Sequence numbers that are not in the journal, pending ones included."""
    values: int
    """Values in its events in the journal."""
    dropped: dict[str, int]
    """{reason: what it did not keep}: events, for ``unsupported_value`` and the like values."""


class Audit(msgspec.Struct, kw_only=True):
    """What `audit` found. Plain data."""

    run_id: str
    path: str
    status: str
    """finished, failed, … once the run is closed, else running, or open when nobody runs it any more."""
    is_closed: bool
    producers: list[ProducerAudit]
    sinks: dict[str, SinkAudit]
    problems: list[str]
    """Why the books do not balance: one sentence each."""
    notes: list[str]
    """What was odd and cost nothing that is known of."""
    duplicates: int
    """Events that are in the journal more than once, as they may be."""
    corrupt: dict[str, int]

    @property
    def balanced(self) -> bool:
        """Every event and every value is accounted for, and none is lost. Pending ones are accounted for."""
        return not self.problems

    @property
    def logged(self) -> int:
        """Events, all producers."""
        return sum(producer.logged for producer in self.producers)

    @property
    def lost(self) -> int:
        """Events, all producers."""
        return sum(producer.lost for producer in self.producers)

    @property
    def pending_events(self) -> int:
        """Events that are not in the journal yet."""
        return sum(producer.pending for producer in self.producers)

    @property
    def pending_values(self) -> int:
        """Values that are in the journal and not in a sink yet, all sinks."""
        return sum(sink.pending for sink in self.sinks.values())

    @property
    def values(self) -> int:
        """Values in the journal."""
        return sum(producer.values for producer in self.producers)

    @property
    def dropped(self) -> dict[str, int]:
        """{reason: what was not kept}, all producers."""
        total: Counter[str] = Counter()
        for producer in self.producers:
            total.update(producer.dropped)
        return dict(sorted(total.items()))

    @property
    def is_settled(self) -> bool:
        """Nothing is pending: what is not delivered never will be."""
        return self.pending_events == 0 and self.pending_values == 0

    def rank(self, rank: int) -> list[ProducerAudit]:
        """Return the producers of *rank*, oldest attempt first."""
        return [producer for producer in self.producers if producer.rank == rank]


def audit(run: RunDir | Path | str, *, tuning: Tuning | None = None, progress: Callable[[JournalReader], None] | None = None) -> Audit:
    """Scan the run in *run* and return its books. Reads only; may be called while the run goes on, and then counts what is under way
    as pending.

    Args:
        run: the run's directory.
        tuning: bounds of memory; the environment's when not given.
        progress: called now and then with the reader.

    Raises:
        RunNotFoundError: there is no journal.
    """
    run_dir = run if isinstance(run, RunDir) else RunDir(run)
    if not run_dir.journal.is_dir():
        raise RunNotFoundError(f"{str(run_dir.path)!r} is no run directory: it has no journal")
    tuning = tuning if tuning is not None else from_environment(Tuning)
    return _Scan(run_dir, tuning).run(progress or _keep_quiet)


def sinks_of(run_dir: RunDir, record: RunRecord | None) -> list[str]:
    """Return the names of the sinks of a run: those it asked for, and those that ``sync`` added."""
    wanted = list(record.sinks) if record is not None else []
    root = run_dir.path / "sinks"
    added = sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
    return list(dict.fromkeys([*wanted, *added]))


class _Scan:
    """One audit. What comes later in the life of an event is looked at later: spools, cursors, then the journal."""

    def __init__(self, run_dir: RunDir, tuning: Tuning) -> None:
        self._run_dir = run_dir
        self._tuning = tuning
        self._notes: list[str] = []
        self._problems: list[str] = []
        self._evidence = Evidence(run_dir, tuning=tuning)
        self._ledgers = [SinkLedger(run_dir, sink, tuning=tuning) for sink in sinks_of(run_dir, self._read_record())]
        self._values: Counter[bytes] = Counter()
        self._values_of_rank: Counter[int] = Counter()
        self._closed_as: str | None = None

    def run(self, progress: Callable[[JournalReader], None]) -> Audit:
        reader = JournalReader(self._run_dir.journal, tuning=self._tuning)
        while items := reader.read(self._tuning.read_events):
            self._count(items)
            progress(reader)
        self._count(reader.finish())
        return self._conclude(reader)

    def _read_record(self) -> RunRecord | None:
        try:
            return self._run_dir.read_record()
        except (CorruptDataError, OSError) as error:
            self._notes.append(f"run.json cannot be read, its sinks are known only if they were started ({error})")
            return None

    def _count(self, items: list[Item]) -> None:
        for item in items:
            event = item.event
            if isinstance(event, Metrics):
                values = len(event.values)
                self._values[item.producer] += values
                self._values_of_rank[item.rank] += values
                for ledger in self._ledgers:
                    ledger.meet(item.producer, item.rank, item.seq, values)
            elif isinstance(event, RunClosed):
                self._closed_as = event.status
            elif isinstance(event, RunStart | ProducerJoined):
                self._closed_as = None

    def _conclude(self, reader: JournalReader) -> Audit:
        infos = dict(reader.producers)
        for producer, witness in self._evidence.witnesses.items():
            if producer not in infos:
                infos[producer] = witness.describe()
        producers = [self._audit_producer(producer, info) for producer, info in infos.items()]
        sinks = {ledger.audit.sink: ledger.settle(self._values_of_rank) for ledger in self._ledgers}
        statistics = reader.statistics()
        if statistics.undecodable:
            self._problems.append(
                f"{statistics.undecodable} events in the journal cannot be decoded: written by another version of accelbus?"
            )
        self._note_damage(statistics.corrupt, statistics.unknown_kinds)
        return Audit(
            run_id=self._run_dir.path.resolve().name,
            path=str(self._run_dir.path),
            status=self._status(producers),
            is_closed=self._closed_as is not None,
            producers=sorted(producers, key=lambda producer: (producer.attempt, producer.role != "trainer", producer.role, producer.rank)),
            sinks=sinks,
            problems=[*self._problems, *(problem for sink in sinks.values() for problem in sink.problems)],
            notes=self._notes,
            duplicates=statistics.duplicates,
            corrupt=statistics.corrupt,
        )

    def _audit_producer(self, producer: bytes, info: ProducerInfo) -> ProducerAudit:
        witness = self._evidence.of(producer)
        snapshot = self._evidence.snapshot
        alive = witness.is_alive(info, bus_is_running=snapshot.is_current)
        seen = Intervals(info.read)
        logged = max(info.last_seq, witness.last_seq, seen.highest or 0)
        missing = seen.missing(1, logged)
        pending = _size(seen.missing(witness.safe_seq + 1, logged)) if alive else witness.in_spool(missing)
        found = ProducerAudit(
            producer=producer.hex(),
            rank=info.rank,
            attempt=info.attempt,
            role=info.role,
            host=info.host,
            pid=info.pid,
            state=_state(info, alive=alive),
            status=info.status or (witness.spool.status if witness.spool is not None else ""),
            logged=logged,
            acked=max(witness.safe_seq, missing[0][0] - 1 if missing else logged),
            journal=len(seen),
            pending=pending,
            lost=_size(missing) - pending,
            missing=missing,
            values=self._values[producer],
            dropped=most_dropped(info.dropped, witness.dropped),
        )
        if found.lost:
            self._problems.append(_loss(found, alive=alive))
        return found

    def _status(self, producers: list[ProducerAudit]) -> str:
        if self._closed_as is not None:
            return self._closed_as
        is_going_on = self._evidence.snapshot.is_current or any(producer.state == "alive" for producer in producers)
        return "running" if is_going_on else "open"

    def _note_damage(self, corrupt: dict[str, int], unknown_kinds: int) -> None:
        # A row that is being written looks torn.
        noted = {reason: count for reason, count in corrupt.items() if not (reason == "torn" and self._evidence.snapshot.is_current)}
        if noted:
            listed = ", ".join(f"{reason} {count}" for reason, count in sorted(noted.items()))
            self._notes.append(f"damaged or foreign bytes in the journal were skipped ({listed})")
        if unknown_kinds:
            self._notes.append(f"{unknown_kinds} frames of a kind that this version does not know were skipped")
        if self._evidence.snapshot.trouble and self._run_dir.status_path.exists():
            self._notes.append(self._evidence.snapshot.trouble)


def _size(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _loss(found: ProducerAudit, *, alive: bool | None) -> str:
    listed = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in found.missing[:5])
    more = f" and {len(found.missing) - 5} more ranges" if len(found.missing) > 5 else ""
    who = f"rank {found.rank}, attempt {found.attempt}" + (f" ({found.role})" if found.role not in ("", "trainer") else "")
    if alive is None:
        return f"{who}: {found.lost} events are not in the journal (numbers {listed}{more}); they may be in a spool on {found.host or 'its host'}: run accelbus salvage there"
    why = "they were acked, and are not in the journal" if alive else "its process is gone and no spool holds them"
    return f"{who}: {found.lost} of {found.logged} events are lost (numbers {listed}{more}); {why}"


def _state(info: ProducerInfo, *, alive: bool | None) -> str:
    if alive:
        return "alive"
    if info.state in ("finished", "dead", "lost"):
        return info.state
    if alive is None:
        return "unknown"
    return "finished" if info.status == "finished" else "gone"


def _keep_quiet(reader: JournalReader) -> None:
    """Nobody watches."""


__all__ = ["Audit", "ProducerAudit", "RankBooks", "SinkAudit", "audit", "sinks_of"]
