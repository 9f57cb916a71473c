"""Trackers that live in the main rank, each fed by a thread: for their live objects, or because they cannot live elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from accelbus import control
from accelbus.client.finishing import Patience, ProgressLine
from accelbus.client.trackers import Trackers
from accelbus.config import Tuning
from accelbus.errors import ConfigurationError
from accelbus.rundir import RunDir, RunRecord

if TYPE_CHECKING:
    import asyncio

    from accelbus.delivery.inline import InlineWorker
    from accelbus.delivery.supervisor import Supervisor

_log = logging.getLogger("accelbus")
_LOOK_INTERVAL: Final = 0.02
_OPEN_AFTER: Final = 1.0
"""Seconds for the configuration to reach a tracker that opens its run with it."""
_LINE_AFTER: Final = 2.0
"""Seconds of waiting at the end before a line says for whom."""
_OVER: Final = frozenset({"finished", "fenced", "waiting"})
"""States in which there is nothing left to do here: the last two because somebody else delivers."""
_LEAVE_TIMEOUT: Final = 5.0
"""Seconds for a worker that was told to leave: its call may hang, and it cannot be ended."""


class InlineTrackers:
    """Delivery to the trackers of one run that live in this process. Ends with it; what is owed then, ``accelbus sync`` delivers."""

    def __init__(
        self, run_dir: RunDir, record: RunRecord, trackers: Trackers, *, tuning: Tuning, on_notice: Callable[[control.Notice], None]
    ) -> None:
        self._run_dir = run_dir
        self._record = record
        self._trackers = trackers
        self._tuning = tuning
        self._on_notice = on_notice
        self._workers: dict[str, InlineWorker] = {}
        self._supervisor: Supervisor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Any = None
        self._thread = threading.Thread(target=self._run, name="accelbus-inline", daemon=True)
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin; returns at once."""
        for name, why in self._trackers.stays.items():
            _log.warning(
                "the tracker %r runs in this process, beside training: %s. A call of it that blocks, crashes or holds the GIL does "
                "so to training; a class at the top level of a module, made with plain arguments, would get a process of its own",
                name,
                why,
            )
        self._thread.start()

    def states(self) -> Mapping[str, Any]:
        """Return {tracker: status}."""
        return {} if self._supervisor is None else self._supervisor.states()

    def live(self, name: str) -> Any:
        """Return the live object of a tracker; waits until it has started.

        Raises:
            ConfigurationError: it does not start.
        """
        deadline = time.monotonic() + self._tuning.start_deadline
        started_at: float | None = None
        while not self._ended.is_set() and time.monotonic() < deadline:
            worker = self._workers.get(name)
            if worker is not None and (found := worker.tracker) is not None:
                live = getattr(found, "tracker")  # noqa: B009  required of every tracker, declared in none
                if live is not None:
                    return live
                # W&B offline: the run is made with its configuration, which is on its way if there is one.
                started_at = started_at or time.monotonic()
                if time.monotonic() - started_at > _OPEN_AFTER:
                    started_at = time.monotonic()
                    worker.open()
            time.sleep(_LOOK_INTERVAL)
        state = self.states().get(name)
        raise ConfigurationError(f"the tracker {name!r} has not started: {state.last_error or state.state if state else 'it is over'}")

    def finish(self, status: str, patience: Patience) -> None:
        """Wait until the trackers have everything, then end.

        Args:
            status: of this rank; for trackers that have to be left while the run is open.
            patience: how long, and whether until the run is closed.
        """
        deadline = time.monotonic() + patience.seconds
        drained = threading.Event()
        if not patience.until_closed:
            self._call(lambda supervisor: self._drain(supervisor, patience.seconds, drained))
        line = ProgressLine(after=_LINE_AFTER)
        while time.monotonic() < deadline and not self._ended.is_set() and not drained.is_set() and not self._are_finished():
            line.show({name: (state.state, state.values.pending) for name, state in self.states().items() if state.state not in _OVER})
            time.sleep(_LOOK_INTERVAL)
        line.clear()
        if not self._are_finished():
            for worker in self._workers.values():
                worker.ending = status
            if patience.until_closed:
                _log.warning("not everything is in %s yet; accelbus sync delivers the rest", ", ".join(self._trackers.inline))
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._ended.wait(self._tuning.stop_grace + _LEAVE_TIMEOUT)

    def _are_finished(self) -> bool:
        states = self.states()
        return bool(states) and all(state.state in _OVER for state in states.values())

    def _call(self, function: Callable[[Supervisor], Any]) -> None:
        loop, supervisor = self._loop, self._supervisor
        if loop is not None and supervisor is not None:
            loop.call_soon_threadsafe(lambda: loop.create_task(function(supervisor)))

    @staticmethod
    async def _drain(supervisor: Supervisor, timeout: float, drained: threading.Event) -> None:
        if await supervisor.drain(timeout):
            drained.set()

    def _run(self) -> None:
        import anyio

        try:
            anyio.run(self._serve)
        except BaseException:  # noqa: BLE001  isolation: training goes on without these trackers
            _log.exception("delivery to %s failed", ", ".join(self._trackers.inline))
        finally:
            self._ended.set()

    async def _serve(self) -> None:
        import asyncio

        import anyio

        from accelbus.delivery.supervisor import Supervisor

        self._supervisor = Supervisor(
            self._run_dir,
            self._record,
            tuning=self._tuning,
            sinks=self._trackers.inline,
            purpose="inline",
            on_notice=lambda level, text, sink: self._on_notice(control.Notice(level, text, sink)),
            make_worker=self._make_worker,
        )
        self._stop = anyio.Event()
        self._loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._supervisor.run)
            await self._stop.wait()
            await self._supervisor.stop()
            tasks.cancel_scope.cancel()

    def _make_worker(self, sink: str, spec: Any, on_status: Callable[[Any], None]) -> InlineWorker:
        from accelbus.delivery.inline import InlineWorker

        worker = self._workers[sink] = InlineWorker(self._run_dir, sink, spec, self._trackers.given.get(sink), on_status)
        return worker


__all__ = ["InlineTrackers"]
