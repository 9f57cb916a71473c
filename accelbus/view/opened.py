"""Points that wait for more ranks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from accelbus.view.horizon import POINT_COST, VALUE_COST
from accelbus.view.rules import Value


class OpenPoint(msgspec.Struct, array_like=True, gc=False):
    """Values that wait for more ranks."""

    attempt: int
    step: int
    key: str
    first_ns: int
    """View time of the first value."""
    time_ns: int
    values: dict[int, Any]
    """{contributor: value}"""
    missing: set[int]
    """Ranks it waits for."""
    waits_for_all: bool
    """Whether those are all that may still log at the step, instead of the key's usual contributors."""
    cost: int
    """Bytes it takes in a cursor."""


class OpenPoints:
    """The open points, found by place, by step, by key and by age. All belong to the newest attempt: nothing waits for older ranks."""

    def __init__(self) -> None:
        # {(step, key): point}, oldest first: deadlines are met from the front.
        self._points: OrderedDict[tuple[int, str], OpenPoint] = OrderedDict()
        # {step: {key: point}}
        self._steps: dict[int, dict[str, OpenPoint]] = {}
        # {key: its steps, growing}
        self._keys: dict[str, list[int]] = {}
        self.cost = 0
        """Bytes all of them take in a cursor."""

    def __len__(self) -> int:
        return len(self._points)

    def __iter__(self) -> Iterator[OpenPoint]:
        """Iterate over the points, oldest first."""
        return iter(self._points.values())

    def get(self, step: int, key: str) -> OpenPoint | None:
        return self._points.get((step, key))

    def oldest(self) -> OpenPoint | None:
        return next(iter(self._points.values()), None)

    def has(self, key: str) -> bool:
        """Whether a point of *key* is open."""
        return key in self._keys

    def first(self, key: str) -> OpenPoint | None:
        """Return the point of *key* with the lowest step."""
        steps = self._keys.get(key)
        return None if steps is None else self._points[steps[0], key]

    def of_key(self, key: str) -> list[OpenPoint]:
        """Return the points of *key* in step order."""
        return [self._points[step, key] for step in self._keys.get(key, ())]

    def up_to(self, point: OpenPoint) -> list[OpenPoint]:
        """Return the points of its key up to and with *point*, in step order."""
        steps = self._keys[point.key]
        return [self._points[step, point.key] for step in steps[: bisect_right(steps, point.step)]]

    def add(self, point: OpenPoint) -> None:
        self._points[point.step, point.key] = point
        keys = self._steps.get(point.step)
        if keys is None:
            keys = self._steps[point.step] = {}
        keys[point.key] = point
        steps = self._keys.get(point.key)
        if steps is None:
            self._keys[point.key] = [point.step]
        else:
            insort(steps, point.step)
        self.cost += point.cost

    def remove(self, point: OpenPoint) -> None:
        del self._points[point.step, point.key]
        keys = self._steps[point.step]
        del keys[point.key]
        if not keys:
            del self._steps[point.step]
        steps = self._keys[point.key]
        del steps[bisect_left(steps, point.step)]
        if not steps:
            del self._keys[point.key]
        self.cost -= point.cost

    def put(self, point: OpenPoint, who: int, value: Value) -> Value:
        """Give *point* the value of *who* and return the one it had from *who* before."""
        former: Value = point.values.get(who)
        growth = value_cost(value) - (value_cost(former) if who in point.values else 0)
        point.values[who] = value
        point.cost += growth
        self.cost += growth
        return former

    def between(self, first: int | None, end: int) -> list[OpenPoint]:
        """Return the points of the steps from *first* (None: from the beginning) up to before *end*, in step order."""
        if not self._steps:
            return []
        if first is not None and end - first < len(self._steps):
            steps = [step for step in range(first, end) if step in self._steps]
        else:
            steps = sorted(step for step in self._steps if step < end)
        return [point for step in steps for point in self._steps[step].values()]


def new_cost(key: str, value: Value) -> int:
    """Return the bytes that a point of *key* with one value takes."""
    return POINT_COST + len(key) + value_cost(value)


def value_cost(value: Value) -> int:
    if isinstance(value, str):
        return VALUE_COST + len(value)
    if isinstance(value, msgspec.msgpack.Ext):
        return VALUE_COST + memoryview(value.data).nbytes
    return VALUE_COST * (1 + len(value)) if isinstance(value, list) else VALUE_COST


__all__ = ["OpenPoint", "OpenPoints", "new_cost"]
