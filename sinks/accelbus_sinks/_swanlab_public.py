"""SwanLab through nothing but its public calls, for versions whose inside is unknown: values lose their time, and a crash the run.

The same methods as `accelbus_sinks._swanlab_core.SwanLabCore`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)


class PublicCore:
    """One run.

    Args:
        run: ``swanlab.Run``.
    """

    durable_after: Final = "finish"
    can_continue: Final = False

    def __init__(self, run: Any) -> None:
        self._run = run
        self._used: defaultdict[str, set[int]] = defaultdict(set)

    @property
    def length(self) -> int:
        return 0

    def is_used(self, name: str, step: int) -> bool:
        return step in self._used[name]

    def scalar(self, name: str, step: int, value: float, time_ns: int) -> tuple[str, int, float]:
        return name, step, value

    def store_scalars(self, records: Sequence[tuple[str, int, float]]) -> None:
        rows: defaultdict[int, dict[str, float]] = defaultdict(dict)
        for name, step, value in records:
            rows[step][name] = value
            self._used[name].add(step)
        for step, values in rows.items():
            self._run.log(values, step=step)

    def store_media(self, name: str, step: int, value: Any, time_ns: int) -> bool:
        self._used[name].add(step)
        self._run.log({name: value}, step=step)
        return True

    def store_lines(self, lines: Sequence[str], time_ns: int, *, is_error: bool = False) -> None:
        for line in lines:
            logger.warning("not in SwanLab, which has no public call for it: %s", line)

    def settle(self) -> None:
        """SwanLab does what is queued when it likes."""

    def refused(self) -> list[tuple[Any, str]]:
        """SwanLab has no public word on it."""
        return []

    def flush(self) -> None:
        """There is no such call."""

    def continue_file(self, previous: Path, *, rebuild: bool) -> None:
        raise NotImplementedError
