"""What a sink reads: the journal from its cursor, merged by a view into rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accelbus.config import Tuning
from accelbus.delivery.cursor import Cursor, MergedConfig
from accelbus.delivery.ledger import OwedRow, rows_of
from accelbus.events import ConfigUpdate, ProducerJoined, RunClosed, RunStart
from accelbus.journal.merge import Item, JournalReader, ReaderState
from accelbus.rundir import RunDir
from accelbus.view import Point, Rules, View


class Batch(NamedTuple):
    """What one look into the journal gave."""

    items: int
    rows: list[OwedRow]
    config_changed: bool
    oldest_ns: int
    """Receive time of the first item; 0 when there is none."""


class Source:
    """Follow the journal of *run_dir* from *cursor*."""

    def __init__(self, run_dir: RunDir, cursor: Cursor, *, tuning: Tuning) -> None:
        self._journal = run_dir.journal
        self._tuning = tuning
        self._reader = JournalReader(self._journal, cursor.reader, tuning=tuning)
        self._finished_at: ReaderState | None = None
        self.view = View(Rules(), cursor.view, tuning=tuning)
        self.config: MergedConfig = cursor.config
        self.closed_as: str | None = cursor.closed_as
        """Status of the run if it is closed and nobody joined since."""
        self._joined_ns = cursor.joined_ns
        self._closed_ns = cursor.closed_ns

    def read(self, limit: int) -> Batch:
        """Return what at most *limit* new items lead to.

        Raises:
            OSError: the journal cannot be read now.
        """
        if self._finished_at is not None:
            self._reader = JournalReader(self._journal, self._finished_at, tuning=self._tuning)
            self._finished_at = None
        return self._batch(self._reader.read(limit))

    def finish(self) -> Batch:
        """Return all the rest: gaps are given up, open points are emitted. Reading on later is possible."""
        positions = self._reader.state().positions
        batch = self._batch(self._reader.finish())
        # A torn row at the end may be a row that is being written. What was handed out is not handed out again when its row is read
        # again, so going on from the positions before loses nothing and repeats nothing.
        self._finished_at = self._reader.state()
        self._finished_at.positions = positions
        return batch._replace(rows=batch.rows + rows_of(self.view.finish()))

    def save_to(self, cursor: Cursor) -> None:
        """Write into *cursor* from where a later source goes on."""
        cursor.reader = self._finished_at if self._finished_at is not None else self._reader.state()
        cursor.view = self.view.state()
        cursor.config = self.config
        cursor.closed_as = self.closed_as
        cursor.joined_ns = self._joined_ns
        cursor.closed_ns = self._closed_ns

    def journal_counts(self) -> dict[str, int]:
        """Return what the reader counted, flat."""
        return _flat(self._reader.statistics())

    def _batch(self, items: Sequence[Item]) -> Batch:
        config_changed = False
        for item in items:
            event = item.event
            if isinstance(event, ConfigUpdate):
                config_changed = self.config.merge(item.attempt, item.rank, event.values) or config_changed
            elif isinstance(event, RunClosed):
                self._close(item.received_ns, event.status)
            elif isinstance(event, RunStart | ProducerJoined):
                self._open(item.received_ns)
        points: list[Point] = self.view.feed(items)
        return Batch(len(items), rows_of(points), config_changed, items[0].received_ns if items else 0)

    def _close(self, at_ns: int, status: str) -> None:
        # By time and not by order: a writer's directory may be found late, with a word older than what was read.
        if at_ns >= max(self._joined_ns, self._closed_ns):
            self._closed_ns = at_ns
            self.closed_as = status

    def _open(self, at_ns: int) -> None:
        self._joined_ns = max(self._joined_ns, at_ns)
        if at_ns > self._closed_ns:
            self.closed_as = None


def _flat(statistics: object) -> dict[str, int]:
    counts: dict[str, int] = {}
    fields = statistics._asdict() if hasattr(statistics, "_asdict") else statistics
    if not isinstance(fields, dict):
        fields = {name: getattr(statistics, name) for name in getattr(statistics, "__struct_fields__", ())}
    for name, value in fields.items():
        if isinstance(value, int):
            counts[name] = value
        elif isinstance(value, dict):
            counts |= {f"{name}/{reason}": count for reason, count in value.items() if isinstance(count, int)}
    return counts


__all__ = ["Batch", "Source"]
