"""Values that come after their events: the other half of `accelbus.pending`, for every reader of the journal.

What a reader makes of marks and fills depends on the order of one producer's events only, so all readers make the same of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from accelbus.events import Fill
from accelbus.journal.bodies import FlatMetrics, PendingMetrics
from accelbus.journal.items import Item

_MOST_AWAITED: Final = 65_536
"""Values on their way that are remembered, of all producers together; the oldest are forgotten first."""
_MOST_EARLY: Final = 256
"""Values without an event, likewise. Their events are milliseconds away, or, where encoding was tried twice, do not exist."""


class Awaited(msgspec.Struct, array_like=True):
    """One value that is on its way."""

    producer: bytes
    token: int
    key: str
    time_ns: int
    step: int | None
    auto_step: int
    sinks: tuple[str, ...]


class FillsState(msgspec.Struct, array_like=True):
    """Snapshot of `Fills`."""

    awaited: list[Awaited] = []
    early: list[tuple[bytes, int, Any]] = []
    """Values that came before their events: (producer, token, value)"""
    wanted: dict[bytes, int] = {}


class Fills:
    """What is on its way, per producer."""

    def __init__(self, state: FillsState | None = None) -> None:
        state = state or FillsState()
        self._awaited = {(one.producer, one.token): one for one in state.awaited}
        self._early = {(producer, token): value for producer, token, value in state.early}
        self._wanted = dict(state.wanted)

    def __bool__(self) -> bool:
        """Whether anything is held or on its way."""
        return bool(self._awaited or self._wanted)

    def expect(self, item: Item, event: PendingMetrics, step: int | None) -> list[FlatMetrics]:
        """Wait for the marked values of *event*; return those that have come before it, as an event of their own.

        Args:
            item: of the event.
            event: with marks.
            step: what its values belong to.
        """
        here: dict[str, Any] = {}
        for key, token in event.marks.items():
            name = (item.producer, token)
            if name in self._early:
                if (value := self._early.pop(name)) is not None:
                    here[key] = value
            else:
                self._awaited[name] = Awaited(item.producer, token, key, event.time_ns, step, event.auto_step, event.sinks)
        _forget(self._awaited, _MOST_AWAITED)
        return [FlatMetrics(event.time_ns, step, here, event.auto_step, event.sinks)] if here else []

    def take(self, item: Item, event: Fill) -> list[FlatMetrics]:
        """Return what the values of *event* are, as events of the time and step at which they were logged."""
        filled: list[FlatMetrics] = []
        for token, value in event.values.items():
            name = (item.producer, token)
            awaited = self._awaited.pop(name, None)
            if awaited is None:
                self._early[name] = value
            elif value is not None:
                last = filled[-1] if filled else None
                if last is not None and (last.time_ns, last.step, last.sinks) == (awaited.time_ns, awaited.step, awaited.sinks):
                    last.values[awaited.key] = value
                else:
                    filled.append(FlatMetrics(awaited.time_ns, awaited.step, {awaited.key: value}, awaited.auto_step, awaited.sinks))
        _forget(self._early, _MOST_EARLY)
        return filled

    def passed(self, producer: bytes, step: int) -> int:
        """Return up to where *producer* has come, when its events have come to *step*: not past a value that is on its way."""
        wanted = max(step, self._wanted.get(producer, step))
        held = min((one.step for one in self._of(producer) if one.step is not None), default=wanted)
        if held < wanted:
            self._wanted[producer] = wanted
            return held
        self._wanted.pop(producer, None)
        return wanted

    def held(self, producer: bytes) -> int | None:
        """Return up to where *producer* would have come without what is on its way, None if that makes no difference."""
        return self._wanted.get(producer)

    def end(self, producer: bytes) -> None:
        """Nothing more will come from *producer*."""
        self._wanted.pop(producer, None)
        for waiting in (self._awaited, self._early):
            for name in [name for name in waiting if name[0] == producer]:
                del waiting[name]

    def state(self) -> FillsState:
        """Return a snapshot."""
        early = [(producer, token, value) for (producer, token), value in self._early.items()]
        return FillsState(list(self._awaited.values()), early, dict(self._wanted))

    def _of(self, producer: bytes) -> Iterator[Awaited]:
        return (one for one in self._awaited.values() if one.producer == producer)


def _forget(waiting: dict[tuple[bytes, int], Any], most: int) -> None:
    while len(waiting) > most:
        del waiting[next(iter(waiting))]


__all__ = ["Awaited", "Fills", "FillsState"]
