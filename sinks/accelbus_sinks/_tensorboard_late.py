"""Keep points visible that a late one would hide.

TensorBoard's data server takes a step that does not follow the newest one of its curve for a restart from a checkpoint, and drops
the curve from that step on (its ``reservoir.rs``, "Preemption"). Points that come late are therefore held until the next flush and
written together with the points that follow them, again. Readers that keep everything see those twice, with equal values.
"""

from __future__ import annotations

import math
from typing import Any, Final

from accelbus.tracking import Row

VALUES_KEPT: Final = 16_384
"""How far back later points are known, in values; a view changes fewer."""


class LatePoints:
    """The end of every curve, by step."""

    def __init__(self, values_kept: int = VALUES_KEPT) -> None:
        self._values_kept = values_kept
        self.attempt = 0
        self._highest = -math.inf
        self._last: dict[str, int] = {}
        self._rows: dict[int, list[Row]] = {}
        self._kept = 0
        # {key: lowest step at which it came late}
        self._held: dict[str, int] = {}

    def begin_attempt(self, attempt: int) -> list[Row]:
        """Forget the curves: what follows may go back, and the data server is right about it. Return what was still held."""
        rows = self.release()
        self.attempt = attempt
        self._highest = -math.inf
        self._last.clear()
        self._rows.clear()
        self._kept = 0
        return rows

    def pass_on(self, row: Row) -> Row:
        """Return what of *row* can be written now; the rest is held for `release`."""
        now = row
        if row.step < self._highest:
            now = self._hold(row)
        self._highest = max(self._highest, row.step)
        self._last.update(dict.fromkeys(now.values, row.step))
        self._rows.setdefault(row.step, []).append(row)
        self._kept += len(row.values)
        return now

    def release(self) -> list[Row]:
        """Return the held points and all that follow them, in step order. Called before each flush."""
        rows = []
        if self._held:
            first = min(self._held.values())
            rows = [self._again(step) for step in sorted(step for step in self._rows if step >= first)]
            self._held.clear()
        self._trim()
        return [row for row in rows if row.values]

    def _hold(self, row: Row) -> Row:
        late = {key for key in row.values if self._last.get(key, row.step) > row.step}
        for key in late:
            self._held[key] = min(row.step, self._held.get(key, row.step))
        return row._replace(values={key: value for key, value in row.values.items() if key not in late})

    def _again(self, step: int) -> Row:
        values: dict[str, Any] = {}
        for row in self._rows[step]:
            values.update((key, value) for key, value in row.values.items() if self._held.get(key, step + 1) <= step)
        return self._rows[step][-1]._replace(values=values)

    def _trim(self) -> None:
        """Never between two releases: a held point may be in the oldest row."""
        # All steps at once: asking a dictionary for its first key again walks over everything that was taken from its front.
        for step in list(self._rows)[:-1] if self._kept > self._values_kept else ():
            if self._kept <= self._values_kept:
                break
            self._kept -= sum(len(row.values) for row in self._rows.pop(step))
