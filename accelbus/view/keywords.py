"""Keyword arguments that one ``log`` call gave for its sink: they belong to the step, and go with its rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

STEPS: Final = 256
"""Steps whose arguments are remembered: points of a step may come a while after one another."""
BYTES: Final = 64 * 1024
"""Bytes they take together in a cursor. Beyond either bound the oldest steps' are forgotten."""

NO_KEYWORDS: Final[Mapping[str, Any]] = {}


class StepKeywords(msgspec.Struct, array_like=True):
    """What was given for one step."""

    attempt: int
    step: int
    giver: int
    """The lowest contributor that gave any; its arguments count."""
    arguments: dict[str, Any]


class Keywords:
    """The arguments of the latest steps that have any."""

    def __init__(self, state: list[StepKeywords]) -> None:
        self._steps: OrderedDict[tuple[int, int], tuple[StepKeywords, int]] = OrderedDict()
        self._cost = 0
        for entry in state:
            self._put(entry)

    def state(self) -> list[StepKeywords]:
        return [entry for entry, _ in self._steps.values()]

    def get(self, attempt: int, step: int) -> Mapping[str, Any]:
        """Return the arguments for a row of *step*."""
        known = self._steps.get((attempt, step)) if self._steps else None
        return NO_KEYWORDS if known is None else known[0].arguments

    def add(self, attempt: int, step: int, giver: int, arguments: Mapping[str, Any]) -> None:
        """Remember what *giver* gave; of one giver the later call adds to the former."""
        known = self._steps.get((attempt, step))
        if known is not None and known[0].giver < giver:
            return
        former = known[0].arguments if known is not None and known[0].giver == giver else {}
        self._put(StepKeywords(attempt, step, giver, {**former, **arguments}))

    def _put(self, entry: StepKeywords) -> None:
        _, cost = self._steps.pop((entry.attempt, entry.step), (None, 0))
        size = len(_encode(entry))
        self._steps[entry.attempt, entry.step] = entry, size
        self._cost += size - cost
        while len(self._steps) > STEPS or self._cost > BYTES:
            self._cost -= self._steps.popitem(last=False)[1][1]


_encode = msgspec.msgpack.Encoder().encode

__all__ = ["NO_KEYWORDS", "Keywords", "StepKeywords"]
