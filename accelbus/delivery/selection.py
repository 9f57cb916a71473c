"""What one sink gets of the points of a run: include, exclude, rename, minimum interval. What is left out is counted.

Depends on nothing but the points and what was kept before, so a restart decides as before.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from accelbus.config import SinkOptions
from accelbus.view import Point
from accelbus.view.emission import LATE_PREFIX
from accelbus.view.rules import is_number

KEYS: Final = 16384
"""Keys remembered. A program that invents keys as it goes makes the oldest ones forgotten."""
REDACTED: Final = "<redacted>"

Amounts = dict[int, int]


class SelectionState(msgspec.Struct, array_like=True):
    """Snapshot of a `Selection`; part of the cursor."""

    last: dict[str, tuple[int, int]] = {}
    """{key: (step, time) of the last number kept}"""
    owners: dict[str, str] = {}
    """{key as the sink has it: key as it was logged}"""


class Selection:
    """Choose and rename. The state is used, not copied."""

    def __init__(self, options: SinkOptions, state: SelectionState) -> None:
        self._options = options
        self._state = state
        self._interval_ns = int(options.min_interval * 1e9)
        self._included = _matcher(options.include)
        self._excluded = _matcher(options.exclude)
        self._renamings = [(re.compile(_capturing(pattern)), new) for pattern, new in options.rename.items()]
        self._is_idle = not (options.include or options.exclude or options.rename or self._interval_ns)
        self._names: dict[str, str | None] = {}
        """{key: key of the sink, None for one it does not get}"""

    def choose(self, points: list[Point]) -> tuple[list[Point], Amounts]:
        """Return the points that the sink gets, under its names, and {rank: values left out}."""
        if self._is_idle or not points:
            return points, {}
        chosen, left_out = [], Amounts()
        for point in points:
            name = self._name(point.key)
            if name is None or (self._interval_ns and self._is_too_soon(point)):
                for rank, values in point.contributions.items():
                    left_out[rank] = left_out.get(rank, 0) + values
            else:
                chosen.append(point if name == point.key else point._replace(key=name))
        return chosen, left_out

    def _name(self, key: str) -> str | None:
        if key in self._names:
            return self._names[key]
        # What came late shares the fate of what came in time.
        prefix, base = (LATE_PREFIX, key.removeprefix(LATE_PREFIX)) if key.startswith(LATE_PREFIX) else ("", key)
        name = None if self._is_left_out(base) else self._owned(prefix + self._renamed(base), key)
        _remember(self._names, key, name)
        return name

    def _is_left_out(self, key: str) -> bool:
        return (bool(self._options.include) and not self._included(key)) or self._excluded(key)

    def _renamed(self, key: str) -> str:
        for pattern, new in self._renamings:
            if found := pattern.fullmatch(key):
                parts = iter(found.groups())
                return "".join(next(parts, "") if part == "*" else part for part in re.split(r"(\*)", new))
        return key

    def _owned(self, name: str, key: str) -> str:
        """Return *name*, or with a number if another key has it already: no two keys of a run become one."""
        if not self._renamings:
            return name
        candidate, number = name, 1
        while self._state.owners.get(candidate, key) != key:
            number += 1
            candidate = f"{name}#{number}"
        _remember(self._state.owners, candidate, key)
        return candidate

    def _is_too_soon(self, point: Point) -> bool:
        if not is_number(point.value):
            return False
        last = self._state.last.get(point.key)
        if last is not None and point.step != last[0] and point.time_ns - last[1] < self._interval_ns:
            return True
        if last is None or point.step != last[0]:
            _remember(self._state.last, point.key, (point.step, point.time_ns))
        return False


def redacted(config: Mapping[str, Any], patterns: Iterable[str]) -> dict[str, Any]:
    """Return a copy of *config* without the values whose keys, nested ones joined with ``/``, match one of *patterns*.

    A mapping in a list has keys like ``databases/0/password`` and, without the place in the list, ``databases/password``.
    """
    hidden = _matcher(tuple(patterns))

    def of_mapping(values: Mapping[str, Any], path: str, short: str) -> dict[str, Any]:
        return {key: copy(value, f"{path}{key}", f"{short}{key}") for key, value in values.items()}

    def copy(value: Any, path: str, short: str) -> Any:
        if hidden(path) or (short != path and hidden(short)):
            return REDACTED
        if isinstance(value, Mapping):
            return of_mapping(value, f"{path}/", f"{short}/")
        if isinstance(value, list | tuple):
            return [copy(item, f"{path}/{index}", short) for index, item in enumerate(value)]
        return value

    return of_mapping(config, "", "")


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    matches = [re.compile(fnmatch.translate(pattern)).match for pattern in patterns]
    return lambda key: any(match(key) for match in matches)


def _capturing(pattern: str) -> str:
    """Return a regular expression for the glob *pattern* in which each ``*`` is a group."""
    return "(?s)" + "(.*)".join(re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))


def _remember(known: dict[str, Any], key: str, value: Any) -> None:
    if key not in known and len(known) >= KEYS:
        del known[next(iter(known))]
    known[key] = value


__all__ = ["REDACTED", "Selection", "SelectionState", "redacted"]
