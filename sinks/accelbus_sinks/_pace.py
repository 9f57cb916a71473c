"""Keep to a rate that a server asks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LONGEST_WAIT: Final = 30.0
"""Seconds: beyond, a call would be taken for one that hangs, and the rate is exceeded instead."""


class Pace:
    """A token bucket.

    Args:
        rate: how much a second.
        burst: how much at once.
        monotonic, sleep: the clock.
    """

    def __init__(
        self, rate: float, burst: float, *, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._sleep = sleep
        self._tokens = burst
        self._at = monotonic()
        self._has_waited = False

    def wait(self, count: float) -> bool:
        """Wait until *count* more may go out; return whether this is the first time that it was necessary."""
        now = self._monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - count
        self._at = now
        if self._tokens >= 0:
            return False
        self._sleep(min(-self._tokens / self._rate, LONGEST_WAIT))
        first, self._has_waited = not self._has_waited, True
        return first
