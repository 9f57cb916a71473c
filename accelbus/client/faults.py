"""What was not kept: counted by reason, said once, and raised only when a test asks for it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from accelbus.errors import StrictError
from accelbus.events import DROP_REASONS
from accelbus.journal.spool_file import COUNTERS_WORD, SpoolFile, read_counters
from accelbus.values import Fault

_log = logging.getLogger("accelbus")
_MOST_WARNINGS = 100
"""Keys that are made up anew at every step must not fill the memory, or the terminal."""


class Faults:
    """Counters of one producer. They live in its spool file while it has one, and then survive a SIGKILL."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._counts: memoryview | list[int] = _zeros()
        """One number per reason: in the file, or in memory. What is counted goes to where this points, and to one place only."""
        self._earlier: Counter[str] = Counter()
        """What was counted in places that were left."""
        self._said: set[str] = set()

    def keep_in(self, file: SpoolFile | None) -> None:
        """Count in *file* from here on; with None in memory. What was counted before stays counted."""
        if file is not None or not isinstance(self._counts, list):
            before = self._counts
            # First the others count elsewhere, then what they have left is read: nobody can come in between.
            self._counts = _zeros() if file is None else file.header
            self._earlier.update(read_counters(before))

    def forget_file(self) -> None:
        """Start anew in memory: the file is another process's."""
        self._counts = _zeros()
        self._earlier = Counter()

    def count(self, reason: str, text: str, *, topic: str | None = None) -> None:
        """Count one event or value by *reason*; say *text* once per *topic*."""
        self.count_silently(reason)
        topic = topic or reason
        if topic not in self._said and len(self._said) < _MOST_WARNINGS:
            self._said.add(topic)
            _log.warning("%s", text)

    def count_silently(self, reason: str) -> None:
        """Count what the caller is told in another way."""
        word = COUNTERS_WORD + DROP_REASONS.index(reason)
        # No call from here on: neither another thread nor a signal handler counts, or leaves this place, in between.
        counts = self._counts
        counts[word] = counts[word] + 1

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
        while True:
            counts = self._counts
            try:
                return dict(self._earlier + Counter(read_counters(counts)))
            except ValueError:
                if counts is self._counts:  # else another thread has just closed the file
                    raise


def _zeros() -> list[int]:
    return [0] * (COUNTERS_WORD + len(DROP_REASONS))
