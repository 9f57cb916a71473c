"""A set of steps in little space: training logs every n-th step, so runs of equal distance cover almost everything."""

from __future__ import annotations

import math
from typing import Final

import msgspec

RUNS: Final = 64
"""Runs kept per key. Beyond it the oldest two are covered by one, which then holds some steps that were never added."""


class StepSet(msgspec.Struct, array_like=True):
    """Steps as runs ``[first, last, distance]``. Exact up to `RUNS` runs; never forgets a step that was added."""

    runs: list[list[int]] = []
    highest: int | None = None

    def __contains__(self, step: int) -> bool:
        if self.highest is None or step > self.highest:
            return False
        return any(first <= step <= last and (step - first) % (distance or 1) == 0 for first, last, distance in reversed(self.runs))

    def add(self, step: int) -> None:
        """Add one step; cheap when steps come in order."""
        if step in self:
            return
        if self.highest is None or step > self.highest:
            self.highest = step
        if self.runs:
            run = self.runs[-1]
            _, last, distance = run
            if step > last and distance in (0, step - last):
                run[1], run[2] = step, step - last
                return
        self._append([step, step, 0])

    def update(self, other: StepSet) -> None:
        """Add all steps of *other*."""
        for run in other.runs:
            self._append(list(run))
        if other.highest is not None:
            self.highest = other.highest if self.highest is None else max(self.highest, other.highest)

    def copy(self) -> StepSet:
        return StepSet([list(run) for run in self.runs], self.highest)

    def _append(self, run: list[int]) -> None:
        self.runs.append(run)
        if len(self.runs) > RUNS:
            self.runs[:2] = [_cover(self.runs[0], self.runs[1])]


def _cover(one: list[int], other: list[int]) -> list[int]:
    """Return the smallest run that holds both."""
    first = min(one[0], other[0])
    return [first, max(one[1], other[1]), math.gcd(one[2], other[2], abs(one[0] - other[0]))]


__all__ = ["RUNS", "StepSet"]
