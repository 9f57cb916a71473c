"""Sets of sequence numbers, kept as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]
"""First and last number, both included."""


class Intervals:
    """A set of integers in which neighbours are usually present: kept as sorted ranges that never touch.

    Adding behind the last range, what happens for nearly every frame, takes constant time; everything else is a binary search.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Put *first* to *last* in; whatever of it is in already does no harm."""
        if last < first:
            return
        firsts, lasts = self._firsts, self._lasts
        if lasts and first == lasts[-1] + 1:
            lasts[-1] = last
            return
        # Ranges that overlap or touch [first, last] melt into one.
        low = bisect_left(lasts, first - 1)
        high = bisect_right(firsts, last + 1)
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def missing(self, first: int, last: int) -> list[Range]:
        """Return the parts of *first* to *last* that are not in the set, in order."""
        if not self._lasts or first > self._lasts[-1]:
            return [(first, last)] if first <= last else []
        holes: list[Range] = []
        for index in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[index] > last:
                break
            if first < self._firsts[index]:
                holes.append((first, self._firsts[index] - 1))
            first = self._lasts[index] + 1
        if first <= last:
            holes.append((first, last))
        return holes

    def ranges(self) -> list[Range]:
        """Return a copy of the ranges, in order."""
        return list(zip(self._firsts, self._lasts, strict=True))

    @property
    def highest(self) -> int | None:
        """Largest number in the set."""
        return self._lasts[-1] if self._lasts else None

    def __contains__(self, number: int) -> bool:
        index = bisect_left(self._lasts, number)
        return index < len(self._firsts) and self._firsts[index] <= number

    def __len__(self) -> int:
        """Return how many numbers are in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and self.ranges() == other.ranges()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Intervals({self.ranges()!r})"
