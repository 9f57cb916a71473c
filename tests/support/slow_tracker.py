"""A tracker whose ``finish`` takes as long as a test wants."""

from __future__ import annotations

import time

from tests.support.trackers import ScriptedTracker


class SlowlyFinishingTracker(ScriptedTracker):
    """``finish`` returns when there is a file ``may_finish`` in its directory."""

    name = "slow"

    def finish(self, status: str | None = None) -> None:
        super().finish(status)
        while not (self.directory / "may_finish").exists():
            time.sleep(0.01)
