"""Hand rows to a tracker that may fail: retries, dead letters, breaker.

The evidence decides, not the exception: a row that keeps failing while other rows work is at fault and goes to the dead letters; rows
that fail one after the other are not, the tracker is. Then the breaker opens, nothing is given up, and everything waits in order.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from accelbus.config import Tuning
from accelbus.delivery.ledger import OwedRow

logger = logging.getLogger(__name__)

_REASON_CHARACTERS = 500


class Calls(Protocol):
    """What a feeder needs of the tracker."""

    def log(self, rows: Sequence[OwedRow]) -> float:
        """Hand over *rows*, all or none, and return the seconds it took. Raises whatever the tracker raises."""

    def give_up(self, owed: OwedRow, reason: str) -> None:
        """Write *owed* to the dead letters."""


class FailingRow:
    """A row that was set aside."""

    def __init__(self, owed: OwedRow, failures: int, error: str, *, deadly: bool = False, outage: bool = False) -> None:
        self.owed = owed
        self.failures = failures
        self.failures_beside = 0
        """Those while another row worked."""
        self.error = error
        self.deadly = deadly
        """It ended so many workers that it is not tried again unless nothing else works either."""
        self.outage = outage
        """Its last error was one of the system or the network, which says little about the row."""


class Feeder:
    """Queue of rows on their way to a tracker.

    Args:
        calls: the tracker.
        tuning: retries, back-off, breaker.
        monotonic: clock for back-off, in seconds.
        deaths: {row label: workers that died or hung on it}.
        one_by_one: hand over single rows, so that a death names its row.
        largest_call: rows the tracker takes in one call, all or none.
    """

    def __init__(
        self,
        calls: Calls,
        *,
        tuning: Tuning,
        monotonic: Callable[[], float],
        deaths: Mapping[str, int] | None = None,
        one_by_one: bool = False,
        largest_call: int = 1,
    ) -> None:
        self._calls = calls
        self._tuning = tuning
        self._monotonic = monotonic
        self._deaths = dict(deaths or {})
        self.one_by_one = one_by_one
        self.largest_call = largest_call
        self._queue: deque[OwedRow] = deque()
        self._failing: list[FailingRow] = []
        self._head_failures = 0
        """Failures in a row of the first row in the queue, or of the breaker's probes."""
        self._retry_at = 0.0
        self._chunk = 1
        self.is_blocked = False
        """The breaker is open."""
        self.retries = 0
        self.last_error = ""

    @property
    def wants_rows(self) -> bool:
        """Whether more rows should be read."""
        return not self._queue and not self.is_blocked

    @property
    def is_settled(self) -> bool:
        """Whether every row was taken or given up."""
        return not self._queue and not self._failing

    @property
    def failing(self) -> int:
        """Different rows that failed one after the other."""
        return len(self._failing) + (1 if self._head_failures and not self._failing and self._queue else 0)

    @property
    def is_retrying(self) -> bool:
        return bool(self._failing) or self._head_failures > 0

    def add(self, rows: Iterable[OwedRow]) -> None:
        self._queue.extend(rows)

    def owed(self) -> Iterator[OwedRow]:
        """Yield the rows that were neither taken nor given up, in the order in which they will be tried."""
        yield from (row.owed for row in self._failing)
        yield from self._queue

    def work(self, *, should_pause: Callable[[], bool] = lambda: False, is_last: bool = False) -> float:
        """Do what can be done now; return the seconds until there may be more to do, 0 when all is settled.

        Args:
            should_pause: asked between calls.
            is_last: no more rows will come, so there is no other row to compare a failing one with.
        """
        while not should_pause():
            if self.is_settled:
                return 0.0
            if (wait := self._retry_at - self._monotonic()) > 0 and (self._queue or self._failing) and not self._may_skip_wait():
                return wait
            if self.is_blocked:
                self._probe()
            elif self._queue:
                self._feed()
            else:
                self._retry_alone(is_last=is_last)
        return 0.0

    def _may_skip_wait(self) -> bool:
        """A row that was set aside waits; the ones behind it do not."""
        return bool(self._queue) and bool(self._failing) and not self.is_blocked

    def _feed(self) -> None:
        """Hand over the next rows."""
        head = self._queue[0]
        if self._deaths and (deaths := self._deaths.get(head.label, 0)) and self._sets_aside_untried(deaths):
            self._queue.popleft()
            self._set_aside(FailingRow(head, deaths, f"{deaths} workers died or hung on it", deadly=deaths >= self._tuning.retries_alone))
            return
        size = 1 if self.one_by_one or self.is_retrying else self._chunk
        rows = self._first(size)
        error = self._try(rows)
        if error is None:
            for _ in rows:
                self._queue.popleft()
            self._head_failures = 0
            if self._failing:
                self._judge()
        elif len(rows) > 1:
            # One row of them may be at fault: find it.
            self._chunk = 1
        elif self._failing or self._head_failures + 1 >= self._tuning.retries_alone:
            self._queue.popleft()
            self._set_aside(FailingRow(head, self._head_failures + 1, self.last_error, outage=isinstance(error, OSError)))
            self._head_failures = 0
        else:
            self._head_failures += 1
            self._back_off(self._head_failures)

    def _first(self, size: int) -> list[OwedRow]:
        """Return at most *size* rows that may go in one call."""
        rows = list(islice(self._queue, size))
        keywords = rows[0].row.log_kwargs
        for index, owed in enumerate(rows):
            if owed.row.log_kwargs is not keywords and owed.row.log_kwargs != keywords:
                return rows[:index]
        return rows

    def _sets_aside_untried(self, deaths: int) -> bool:
        # A single death says little about a row, but among failing rows it may be the tracker: see first whether another one works.
        return bool(self._failing) or deaths >= self._tuning.retries_alone

    def _try(self, rows: Sequence[OwedRow]) -> Exception | None:
        try:
            seconds = self._calls.log(rows)
        except Exception as error:
            self.retries += 1
            self.last_error = describe(error)
            if is_news(self.retries):
                logger.warning("row %s: %s (failure %d)", rows[0].label, self.last_error, self.retries, exc_info=self.retries == 1)
            return error
        if seconds > self._tuning.call_seconds:
            self._chunk = max(1, self._chunk // 2)
        elif seconds < self._tuning.call_seconds / 4:
            self._chunk = min(self.largest_call, self._chunk * 2)
        return None

    def _set_aside(self, row: FailingRow) -> None:
        self._failing.append(row)
        if len(self._failing) >= self._tuning.breaker_failures:
            self.is_blocked = True
            logger.error("%d rows failed one after the other; waiting, nothing is given up (%s)", len(self._failing), row.error)
        self._head_failures = 0
        if self.is_blocked:
            self._back_off(self._tuning.retries_alone)
        elif len(self._failing) == 1:
            self._back_off(row.failures)

    def _judge(self) -> None:
        """The tracker works: what still fails is at fault, after some more tries."""
        for row in list(self._failing):
            if row.deadly:
                self._give_up(row)
                continue
            error = self._try([row.owed])
            if error is None:
                self._failing.remove(row)
                continue
            row.failures += 1
            row.failures_beside += 1
            row.error = self.last_error
            if row.failures_beside >= self._tuning.failures_of_dead_letter:
                self._give_up(row)
        if not self._failing:
            self._retry_at = 0.0

    def _retry_alone(self, *, is_last: bool) -> None:
        """Nothing else to try: repeat the rows that were set aside, in order, with back-off."""
        row = self._failing[0]
        if not row.deadly or row.failures < self._tuning.failures_of_last_row:
            row.deadly = False
            error = self._try([row.owed])
            if error is None:
                self._failing.pop(0)
                self._judge()
                return
            row.failures += 1
            row.error = self.last_error
            row.outage = isinstance(error, OSError)
        if is_last and row.failures >= self._tuning.failures_of_last_row and not row.outage:
            self._give_up(row)
        else:
            self._back_off(row.failures)

    def _probe(self) -> None:
        """See whether the tracker works again: try the waiting rows in turn."""
        self._deaths.clear()
        for row in self._failing:
            row.deadly = False
        for row in list(self._failing):
            if self._try([row.owed]) is None:
                self._failing.remove(row)
                self.is_blocked = False
                self._head_failures = 0
                self._retry_at = 0.0
                logger.warning("rows are taken again")
                self._judge()
                return
        self._head_failures += 1
        self._back_off(self._head_failures + self._tuning.retries_alone)

    def _give_up(self, row: FailingRow) -> None:
        try:
            self._calls.give_up(row.owed, row.error)
        except OSError as error:
            # No room for the dead letter: keep the row, it is tried again.
            self.last_error = describe(error)
            self._back_off(row.failures)
        else:
            self._failing.remove(row)

    def _back_off(self, failures: int) -> None:
        """Wait before the next try; the first failure is repeated at once, it may have been chance."""
        self._retry_at = self._monotonic() + (back_off(failures - 1, self._tuning) if failures > 1 else 0.0)


def back_off(failures: int, tuning: Tuning) -> float:
    """Return the seconds to wait after so many *failures* in a row: doubling, bounded, with jitter."""
    return min(tuning.retry_max, tuning.retry_first * 2.0 ** min(max(failures, 1) - 1, 16)) * random.uniform(0.8, 1.2)  # noqa: S311  jitter needs no cryptography


def describe(error: BaseException) -> str:
    """Return *error* in one short line that can be encoded."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  isolation: an error of a tracker may even fail to say what it is
        text = type(error).__name__
    return describe_text(text)


def describe_text(text: str) -> str:
    """Return *text* as one short line that can be encoded."""
    return " ".join(str(text).encode("utf-8", "backslashreplace").decode().split())[:_REASON_CHARACTERS]


def is_news(count: int) -> bool:
    """Whether the *count*-th time of the same trouble is worth a line: the first, second, fourth, eighth, …"""
    return count & (count - 1) == 0


__all__ = ["Calls", "Feeder", "back_off", "describe", "describe_text", "is_news"]
