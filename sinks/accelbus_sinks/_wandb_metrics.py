"""What W&B calls the metrics, how they are to be shown, and what one number stands for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from accelbus_sinks._keys import KeyMap
from accelbus_sinks._wandb_session import STEP

_RESERVED: Final = frozenset({"_step", "_runtime", "_timestamp", "_wandb", STEP})
"""W&B fills them in itself, or leaves them out."""
_LONGEST_BYTES: Final = 180
"""A key becomes part of a file name when media are logged under it."""
_SUMMARIES: Final = frozenset({"min", "max", "mean", "last", "first", "none"})
BEST: Final = {"maximize": "max", "minimize": "min"}


class Metrics:
    """Names, definitions and summaries of everything that is logged.

    Args:
        path: file of the names, None to keep none.
    """

    def __init__(self, path: Path | None) -> None:
        self._keys = KeyMap(path, name_of)
        self.names: dict[str, str] = {}
        """{key: name} of the keys seen by this process"""
        self._definitions: dict[str, dict[str, str]] = {}
        """{pattern: definition}"""
        self.options: dict[str, dict[str, str]] = {}
        """{name: arguments of ``define_metric``}"""
        self._changed: dict[str, None] = {}
        self._newest: dict[str, tuple[tuple[int, int], Any]] = {}
        """{name: ((attempt, step), value)}"""
        self.extremes: dict[str, dict[str, float]] = {}
        """{name: {"min" or "max": value}} for those whose summary is one"""

    def introduce(self, key: str) -> str:
        """Return the name of *key*, which was not in `names`."""
        name = self.names[key] = self._keys[key]
        self._apply_definitions(key)
        return name

    def key_of(self, name: str) -> str:
        """Return the key that *name* stands for, of those seen by this process; else *name*."""
        return next((key for key, known in self.names.items() if known == name), name)

    def define(self, pattern: str, axis: str, summary: str, goal: str) -> None:
        """See `accelbus.tracking.GeneralTracker.define_metric`; the newest definition that fits a key counts."""
        summary = BEST.get(goal, "last") if summary == "best" else summary
        definition = {"summary": summary if summary in _SUMMARIES else "", "step_metric": self._keys[axis] if axis else ""}
        self._definitions.pop(pattern, None)
        self._definitions[pattern] = {name: value for name, value in definition.items() if value}
        for key in self.names:
            self._apply_definitions(key)

    def take_changes(self) -> list[str]:
        """Return the names whose options changed since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def note(self, place: tuple[int, int], values: Mapping[str, Any]) -> dict[str, Any]:
        """Note a row. Return what has to be said again, since W&B takes the value that came last for the newest one."""
        stale = {}
        for name, value in values.items():
            newest = self._newest.get(name)
            if newest is None or newest[0] <= place:
                self._newest[name] = (place, value)
            elif self.options.get(name, {}).get("summary", "last") == "last":
                stale[name] = newest[1]
        for name in self.extremes.keys() & values.keys():
            self._note_extreme(name, values[name])
        return stale

    def _note_extreme(self, name: str, value: Any) -> None:
        extremes = self.extremes[name]
        for kind, choose in (("min", min), ("max", max)):
            if kind in extremes and isinstance(value, int | float) and value == value:  # noqa: PLR0124  not NaN
                extremes[kind] = choose(extremes[kind], value)

    def _apply_definitions(self, key: str) -> None:
        name = self.names[key]
        for pattern, options in reversed(self._definitions.items()):
            if fnmatchcase(key, pattern):
                if self.options.get(name) != options:
                    self.options[name] = options
                    self._changed[name] = None
                    if (kind := options.get("summary")) in {"min", "max"}:
                        self.extremes.setdefault(name, {kind: float("inf" if kind == "min" else "-inf")})
                return


def name_of(key: str) -> str:
    """Return *key* as W&B can take it: control characters, reserved names, and what would lead a media file astray are replaced."""
    name = re.sub(r"[\x00-\x1f\x7f]", "_", key) or "unnamed"
    if name in _RESERVED:
        name = f"logged/{name}"
    name = "/".join("--" if part == ".." else part for part in name.split("/"))
    if name.startswith("/"):
        name = f"-{name}"
    if len(name.encode("utf-8", "backslashreplace")) > _LONGEST_BYTES:
        name = name.encode("utf-8", "backslashreplace")[:_LONGEST_BYTES].decode("utf-8", "ignore")
    return name


__all__ = ["Metrics", "name_of"]
