"""What was not kept: counted by reason, said once, and raised only when a test asks for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from accelbus.errors import StrictError
from accelbus.journal.spool_file import SpoolFile
from accelbus.values import Fault

_log = logging.getLogger("accelbus")
_MOST_WARNINGS = 100
"""Keys that are made up anew at every step must not fill the memory, or the terminal."""


class Faults:
    """Counters of one producer. They live in its spool file while it has one, and then survive a SIGKILL."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._file: SpoolFile | None = None
        self._local: dict[str, int] = {}
        self._said: set[str] = set()

    def keep_in(self, file: SpoolFile | None) -> None:
        """Count in *file* from here on; with None in memory, going on from what the file says."""
        if file is None and self._file is not None:
            self._local = self._file.dropped()
        self._file = file

    def forget_file(self) -> None:
        """Start anew in memory: the file is another process's."""
        self._file = None
        self._local = {}

    def count(self, reason: str, text: str, *, topic: str | None = None) -> None:
        """Count one event or value by *reason*; say *text* once per *topic*."""
        self.count_silently(reason)
        topic = topic or reason
        if topic not in self._said and len(self._said) < _MOST_WARNINGS:
            self._said.add(topic)
            _log.warning("%s", text)

    def count_silently(self, reason: str) -> None:
        """Count what the caller is told in another way."""
        file = self._file
        try:
            if file is not None:
                file.count_dropped(reason)
        except ValueError:
            file = None  # another thread finishes the run: the file has just been closed
        if file is None:
            self._local[reason] = self._local.get(reason, 0) + 1

    def blame(self, reason: str, key: str, detail: str) -> None:
        """Count a programming error.

        Raises:
            StrictError: under ``ACCELBUS_STRICT=1``.
        """
        self.misuse(reason, f"{reason} ({key!r}): {detail}", topic=f"{reason}:{key}")

    def misuse(self, reason: str, text: str, *, topic: str | None = None) -> None:
        """Count a programming error that concerns no key.

        Raises:
            StrictError: under ``ACCELBUS_STRICT=1``.
        """
        if self._strict:
            raise StrictError(text)
        self.count(reason, text, topic=topic)

    def blame_all(self, faults: Iterable[Fault]) -> None:
        """Count each of the value model's *faults*."""
        for fault in faults:
            # Without a key it is about the argument as a whole.
            self.blame(fault.reason, "values" if fault.reason == "bad_values" and not fault.key else fault.key, fault.detail)

    def dropped(self) -> dict[str, int]:
        """Return {reason: count}."""
        return self._file.dropped() if self._file is not None else dict(self._local)
