"""The stream of one rank, for a tracker that only that rank has: nothing is merged, and nothing waits for another rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from accelbus.config import Tuning
from accelbus.events import Metrics
from accelbus.view.emission import Point, View, ViewState
from accelbus.view.ranks import Attempt
from accelbus.view.rules import Rules

if TYPE_CHECKING:
    from accelbus.journal.merge import Item

_NOBODY: Final = ("",)
"""Sinks of an event that is for no sink there is."""


class OneRankView(View):
    """A `View` of what *rank* logs, for a sink called *sink*. What other ranks log counts as filtered."""

    def __init__(self, rank: int, rules: Rules, state: ViewState | None = None, *, tuning: Tuning, sink: str) -> None:
        super().__init__(rules, state, tuning=tuning, sink=sink)
        self._rank = rank

    def feed(self, items: Iterable[Item]) -> list[Point]:
        return super().feed(self._addressed(items))

    def _addressed(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if isinstance(item.event, Metrics) and item.rank != self._rank:
                yield item._replace(event=msgspec.structs.replace(item.event, sinks=_NOBODY))
            else:
                yield item

    def _awaited(self, attempt: Attempt, step: int, usual: frozenset[int] | None) -> set[int]:
        return super()._awaited(attempt, step, usual) & {self._rank}


__all__ = ["OneRankView"]
