"""Emitted points: the latest can still change, of the others only their steps are remembered."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import msgspec

from accelbus.view.steps import StepSet
from accelbus.view.usual import KEYS

POINT_COST: Final = 48
VALUE_COST: Final = 16
"""Bytes that a point and each of its values take in a cursor, generously."""


class EmittedPoint(msgspec.Struct, array_like=True, gc=False):
    """What a late value needs to know of a point. Text that was emitted is kept as an empty string: only that it was text counts."""

    attempt: int
    step: int
    key: str
    time_ns: int
    values: dict[int, Any]
    """{contributor: value}"""

    def cost(self) -> int:
        return POINT_COST + len(self.key) + VALUE_COST * len(self.values)


class Left(msgspec.Struct, array_like=True):
    """Steps of one key whose points left the horizon."""

    attempt: int
    steps: StepSet
    """Of ``attempt``, the newest."""
    older: StepSet
    """Of all attempts before it."""


class HorizonState(msgspec.Struct, array_like=True):
    """Snapshot of a `Horizon`."""

    points: list[EmittedPoint] = []
    left: dict[str, Left] = {}


class Horizon:
    """The last *points* emitted points, in at most about *size* bytes."""

    def __init__(self, points: int, size: int, state: HorizonState | None = None) -> None:
        self._limit = points
        self._size = size
        self._points: OrderedDict[tuple[int, str], EmittedPoint] = OrderedDict()
        self._cost = 0
        self._left: dict[str, Left] = {}
        if state is not None:
            copied = _copy(state)
            self._left = copied.left
            self._points.update(((point.step, point.key), point) for point in copied.points)
            self._cost = sum(point.cost() for point in copied.points)

    def state(self) -> HorizonState:
        return _copy(HorizonState(list(self._points.values()), self._left))

    def get(self, step: int, key: str) -> EmittedPoint | None:
        """Return the point emitted for *step* and *key*, while it can change."""
        return self._points.get((step, key))

    def put(self, point: EmittedPoint) -> None:
        """Remember *point*, in place of what was emitted for its step and key before; the oldest points may leave."""
        place = (point.step, point.key)
        if (former := self._points.pop(place, None)) is not None:
            self._cost -= former.cost()
        self._points[place] = point
        self._cost += point.cost()
        while len(self._points) > self._limit or self._cost > self._size:
            self._leave(self._points.popitem(last=False)[1])

    def change(self, point: EmittedPoint, values: dict[int, Any]) -> None:
        """Replace the values of a remembered *point*; it keeps its age."""
        self._cost += VALUE_COST * (len(values) - len(point.values))
        point.values = values

    def has_left(self, attempt: int, step: int, key: str) -> bool:
        """Whether a point of *attempt*, or of a newer one, for *step* and *key* was emitted and can no longer change."""
        left = self._left.get(key)
        if left is None or attempt > left.attempt:
            return False
        return step in left.steps or (attempt < left.attempt and step in left.older)

    def _leave(self, point: EmittedPoint) -> None:
        self._cost -= point.cost()
        left = self._left.get(point.key)
        if left is None:
            if len(self._left) >= KEYS:
                # Keys that were invented along the way; a value that comes that late for one would be taken for a first one.
                del self._left[next(iter(self._left))]
            left = self._left[point.key] = Left(point.attempt, StepSet(), StepSet())
        if point.attempt > left.attempt:
            left.older.update(left.steps)
            left.attempt, left.steps = point.attempt, StepSet()
        (left.steps if point.attempt == left.attempt else left.older).add(point.step)


def _copy(state: HorizonState) -> HorizonState:
    points = [EmittedPoint(point.attempt, point.step, point.key, point.time_ns, dict(point.values)) for point in state.points]
    left = {key: Left(entry.attempt, entry.steps.copy(), entry.older.copy()) for key, entry in state.left.items()}
    return HorizonState(points, left)


__all__ = ["POINT_COST", "VALUE_COST", "EmittedPoint", "Horizon", "HorizonState"]
