"""Rows as points of Aim's series: one type of values per name, the time of the event, ranks as context."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from aim import Run, Text
from aim.storage.context import Context

from accelbus.tracking import Row
from accelbus_sinks._config import text_of
from accelbus_sinks._keys import KeyMap

logger = logging.getLogger(__name__)

NUMBER: Final = "number"
TEXT: Final = "text"
CONSOLE: Final = "logs"
"""What Aim calls the lines that a run printed, kind and name; no other series may be called so."""

_OF_A_RANK: Final = re.compile(r"(.+)/rank(0|[1-9]\d*)", re.DOTALL)

Points: TypeAlias = Mapping["int | None", dict[str, Any]]
"""{rank, or None for a value of all ranks: {name: value}}"""


class _Place(NamedTuple):
    """Where a point goes, but for its name."""

    step: int
    time_ns: int
    rank: int | None = None
    context: Mapping[str, Any] = {}
    epoch: int | None = None


class Series:
    """The series of one run. A point that comes again is replaced.

    Args:
        run: Aim's.
        path: where names are kept; None: nowhere.
    """

    def __init__(self, run: Run, path: Path | None) -> None:
        self._run = run
        self._names = KeyMap(path, _name)
        self._names.names([f"{CONSOLE}:{CONSOLE}"])
        self._tracker = getattr(run, "_tracker", None)
        if not hasattr(self._tracker, "_track"):
            self._tracker = None
            logger.warning("this version of Aim takes no times: points have the time of their delivery")

    def points(self, row: Row) -> Points:
        """Return what is to be stored of *row*.

        Raises:
            TypeError: a value is neither number, text nor list, naming its key.
        """
        found: dict[int | None, dict[str, Any]] = {}
        for key, value in row.values.items():
            if isinstance(value, int | float):
                self._sort_in(found, NUMBER, key, _number(value))
            elif isinstance(value, str | list):
                self._sort_in(found, TEXT, key, text(text_of(value)))
            elif value is not None:
                raise TypeError(f"{key!r}: expected a number, text or list, got {type(value).__name__}")
        return found

    def add(self, row: Row, points: Points) -> None:
        """Store the *points* of *row*, with the context and the epoch that the user gave for them."""
        context = row.log_kwargs.get("context") or {}
        for rank, values in points.items():
            self._put(values, _Place(row.step, row.time_ns, rank, context, row.log_kwargs.get("epoch")))

    def put(self, kind: str, key: str, value: Any, step: int, time_ns: int) -> None:
        """Store one *value* of a type of Aim's."""
        points: dict[int | None, dict[str, Any]] = {}
        self._sort_in(points, kind, key, value)
        for rank, values in points.items():
            self._put(values, _Place(step, time_ns, rank))

    def print(self, lines: Iterable[Any], first: int, time_ns: int) -> None:
        """Store *lines* of the console, from line number *first* on."""
        for number, line in enumerate(lines, first):
            self._put({CONSOLE: line}, _Place(number, time_ns))

    def _sort_in(self, points: dict[int | None, dict[str, Any]], kind: str, key: str, value: Any) -> None:
        found = _OF_A_RANK.fullmatch(key)
        base, rank = (found[1], int(found[2])) if found else (key, None)
        points.setdefault(rank, {})[self._names[f"{kind}:{base}"]] = value

    def _put(self, values: dict[str, Any], place: _Place) -> None:
        context = dict(place.context) if place.rank is None else {**place.context, "rank": place.rank}
        if self._tracker is None:
            for name, value in values.items():
                self._run.track(value, name=name, step=place.step, epoch=place.epoch, context=context)
            return
        changed = self._changed(values, place.step, context)
        self._tracker._track(values, place.time_ns / 1e9, None, place.step, place.epoch, context=context)  # noqa: SLF001  `Run.track` stamps the time of the call
        for index, name in changed:
            self._run.meta_run_tree["traces", index, name, "last"] = values[name]

    def _changed(self, values: Mapping[str, Any], step: int, context: Mapping[str, Any]) -> list[tuple[int, str]]:
        """Return which series end at *step* already: Aim goes on to show their old value as the last one."""
        index = Context(context).idx
        infos = self._tracker.sequence_infos if self._tracker is not None else {}
        return [(index, name) for name in values if (info := infos.get((index, name))) is not None and info.count == step + 1]


def text(value: str) -> Text:
    """Return *value* as Aim's text, which takes no lone surrogates."""
    return Text(value.encode("utf-8", "backslashreplace").decode())


def _name(key: str) -> str:
    """Return the name for a kind and key: an empty one would be read back as a number."""
    _, _, name = key.partition(":")
    return name.encode("utf-8", "backslashreplace").decode() or "unnamed"


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return float("inf") if value > 0 else float("-inf")
