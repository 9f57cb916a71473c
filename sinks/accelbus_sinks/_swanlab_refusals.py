"""What SwanLab's server refuses: SwanLab gives such records up in silence and counts them as uploaded."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from accelbus.tracking import RefusedRow

_LONGEST_REASON: Final = 300


class Handed(NamedTuple):
    """What a record is of."""

    attempt: int
    step: int
    key: str


class Refusals:
    """Records that an upload gave up, told from those it will try again.

    Args:
        transport: SwanLab's; None where nothing is uploaded.

    Raises:
        AttributeError: this SwanLab uploads in another way.
    """

    def __init__(self, transport: Any) -> None:
        self._lock = threading.Lock()
        self._given_up: list[tuple[Any, str]] = []
        if transport is None:
            return
        dispatch = transport._dispatcher  # noqa: SLF001  its own list of failures holds those of the last request only

        if dispatch is None:
            raise AttributeError("_dispatcher")

        def watched(pending: Any) -> Any:
            result = dispatch(pending)
            self._note(result)
            return result

        transport._dispatcher = watched  # noqa: SLF001  see above

    def _note(self, result: Any) -> None:
        again = {id(record) for record in result.remaining_records}
        with self._lock:
            for failure in result.failures:
                self._given_up += [(record, str(failure.message)) for record in failure.records if id(record) not in again]

    def take(self) -> list[tuple[Any, str]]:
        """Return (record, reason) of what was given up since the last call."""
        with self._lock:
            taken, self._given_up = self._given_up, []
        return taken


class OnTheWay:
    """What was handed over since the last flush, by name and step, or by its line of the console."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, int], Handed] = {}
        self._lines: dict[str, list[Handed]] = {}

    def value(self, name: str, step: int, handed: Handed) -> None:
        self._values[name, step] = handed

    def line(self, text: str, handed: Iterable[Handed]) -> None:
        self._lines.setdefault(text, []).extend(handed)

    def arrived(self) -> None:
        """Everything is with the server, or was refused."""
        self._values.clear()
        self._lines.clear()

    def rows(self, given_up: Iterable[tuple[Any, str]]) -> tuple[list[RefusedRow], list[str]]:
        """Return the rows in which *given_up* records were, each value once, and what is to be said of the other records."""
        seen: set[Handed] = set()
        rows: dict[tuple[int, int, str], list[str]] = {}
        others: dict[tuple[str, str], int] = {}
        for record, message in given_up:
            reason = f"SwanLab's server: {message[:_LONGEST_REASON]}"
            found = self._found(record)
            if not found:
                about = record.WhichOneof("record_type") or "record", reason
                others[about] = others.get(about, 0) + 1
            for handed in found:
                if handed not in seen:
                    seen.add(handed)
                    rows.setdefault((handed.attempt, handed.step, reason), []).append(handed.key)
        said = [f"SwanLab's server refused {count} {kind} records, which are lost: {reason}" for (kind, reason), count in others.items()]
        return [RefusedRow(attempt, step, reason, tuple(keys)) for (attempt, step, reason), keys in rows.items()], said

    def _found(self, record: Any) -> list[Handed]:
        kind = record.WhichOneof("record_type")
        if kind in {"scalar", "media"}:
            data = getattr(record, kind)
            handed = self._values.get((data.key, data.step))
            return [handed] if handed else []
        return self._lines.get(record.log.line, []) if kind == "log" else []


__all__ = ["Handed", "OnTheWay", "Refusals"]
