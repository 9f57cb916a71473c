"""One ``wandb.init``: rows under W&B's rules for steps, and proof that they are on disk.

W&B has one row per step of its own, steps only rise, and what comes for an earlier one is dropped. A row gets its own step where that
is free, else the next free one; its true step is in it as `STEP` either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import wandb

from accelbus_sinks._wandb_log import HEADER_BYTES, LogFollower
from accelbus_sinks._wandb_settings import CAN_FLUSH

STEP: Final = "accelbus/step"
"""Metric with the true step of every row; the x axis of a run as soon as W&B's own steps differ from it."""
_FLUSH_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.01
_ASK_SECONDS: Final = 1.0


class Session:
    """A run object of W&B, from ``init`` to ``finish``.

    Args:
        arguments: of ``wandb.init``.
        next_step: first step of W&B's own that is free, as far as is known.
        uses_axis: rows were moved before, so that `STEP` is the x axis.

    Raises:
        wandb.Error: whatever ``wandb.init`` raises: no key, no connection, …
    """

    def __init__(self, arguments: Mapping[str, Any], *, next_step: int, uses_axis: bool) -> None:
        self.run = wandb.init(**arguments)
        self.first_step = self.run.starting_step
        """Above 0 when the server has rows of this run."""
        self.next_step = max(next_step, self.first_step)
        self.uses_axis = uses_axis
        self.path = Path(self.run.settings.sync_file) if not self.run.disabled else None
        self.durable_size = HEADER_BYTES
        self.durable_next_step = next_step
        self._follower = LogFollower(self.path) if self.path else None
        self._rows = 0
        self._definitions = 0
        self._unmarked = True
        self._options: dict[str, Mapping[str, str]] = {}
        self._define(STEP, hidden=True, summary="none")
        if uses_axis:
            self._use_axis()

    def log(self, step: int, time_ns: int, values: Mapping[str, Any]) -> int:
        """Record a row and return the step of W&B's own that it got."""
        own: int = max(step, self.next_step)
        if own != step and not self.uses_axis:
            self._use_axis()
        # An explicit commit: W&B would keep the row open until the next one, where no flush reaches it.
        self.run.log({**values, STEP: step, "_timestamp": time_ns / 1e9}, step=own, commit=True)
        self._rows += 1
        self.next_step = own + 1
        return own

    def relog(self, own: int, values: Mapping[str, Any]) -> None:
        """Record a row again that an earlier session had recorded under the same step."""
        self.run.log(dict(values), step=own, commit=True)
        self._rows += 1
        self.next_step = max(self.next_step, own + 1)

    def define_as(self, name: str, options: Mapping[str, str]) -> None:
        """Say how the metric *name* is to be shown; *options* are ``define_metric``'s."""
        self._options[name] = options
        axis = {"step_metric": STEP} if self.uses_axis and "step_metric" not in options else {}
        self._define(name, **axis, **options, step_sync=False)

    def touch(self) -> None:
        """Something else than rows and definitions was recorded: a flush must wait for it too."""
        self._unmarked = True

    def flush(self) -> None:
        """Wait until everything recorded is in W&B's file; it writes by itself every `WRITE_INTERVAL` seconds, and has no call for that.

        Raises:
            TimeoutError: it does not come.
            ConnectionError: W&B's service is gone.
        """
        if self._follower is None or not CAN_FLUSH:
            return
        if self._unmarked:
            self._mark()
            self._unmarked = False
        self._wait(lambda: self._count("history") >= self._rows and self._count("metric") >= self._definitions, self._mark)
        self.durable_size = self._follower.size
        self.durable_next_step = self.next_step

    def finish(self, exit_code: int) -> None:
        """End the run; its file is complete afterwards, which W&B itself does not wait for. The errors are those of `flush`."""
        self.run.finish(exit_code=exit_code)
        if self._follower is not None:
            self._wait(lambda: self._count("exit") > 0, lambda: None)

    def _wait(self, is_done: Callable[[], bool], ask: Callable[[], None]) -> None:
        began = asked = time.monotonic()
        while not is_done():
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            if now - began > _FLUSH_SECONDS:
                raise TimeoutError(f"W&B has not written {self.path} for {_FLUSH_SECONDS:.0f} s")
            if now - asked > _ASK_SECONDS:
                asked = now
                ask()

    def _count(self, kind: str) -> int:
        assert self._follower is not None
        return self._follower.count(kind)

    def _mark(self) -> None:
        """Record something that is known to come out behind everything else; raises if the service is gone."""
        self._define(STEP, hidden=True, summary="none")

    def _use_axis(self) -> None:
        self.uses_axis = True
        self._define("*", step_metric=STEP, step_sync=False)
        for name, options in self._options.items():
            self.define_as(name, options)

    def _define(self, name: str, **options: Any) -> None:
        self.run.define_metric(name, **options)
        self._definitions += 1


__all__ = ["STEP", "Session"]
