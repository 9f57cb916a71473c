"""Rows that a tracker has taken, kept for a while: its service may refuse one later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from accelbus.delivery.ledger import OwedRow
from accelbus.tracking import RefusedRow, Row

_MOST_VALUES: Final = 100_000
"""Of all rows that are kept, some 20 MB: what a service refuses it refuses within seconds."""


class Refused(NamedTuple):
    """What a tracker's service will not have."""

    row: Row
    contributions: dict[int, int]
    """{rank: values}; empty when the row is not known any more."""
    reason: str


class HandedRows:
    """The latest rows a tracker has taken, by what it may say of them later."""

    def __init__(self, most_values: int = _MOST_VALUES) -> None:
        self._most_values = most_values
        self._steps: dict[int, list[OwedRow]] = {}
        self._values = 0

    def add(self, rows: Iterable[OwedRow]) -> None:
        """The tracker has taken *rows*."""
        for owed in rows:
            self._steps.setdefault(owed.row.step, []).append(owed)
            self._values += len(owed.row.values)
        while self._values > self._most_values and len(self._steps) > 1:
            self._values -= sum(len(owed.row.values) for owed in self._steps.pop(next(iter(self._steps))))

    def refused(self, refusal: RefusedRow) -> Iterator[Refused]:
        """Yield what *refusal* is about, from newest to oldest, and forget it: no value is refused twice.

        A row that is not known any more is yielded as far as the tracker has named it.
        """
        keys = set(refusal.keys)
        rows = self._steps.get(refusal.step, [])
        for index in reversed(range(len(rows))):
            owed = rows[index]
            found = keys & owed.row.values.keys() if refusal.keys else set(owed.row.values)
            if not found or not _may_be_meant(owed, refusal):
                continue
            rows[index], refused = _split(owed, found, refusal.reason)
            self._values -= len(found)
            yield refused
            keys -= found
            if not keys:
                return
        yield Refused(Row(refusal.step, dict.fromkeys(sorted(keys), ""), 0, refusal.attempt), {}, refusal.reason)


def _may_be_meant(owed: OwedRow, refusal: RefusedRow) -> bool:
    """A hook for media is not told the attempt: the key decides."""
    return bool(refusal.keys) if owed.media_key is not None else owed.row.attempt == refusal.attempt


def _split(owed: OwedRow, keys: set[str], reason: str) -> tuple[OwedRow, Refused]:
    """Return *owed* without *keys*, and these."""
    row = owed.row
    if owed.media_key is not None or keys == row.values.keys():
        return owed._replace(row=row._replace(values={}), contributions={}), Refused(row, dict(owed.contributions), reason)
    out: dict[int, int] = {}
    for key in keys:
        for rank, amount in owed.points[key].contributions.items():
            out[rank] = out.get(rank, 0) + amount
    left = {rank: amount - out.get(rank, 0) for rank, amount in owed.contributions.items()}
    kept = row._replace(values={key: value for key, value in row.values.items() if key not in keys})
    gone = row._replace(values={key: value for key, value in row.values.items() if key in keys})
    return owed._replace(row=kept, contributions=left), Refused(gone, out, reason)


__all__ = ["HandedRows", "Refused"]
