"""What peers send that cannot be used, and what nobody thought of: counted, said at powers of ten, survived."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from accelbus.errors import FrameError

_log = logging.getLogger(__name__)


class Faults:
    """Counters of one bus process, whichever run it was about."""

    def __init__(self) -> None:
        self._dropped: Counter[str] = Counter()
        self.errors = 0
        """Pieces of work that failed in a way that nobody thought of."""

    @property
    def bad_frames(self) -> int:
        """Messages that were dropped."""
        return self._dropped.total()

    def drop(self, error: FrameError) -> None:
        """Count what a peer should not have sent."""
        self._dropped[error.reason] += 1
        count = self._dropped[error.reason]
        if _is_power_of_ten(count):
            _log.warning("dropped what a peer sent, number %d of the kind: %s", count, error)

    def drop_malformed(self) -> None:
        """Count a message that does not even consist of one frame."""
        self._dropped["parts"] += 1

    async def survive(self, what: str, work: Coroutine[Any, Any, None]) -> bool:
        """Do *work* for one producer; False when it failed, in a way that nobody thought of."""
        try:
            await work
        except Exception:  # noqa: BLE001  isolation: one producer must not end the process for all, again and again
            self.errors += 1
            if _is_power_of_ten(self.errors):
                _log.exception("%s cannot be dealt with and is passed over, number %d of the kind", what, self.errors)
            return False
        return True


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"


__all__ = ["Faults"]
