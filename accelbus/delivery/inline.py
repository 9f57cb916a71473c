"""A worker on a thread of the process that trains, for a tracker that has to live there.

It does what a worker process does, with one difference: nobody can end it. A call that hangs is reported and waited for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import anyio
import msgspec

from accelbus.config import Tuning
from accelbus.delivery.channel import Channel, Command, WorkerSpec
from accelbus.delivery.exclusion import exclude_others
from accelbus.delivery.feeder import describe
from accelbus.delivery.loop import Loop
from accelbus.delivery.making import Maker
from accelbus.delivery.repeating import RESTART
from accelbus.delivery.status import SinkStatus
from accelbus.rundir import RunDir
from accelbus.tracking import GeneralTracker, finish_with_status

logger = logging.getLogger(__name__)

_LOOK_INTERVAL: Final = 0.1
"""Seconds between two reports; half the status interval would make `unwrap` wait longer than a tracker needs to start."""


class LocalChannel(Channel):
    """Between a loop and its supervisor in one process."""

    def __init__(self, status: SinkStatus) -> None:
        super().__init__(-1, -1, status)

    def push_now(self) -> None:
        """Do nothing: the supervisor looks."""

    def snapshot(self) -> SinkStatus:
        """Return the status as it is now."""
        self.status.phase_seconds = self.seconds_in_phase
        return msgspec.structs.replace(self.status)


class InlineWorker:
    """Delivers to one tracker on a thread of its own.

    Args:
        run_dir: of the run.
        sink: its name.
        spec: what a worker is told.
        given: the tracker, or its class; None: it is found by its name.
        on_status: called with each report, on the event loop.
    """

    killed_for = ""

    def __init__(self, run_dir: RunDir, sink: str, spec: WorkerSpec, given: Any, on_status: Callable[[SinkStatus], None]) -> None:
        self._run_dir = run_dir
        self._sink = sink
        self._spec = spec
        self._on_status = on_status
        self._channel = LocalChannel(SinkStatus(sink=sink, pid=os.getpid(), generation=spec.generation))
        self._maker = Maker(sink, spec.record, given=given, in_trainer=True)
        self._loop: Loop | None = None
        self._code = 1
        self.ending = ""
        """Status with which a tracker is finished that has to be left before the run is closed."""

    @property
    def tracker(self) -> GeneralTracker | None:
        """The tracker, once it has started."""
        return self._loop.tracker if self._loop is not None else None

    def open(self) -> None:
        """Let a tracker open its run that waits for its configuration or first row."""
        self._channel.take(Command("tell"))

    async def run(self) -> int:
        """Deliver to the end; return the exit code a process would have had."""
        thread = threading.Thread(target=self._deliver, name=f"accelbus-{self._sink}", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                await anyio.sleep(_LOOK_INTERVAL)
                self._on_status(self._channel.snapshot())
        finally:
            self.kill()
        self._on_status(self._channel.snapshot())
        return self._code

    async def send(self, command: Command) -> None:
        """Tell the loop something."""
        self._channel.take(command)

    def kill(self) -> None:
        """Ask the thread to leave; it cannot be made to."""
        self._channel.take(Command("stop"))

    def _deliver(self) -> None:
        status, tuning = self._channel.status, Tuning(**self._spec.tuning)
        try:
            directory = self._run_dir.sink(self._sink)
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = exclude_others(directory, patience=tuning.exclusion_patience, timeout=tuning.start_deadline / 2)
            try:
                self._loop = Loop(self._run_dir, self._sink, self._spec, self._channel, self._maker)
                code = self._loop.run()
                if status.state == "stopped":
                    self._leave(self._loop.tracker)
                status.leaving = self._code = code
            finally:
                os.close(lock)
        except TimeoutError as error:
            status.last_error, status.leaving, self._code = describe(error), RESTART, RESTART
        except BaseException as error:  # isolation: a tracker must not end training by ending its thread
            status.last_error = describe(error)
            logger.exception("delivery to %s failed", self._sink)

    def _leave(self, tracker: GeneralTracker | None) -> None:
        """The process ends before the run is closed: let the tracker write what it holds."""
        if tracker is not None and self.ending:
            self._channel.enter("finish")
            with contextlib.suppress(Exception):  # everything it has taken was flushed before
                finish_with_status(tracker, self.ending)
            self._channel.enter("idle")


__all__ = ["InlineWorker"]
