"""What a sink reads: the journal from its cursor, merged by a view into rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accelbus.config import SinkOptions, Tuning
from accelbus.delivery.cursor import Cursor
from accelbus.delivery.ledger import OwedRow, Rows, rows_of
from accelbus.delivery.selection import Amounts, Selection
from accelbus.delivery.statements import Kind, Statements
from accelbus.events import Metrics, ProducerJoined, RunClosed, RunStart
from accelbus.journal.merge import Item, JournalReader, ReaderState
from accelbus.rundir import RunDir
from accelbus.tracking import name_and_rank
from accelbus.view import OneRankView, Point, Rules, View


class Batch(NamedTuple):
    """What one look into the journal gave."""

    items: int = 0
    rows: list[OwedRow] = []  # noqa: RUF012  nobody changes it
    media: list[OwedRow] = []  # noqa: RUF012  nobody changes it
    left_out: Amounts = {}  # noqa: RUF012  nobody changes it
    """{rank: values that the sink's options let go nowhere}"""
    changed: frozenset[Kind] = frozenset()
    """What else was said."""
    oldest_ns: int = 0
    """Receive time of the first item; 0 when there is none."""


class Source:
    """Follow the journal of *run_dir* from *cursor*.

    Args:
        run_dir: of the run.
        cursor: where to go on.
        tuning: for reader and view.
        sink: who reads.
        options: what the sink gets.
    """

    def __init__(self, run_dir: RunDir, cursor: Cursor, *, tuning: Tuning, sink: str = "", options: SinkOptions | None = None) -> None:
        self._journal = run_dir.journal
        self._tuning = tuning
        self._reader = JournalReader(self._journal, cursor.reader, tuning=tuning)
        self._finished_at: ReaderState | None = None
        _, rank = name_and_rank(sink)
        self.view = (
            View(Rules(), cursor.view, tuning=tuning, sink=sink)
            if rank is None
            else OneRankView(rank, Rules(), cursor.view, tuning=tuning, sink=sink)
        )
        self.statements = Statements(cursor, sink, run_dir.blobs)
        self._selection = Selection(options or SinkOptions(), cursor.selection)
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
        rows, left_out = self._rows(self.view.finish())
        for rank, values in batch.left_out.items():
            left_out[rank] = left_out.get(rank, 0) + values
        return batch._replace(rows=batch.rows + rows.scalars, media=batch.media + rows.media, left_out=left_out)

    def save_to(self, cursor: Cursor) -> None:
        """Write into *cursor* from where a later source goes on."""
        cursor.reader = self._finished_at if self._finished_at is not None else self._reader.state()
        cursor.view = self.view.state()
        cursor.closed_as = self.closed_as
        cursor.joined_ns = self._joined_ns
        cursor.closed_ns = self._closed_ns

    def journal_counts(self) -> dict[str, int]:
        """Return what the reader counted, flat."""
        return _flat(self._reader.statistics())

    def _batch(self, items: Sequence[Item]) -> Batch:
        changed: set[Kind] = set()
        for item in items:
            event = item.event
            if isinstance(event, Metrics):
                continue
            if isinstance(event, RunClosed):
                self._close(item.received_ns, event.status)
            elif isinstance(event, RunStart | ProducerJoined):
                self._open(item.received_ns)
            if (kind := self.statements.take(item)) is not None:
                changed.add(kind)
        rows, left_out = self._rows(self.view.feed(items))
        return Batch(len(items), rows.scalars, rows.media, left_out, frozenset(changed), items[0].received_ns if items else 0)

    def _rows(self, points: list[Point]) -> tuple[Rows, Amounts]:
        chosen, left_out = self._selection.choose(points)
        return rows_of(chosen, self.view.keywords.get), left_out

    def _close(self, at_ns: int, status: str) -> None:
        # By time and not by order: a writer's directory may be found late, with a word older than what was read.
        if at_ns >= max(self._joined_ns, self._closed_ns):
            self._closed_ns = at_ns
            self.closed_as = status

    def _open(self, at_ns: int) -> None:
        self._joined_ns = max(self._joined_ns, at_ns)
        # Also at the same time: a word and the next one may share a row, and were read in their order.
        if at_ns >= self._closed_ns:
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
