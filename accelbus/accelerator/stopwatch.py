"""How long training waits for data, and how long it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from time import perf_counter
from typing import Any, NamedTuple


class Times(NamedTuple):
    """Of the batches that were trained on since the last look: seconds of host time, all together."""

    batches: int
    waited: float
    computed: float


class Stopwatch:
    """Measures loops over data loaders; two readings of the clock per batch.

    Only batches count in which `train` was called: waiting in an evaluation is not what slows training. The time of an evaluation that
    runs within a training batch is not that batch's.
    """

    def __init__(self) -> None:
        self._trains = False
        self._elsewhere = 0.0
        """Seconds of the current batch that belong to loops inside it."""
        self._batches = 0
        self._waited = 0.0
        self._computed = 0.0

    def train(self) -> None:
        """Note that the current batch is trained on."""
        self._trains = True

    def watch(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield *batches*, and measure. A generator is closed when the loop is left."""
        outer, self._trains, self._elsewhere = (self._trains, self._elsewhere), False, 0.0
        began = asked = perf_counter()
        with contextlib.ExitStack() as stack:
            if isinstance(batches, Generator):
                stack.enter_context(contextlib.closing(batches))
            try:
                for batch in batches:
                    given = perf_counter()
                    yield batch
                    back = perf_counter()
                    if self._trains:
                        self._batches += 1
                        self._waited += given - asked
                        self._computed += back - given - self._elsewhere
                    self._trains, self._elsewhere = False, 0.0
                    asked = back
            finally:
                self._trains, self._elsewhere = outer[0], outer[1] + perf_counter() - began

    def take(self) -> Times:
        """Return the times since the last call."""
        times = Times(self._batches, self._waited, self._computed)
        self._batches, self._waited, self._computed = 0, 0.0, 0.0
        return times


__all__ = ["Stopwatch", "Times"]
