"""The audit: an exact scan of a run's journal, held against what its producers and its sinks say.

Two equations, at any moment, for every producer and for every rank and sink::

    producer → journal, in events:  logged  = journal + pending + lost
    journal → sink, in values:      journal = delivered + pending + filtered + superseded + dead_lettered

``logged`` counts the events that a producer numbered; what it did not take in the first place is in ``dropped``, by reason. An event is
pending while it is in a spool that can be salvaged or its producer lives, and lost otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from accelbus.config import Tuning, from_environment
from accelbus.errors import CorruptDataError, RunNotFoundError
from accelbus.events import Fill, Metrics, ProducerJoined, RunClosed, RunStart
from accelbus.journal.bodies import PendingMetrics
from accelbus.journal.fills import Fills
from accelbus.journal.merge import Item, JournalReader
from accelbus.journal.producers import ProducerInfo
from accelbus.reader.accounts import ProducerAudit, account_for
from accelbus.reader.books import RankBooks, SinkAudit, SinkLedger, sinks_of
from accelbus.reader.evidence import Evidence
from accelbus.rundir import RunDir, RunRecord


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
        self._fills = Fills()
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
            if isinstance(event, Metrics | Fill):
                values = self._count_values(item, event)
                self._values[item.producer] += values
                self._values_of_rank[item.rank] += values
                for ledger in self._ledgers:
                    ledger.meet(item.producer, item.rank, item.seq, values, item.received_ns)
            elif isinstance(event, RunClosed):
                self._closed_as = event.status
            elif isinstance(event, RunStart | ProducerJoined):
                self._closed_as = None

    def _count_values(self, item: Item, event: Metrics | Fill) -> int:
        """Return how many values came with *event*; those on their way come with a later one."""
        if isinstance(event, Fill):
            return sum(len(filled.values) for filled in self._fills.take(item, event))
        early = self._fills.expect(item, event, event.step) if type(event) is PendingMetrics else ()
        return len(event.values) + sum(len(filled.values) for filled in early)

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
        witness, bus_is_running = self._evidence.of(producer), self._evidence.snapshot.is_current
        found, loss = account_for(producer, info, witness, bus_is_running=bus_is_running, values=self._values[producer])
        self._problems += loss
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


def _keep_quiet(reader: JournalReader) -> None:
    """Nobody watches."""


__all__ = ["Audit", "ProducerAudit", "RankBooks", "SinkAudit", "audit"]
