"""What is known about the producers of a run from everywhere but the journal: the bus process's last word and the spools."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from accelbus import host
from accelbus.config import Tuning
from accelbus.journal.intervals import Intervals, Range
from accelbus.journal.producers import ProducerInfo
from accelbus.reader.snapshot import ProducerLine, Snapshot, read_snapshot
from accelbus.reader.spools import SpoolView, look_at_spools
from accelbus.rundir import RunDir

ENDED = frozenset({"finished", "dead", "lost"})
"""States of a producer, as a bus process records them, that nothing follows."""


class Witness(msgspec.Struct):
    """What others than the journal say about one producer."""

    last_seq: int = 0
    acked: int = 0
    dropped: dict[str, int] = {}
    line: ProducerLine | None = None
    spool: SpoolView | None = None

    @property
    def safe_seq(self) -> int:
        """Everything up to here was acked or spilled: it must be in the journal."""
        return max(self.acked, self.spool.released_seq if self.spool is not None else 0)

    def describe(self) -> ProducerInfo:
        """Return what the journal would say about a producer of which it has nothing."""
        if self.spool is not None:
            hello = self.spool.hello
            return ProducerInfo(
                rank=hello.rank, role=hello.role, world_size=hello.world_size, host=hello.host, pid=hello.pid, launch=hello.launch
            )
        line = self.line or ProducerLine()
        return ProducerInfo(
            rank=line.rank, attempt=line.attempt, role=line.role, host=line.host, pid=line.pid, state=line.state, status=line.status
        )

    def is_alive(self, info: ProducerInfo, *, bus_is_running: bool) -> bool | None:
        """Whether the producer still runs; None when that cannot be known here. *info* is what the journal says."""
        if self.spool is not None and self.spool.is_alive is not None:
            # The lock proves it; everything else is hearsay.
            return self.spool.is_alive
        if info.state in ENDED or (info.status and info.state != "alive"):
            return False
        if bus_is_running and self.line is not None:
            return self.line.state not in ENDED
        where, pid = (info.host, info.pid) if info.host else (self.line.host, self.line.pid) if self.line is not None else ("", 0)
        return host.process_exists(pid) if where == host.name() else None

    def in_spool(self, missing: Iterable[Range]) -> int:
        """Return how many of the *missing* sequence numbers the spool still holds."""
        held = Intervals(self.spool.held if self.spool is not None else ())
        missing = list(missing)
        return sum(last - first + 1 for first, last in missing) - sum(
            last - first + 1 for one in missing for first, last in held.missing(*one)
        )


class Evidence:
    """Everything, in the order in which it must be gathered: what comes later in an event's life is looked at later, so that an event
    under way is seen at least once.
    """

    def __init__(self, run_dir: RunDir, *, tuning: Tuning) -> None:
        self.snapshot: Snapshot = read_snapshot(run_dir.status_path, tuning=tuning)
        self.witnesses: dict[bytes, Witness] = {}
        """{producer: what is said of it}"""
        for line in self.snapshot.ranks:
            self._hear(line)
        for spool in look_at_spools(Path(run_dir.path), tuning=tuning):
            self._see(spool)

    def of(self, producer: bytes) -> Witness:
        return self.witnesses.get(producer) or Witness()

    def _hear(self, line: ProducerLine) -> None:
        try:
            producer = bytes.fromhex(line.producer)
        except ValueError:
            return
        self.witnesses[producer] = Witness(max(line.logged, line.acked), line.acked, dict(line.dropped), line)

    def _see(self, spool: SpoolView) -> None:
        witness = self.witnesses.setdefault(spool.hello.producer, Witness())
        witness.spool = spool
        witness.last_seq = max(witness.last_seq, spool.last_seq)
        witness.dropped = most_dropped(witness.dropped, spool.dropped)


def most_dropped(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Return the higher count for each reason: counters only grow, so the higher one is the later."""
    return {reason: max(one.get(reason, 0), other.get(reason, 0)) for reason in sorted(one.keys() | other.keys())}


__all__ = ["ENDED", "Evidence", "Witness", "most_dropped"]
