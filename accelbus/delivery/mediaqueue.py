"""Media on their way to a tracker: one by one, with a breaker and a judgement of their own.

A store for files may be down while metrics are taken, and one file may take minutes: rows neither wait for media nor are judged with
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from accelbus.config import Tuning
from accelbus.delivery.feeder import Feeder
from accelbus.delivery.ledger import OwedRow


class MediaCalls(Protocol):
    """What is needed of the tracker."""

    def log_media(self, rows: Sequence[OwedRow]) -> float: ...

    def give_up(self, owed: OwedRow, reason: str) -> None: ...


class MediaQueue(Feeder):
    """A `Feeder` that knows how much is waiting."""

    def __init__(self, calls: MediaCalls, *, tuning: Tuning, deaths: Mapping[str, int]) -> None:
        super().__init__(_Counted(calls, self), tuning=tuning, monotonic=time.monotonic, deaths=deaths, one_by_one=True)
        self.waiting = 0
        self.waiting_bytes = 0
        """What it takes in a cursor."""

    def add(self, rows: Iterable[OwedRow]) -> None:
        for owed in rows:
            self.count(owed, 1)
            super().add([owed])

    def count(self, owed: OwedRow, sign: int) -> None:
        """*owed* came, or is done with."""
        self.waiting += sign
        self.waiting_bytes += sign * owed.media_bytes


class _Counted:
    def __init__(self, calls: MediaCalls, queue: MediaQueue) -> None:
        self._calls = calls
        self._queue = queue

    def log(self, rows: Sequence[OwedRow]) -> float:
        seconds = self._calls.log_media(rows)
        for owed in rows:
            self._queue.count(owed, -1)
        return seconds

    def give_up(self, owed: OwedRow, reason: str) -> None:
        self._calls.give_up(owed, reason)
        self._queue.count(owed, -1)


__all__ = ["MediaQueue"]
