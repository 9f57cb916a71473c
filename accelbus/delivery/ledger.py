"""The books of one sink: where every value is that left the view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from accelbus.delivery.cursor import Delivered
from accelbus.delivery.status import RankCounts
from accelbus.tracking import Row
from accelbus.view import Point, View


class OwedRow(NamedTuple):
    """A row for the tracker and the values that its delivery settles."""

    row: Row
    contributions: Mapping[int, int]
    """{rank: values}"""

    @property
    def label(self) -> str:
        """Name of the row in messages and over restarts."""
        return f"{self.row.attempt}:{self.row.step}"


class Ledger:
    """Count values per rank from the view to the tracker: queued, taken (not yet durable), delivered or dead-lettered."""

    def __init__(self, settled: Mapping[int, Delivered] | None = None) -> None:
        self._queued: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()
        self._delivered: Counter[int] = Counter()
        self._dead: Counter[int] = Counter()
        for rank, counts in (settled or {}).items():
            self._delivered[rank] = counts.delivered
            self._dead[rank] = counts.dead_lettered

    def queue(self, rows: Iterable[OwedRow]) -> None:
        for owed in rows:
            _add(self._queued, owed.contributions)

    def take(self, rows: Iterable[OwedRow]) -> None:
        """The tracker has *rows*; they are durable after `settle`."""
        for owed in rows:
            _add(self._queued, owed.contributions, sign=-1)
            _add(self._taken, owed.contributions)

    def give_up(self, owed: OwedRow) -> None:
        """*owed* is in the dead letters."""
        _add(self._queued, owed.contributions, sign=-1)
        _add(self._dead, owed.contributions)

    def settle(self) -> None:
        """What the tracker has taken is durable."""
        _add(self._delivered, self._taken)
        self._taken.clear()

    def settled(self) -> dict[int, Delivered]:
        """Return what a cursor keeps."""
        return {rank: Delivered(self._delivered[rank], self._dead[rank]) for rank in self._delivered.keys() | self._dead.keys()}

    def balance(self, view: View) -> dict[int, RankCounts]:
        """Return the books of every rank *view* has read values of."""
        held = view.pending()
        return {
            rank: RankCounts(
                read=counts.read,
                delivered=self._delivered[rank],
                pending=held.get(rank, 0) + self._queued[rank] + self._taken[rank],
                filtered=counts.filtered,
                superseded=counts.superseded,
                dead_lettered=self._dead[rank],
                late=counts.late,
            )
            for rank, counts in view.counts.items()
        }


def rows_of(points: Iterable[Point]) -> list[OwedRow]:
    """Return *points* as rows: one per attempt and step, in that order. Of a point emitted twice the later one counts."""
    values: dict[tuple[int, int], dict[str, Point]] = {}
    contributions: dict[tuple[int, int], dict[int, int]] = {}
    for point in points:
        place = (point.attempt, point.step)
        if place not in values:
            values[place], contributions[place] = {}, {}
        values[place][point.key] = point
        # By hand here and in the ledger: it is done for every row, and Counter.update takes its time.
        _add(contributions[place], point.contributions)
    return [OwedRow(_row(place, values[place].values()), contributions[place]) for place in sorted(values)]


def _add(total: dict[int, int], amounts: Mapping[int, int], *, sign: int = 1) -> None:
    for rank, amount in amounts.items():
        total[rank] = total.get(rank, 0) + sign * amount


def _row(place: tuple[int, int], points: Iterable[Point]) -> Row:
    attempt, step = place
    points = list(points)
    return Row(step, {point.key: point.value for point in points}, max(point.time_ns for point in points), attempt)


__all__ = ["Ledger", "OwedRow", "rows_of"]
