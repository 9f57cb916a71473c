"""The books of one sink: where every value is that left the view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from accelbus.delivery.cursor import Delivered, OwedMedia
from accelbus.delivery.status import RankCounts
from accelbus.tracking import Row
from accelbus.view import Point, View

_MEDIA_OVERHEAD: Final = 64
"""Bytes around a media value in a cursor."""


class OwedRow(NamedTuple):
    """A row for the tracker and the values that its delivery settles."""

    row: Row
    contributions: Mapping[int, int]
    """{rank: values}"""
    media_key: str | None = None
    """The row is this one media value; the tracker gets it through a hook of its own."""
    points: Mapping[str, Point] = {}
    """{key: what the value was made of}; of no use for media, whose contributions are the row's."""

    @property
    def label(self) -> str:
        """Name of the row in messages and over restarts."""
        place = f"{self.row.attempt}:{self.row.step}"
        return place if self.media_key is None else f"{place}:{self.media_key}"

    @property
    def media(self) -> msgspec.msgpack.Ext:
        """The packed value of a row that is one media value."""
        value: Any = self.row.values[self.media_key or ""]
        assert isinstance(value, msgspec.msgpack.Ext)
        return value

    @property
    def media_bytes(self) -> int:
        """How much of a cursor a media value takes."""
        return memoryview(self.media.data).nbytes + len(self.media_key or "") + _MEDIA_OVERHEAD


class Rows(NamedTuple):
    """What a batch of points leads to. Media are rows of their own: nothing waits for them, and nothing fails with them."""

    scalars: list[OwedRow]
    media: list[OwedRow]


class Ledger:
    """Count values per rank from the view to the tracker: queued, taken (not yet durable), delivered or dead-lettered."""

    def __init__(self, settled: Mapping[int, Delivered] | None = None) -> None:
        self._queued: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()
        self._delivered: Counter[int] = Counter()
        self._dead: Counter[int] = Counter()
        self._filtered: Counter[int] = Counter()
        for rank, counts in (settled or {}).items():
            self._delivered[rank] = counts.delivered
            self._dead[rank] = counts.dead_lettered
            self._filtered[rank] = counts.filtered

    def queue(self, rows: Iterable[OwedRow]) -> None:
        for owed in rows:
            _add(self._queued, owed.contributions)

    def leave_out(self, amounts: Mapping[int, int]) -> None:
        """The sink's options let {rank: values} go nowhere."""
        _add(self._filtered, amounts)

    def take(self, rows: Iterable[OwedRow]) -> None:
        """The tracker has *rows*; they are durable after `settle`."""
        for owed in rows:
            _add(self._queued, owed.contributions, sign=-1)
            _add(self._taken, owed.contributions)

    def give_up(self, owed: OwedRow) -> None:
        """*owed* is in the dead letters."""
        _add(self._queued, owed.contributions, sign=-1)
        _add(self._dead, owed.contributions)

    def refuse(self, amounts: Mapping[int, int]) -> None:
        """{rank: values} that the tracker had taken are in the dead letters after all."""
        for rank, amount in amounts.items():
            taken = min(amount, self._taken[rank])
            self._taken[rank] -= taken
            self._delivered[rank] -= amount - taken
            self._dead[rank] += amount

    def settle(self) -> None:
        """What the tracker has taken is durable."""
        _add(self._delivered, self._taken)
        self._taken.clear()

    def settled(self) -> dict[int, Delivered]:
        """Return what a cursor keeps."""
        ranks = self._delivered.keys() | self._dead.keys() | self._filtered.keys()
        return {rank: Delivered(self._delivered[rank], self._dead[rank], self._filtered[rank]) for rank in ranks}

    def balance(self, view: View) -> dict[int, RankCounts]:
        """Return the books of every rank *view* has read values of."""
        held = view.pending()
        return {
            rank: RankCounts(
                read=counts.read,
                delivered=self._delivered[rank],
                pending=held.get(rank, 0) + self._queued[rank] + self._taken[rank],
                filtered=counts.filtered + self._filtered[rank],
                superseded=counts.superseded,
                dead_lettered=self._dead[rank],
                late=counts.late,
            )
            for rank, counts in view.counts.items()
        }


def rows_of(points: Iterable[Point], keywords: Callable[[int, int], Mapping[str, Any]] | None = None) -> Rows:
    """Return *points* as rows, ordered by attempt and step: one for what a step has in numbers, text and lists, one per media value.

    Of a point emitted twice the later one counts.

    Args:
        points: from a view.
        keywords: (attempt, step) → what goes to the tracker's ``log`` beside the row.
    """
    values: dict[tuple[int, int], dict[str, Point]] = {}
    contributions: dict[tuple[int, int], dict[int, int]] = {}
    media: list[Point] = []
    for point in points:
        if isinstance(point.value, msgspec.msgpack.Ext):
            media.append(point)
            continue
        place = (point.attempt, point.step)
        if place not in values:
            values[place], contributions[place] = {}, {}
        row = values[place]
        row[point.key] = point if point.key not in row else _both(row[point.key], point)
        # By hand here and in the ledger: it is done for every row, and Counter.update takes its time.
        _add(contributions[place], point.contributions)
    scalars = [
        OwedRow(_row(place, values[place].values(), keywords), contributions[place], points=values[place]) for place in sorted(values)
    ]
    return Rows(scalars, _media_rows(media) if media else [])


def owed_media(rows: Iterable[OwedRow]) -> list[OwedMedia]:
    """Return what a cursor keeps of media *rows*."""
    return [
        OwedMedia(owed.row.attempt, owed.row.step, owed.media_key or "", owed.row.time_ns, owed.media, dict(owed.contributions))
        for owed in rows
    ]


def media_rows(owed: Iterable[OwedMedia]) -> list[OwedRow]:
    """Return the rows that `owed_media` was made of."""
    return [OwedRow(Row(m.step, {m.key: m.value}, m.time_ns, m.attempt), m.contributions, m.key) for m in owed]  # type: ignore[dict-item]  # packed media


def _media_rows(points: Iterable[Point]) -> list[OwedRow]:
    latest: dict[tuple[int, int, str], OwedMedia] = {}
    for point in points:
        place = (point.attempt, point.step, point.key)
        contributions = dict(latest[place].contributions) if place in latest else {}
        _add(contributions, point.contributions)
        assert isinstance(point.value, msgspec.msgpack.Ext)
        latest[place] = OwedMedia(*place, point.time_ns, point.value, contributions)
    return media_rows(latest[place] for place in sorted(latest))


def _add(total: dict[int, int], amounts: Mapping[int, int], *, sign: int = 1) -> None:
    for rank, amount in amounts.items():
        total[rank] = total.get(rank, 0) + sign * amount


def _both(earlier: Point, later: Point) -> Point:
    contributions = dict(earlier.contributions)
    _add(contributions, later.contributions)
    return later._replace(contributions=contributions)


def _row(place: tuple[int, int], points: Iterable[Point], keywords: Callable[[int, int], Mapping[str, Any]] | None) -> Row:
    attempt, step = place
    points = list(points)
    # No media among them.
    row = Row(step, {point.key: point.value for point in points}, max(point.time_ns for point in points), attempt)  # type: ignore[misc]
    return row if keywords is None or not (given := keywords(attempt, step)) else row._replace(log_kwargs=given)


__all__ = ["Ledger", "OwedRow", "Rows", "media_rows", "owed_media", "rows_of"]
