"""What a tracker makes of the run's configuration, asked for the ranks that wait for it in ``init``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from accelbus.config import Tuning
from accelbus.delivery.channel import Channel
from accelbus.delivery.feeder import back_off, describe, is_news
from accelbus.delivery.status import Resolved

logger = logging.getLogger(__name__)

_LARGEST: Final = 512 * 1024
"""Bytes that go into one message to each rank."""


class Resolution:
    """Asks the tracker once; a failure is repeated with back-off, ranks wait until their own deadline.

    Args:
        resolve: returns what the tracker says; raises whatever the tracker raises.
        is_ready: whether the tracker has been told the configuration.
        channel: to the supervisor.
        tuning: back-off.
        is_wanted: whether anybody waits for this tracker's word.
    """

    def __init__(
        self,
        resolve: Callable[[], dict[str, Any] | None],
        *,
        is_ready: Callable[[], bool],
        channel: Channel,
        tuning: Tuning,
        is_wanted: bool,
    ) -> None:
        self._resolve = resolve
        self._is_ready = is_ready
        self._channel = channel
        self._tuning = tuning
        self._is_owed = is_wanted
        self._failures = 0
        self._retry_at = 0.0

    def work(self) -> None:
        """Ask and report, when it is time to."""
        if not self._is_owed or time.monotonic() < self._retry_at or not self._is_ready():
            return
        try:
            config = self._resolve()
        except Exception as error:  # noqa: BLE001  isolation: whatever a tracker raises is retried and reported
            self._failures += 1
            self._channel.status.last_error = describe(error)
            if is_news(self._failures):
                logger.warning("the configuration is not resolved: %s (failure %d)", self._channel.status.last_error, self._failures)
            self._retry_at = time.monotonic() + back_off(self._failures, self._tuning)
        else:
            self._is_owed = False
            self._report(config)

    def _report(self, config: dict[str, Any] | None) -> None:
        resolved = Resolved(config, "" if config is not None else "this tracker resolves no configurations")
        encoded = msgspec.msgpack.encode(resolved)
        if len(encoded) > _LARGEST:
            encoded = msgspec.msgpack.encode(Resolved(None, f"its configuration takes {len(encoded)} bytes, more than {_LARGEST}"))
        self._channel.status.resolved = encoded
        self._channel.push_now()
        self._channel.status.resolved = None


__all__ = ["Resolution"]
