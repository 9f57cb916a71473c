"""What is said of a run: the document that ``accelbus status --json`` prints.

Documented in ``docs/reference/cli.md``. Fields are added, never renamed or removed.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from accelbus.journal.intervals import Range
from accelbus.reader.snapshot import BusState

SinkState: TypeAlias = Literal[
    "starting", "running", "up_to_date", "retrying", "blocked", "waiting", "finished", "owed", "stopped", "fenced"
]
"""Of a sink with somebody who delivers: as in `accelbus.delivery.status.State`. Else finished, up_to_date (nothing is owed as far as
the run has come), or owed."""
_FAILING = frozenset({"retrying", "blocked"})


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
    spool: str
    """What its events lie on until they are acked: tmpfs, disk, memory; empty when that is not known."""
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
    dead_letters: int
    """Lines in its file of dead letters: rows, and configurations, summaries, … of the run."""
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
        failing = any(sink.state in _FAILING or sink.dead_lettered or sink.dead_letters for sink in self.sinks)
        return not (owed or failing or self.lost or self.dropped or self.problems)

    @property
    def not_kept(self) -> int:
        """What producers counted instead of keeping it, for whatever reason."""
        return sum(self.dropped.values())


__all__ = ["BusReport", "RankReport", "RankValues", "Report", "SinkReport", "SinkState"]
