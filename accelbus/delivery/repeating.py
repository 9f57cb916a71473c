"""Calls of a tracker that must succeed before anything goes on, and the ways out of a worker process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from accelbus.config import Tuning
from accelbus.delivery.channel import Channel
from accelbus.delivery.feeder import back_off, describe
from accelbus.delivery.status import State
from accelbus.errors import OutputGoneError

logger = logging.getLogger(__name__)

DONE: Final = 0
"""Exit code: what there was to do is done, or the worker was told to leave; the last status says which."""
FENCED: Final = 3
"""Exit code: a newer owner delivers."""
RESTART: Final = 75
"""Exit code: a fresh process should try again after a while."""

_Result = TypeVar("_Result")


class LeaveError(Exception):
    """End this process with an exit code."""

    def __init__(self, code: int, state: State) -> None:
        super().__init__(code, state)
        self.code = code
        self.state = state


class Repeater:
    """Repeat start, flush and finish with back-off; after some failures in a row leave, so that a fresh process tries.

    Args:
        channel: commands are obeyed while it waits.
        tuning: back-off, and how many failures.
        on_failure: called after each failure, before the wait.
    """

    def __init__(self, channel: Channel, tuning: Tuning, on_failure: Callable[[], None]) -> None:
        self._channel = channel
        self._tuning = tuning
        self._on_failure = on_failure
        self.failures = 0
        """Of all calls."""

    def call(self, what: str, function: Callable[[], _Result]) -> _Result:
        """Return what *function* returns once it does not raise.

        Raises:
            LeaveError: it kept failing, or a command ended the wait.
            OutputGoneError: repeating it does not bring that back.
        """
        failures = 0
        while True:
            try:
                return function()
            except OutputGoneError:
                raise
            except Exception as error:  # noqa: BLE001  isolation: whatever a tracker raises is retried, counted and reported
                failures += 1
                self._failed(what, failures, error)

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            LeaveError: the worker is to stop.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._channel.is_stopping:
            self._channel.wait(left)
        if self._channel.is_stopping:
            raise LeaveError(DONE, "stopped")

    def _failed(self, what: str, failures: int, error: Exception) -> None:
        self.failures += 1
        status = self._channel.status
        status.last_error = describe(error)
        logger.warning("%s: %s (failure %d)", what, status.last_error, failures, exc_info=failures == 1)
        self._channel.enter("idle")
        self._on_failure()
        if failures >= self._tuning.restart_after_failures:
            raise LeaveError(RESTART, "retrying")
        self.pause(back_off(failures, self._tuning))


__all__ = ["DONE", "FENCED", "RESTART", "LeaveError", "Repeater"]
