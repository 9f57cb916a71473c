"""Tend one sink: own it, keep a worker running, restart it, tell people once what they should know."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import anyio
import anyio.to_thread
import msgspec

from accelbus.config import Tuning
from accelbus.delivery import repeating
from accelbus.delivery.blame import Blame
from accelbus.delivery.channel import Command, WorkerSpec
from accelbus.delivery.deadletters import FILE
from accelbus.delivery.feeder import back_off, describe
from accelbus.delivery.ownership import Lease, claim
from accelbus.delivery.process import Worker, WorkerProcess
from accelbus.delivery.status import DONE, Resolved, SinkStatus, read_status, write_status
from accelbus.errors import OwnershipError
from accelbus.rundir import RunDir, RunRecord

logger = logging.getLogger(__name__)

Notice: TypeAlias = Callable[[str, str, str], None]
"""Called with level (``info``, ``warning``, ``error``), text and sink."""

MakeWorker: TypeAlias = Callable[[str, WorkerSpec, Callable[[SinkStatus], None]], Worker]

_STATUS_FILE_INTERVAL = 2.0
_CALLS = frozenset({"log", "media", "flush", "finish"})
_WORKING = frozenset({"running", "up_to_date"})
_MOST_NOTICES = 20
"""That a tracker tells the user: one that says something of every step would flood the terminal."""


class Tender:
    """One sink of one run.

    Args:
        run_dir: of the run.
        record: of the run.
        sink: name of the tracker.
        tuning: intervals and deadlines.
        environ: environment of this process.
        purpose: what this process is, for others that want the sink.
        once: deliver what is there and be done, instead of following until the run is closed.
        stays: wait for `resume` when done.
        on_notice: gets lines for the user.
        make_worker: (sink, spec, called with each status) → worker; a process when not given.
    """

    def __init__(
        self,
        run_dir: RunDir,
        record: RunRecord,
        sink: str,
        *,
        tuning: Tuning,
        environ: Mapping[str, str],
        purpose: str,
        once: bool,
        stays: bool,
        on_notice: Notice,
        make_worker: MakeWorker | None = None,
    ) -> None:
        self._make_worker = make_worker
        self._run_dir = run_dir
        self._directory = run_dir.sink(sink)
        self._record = record
        self._sink = sink
        self._tuning = tuning
        self.environ = environ
        """What the next worker gets of it; see `accelbus.delivery.environment`."""
        self.carried = b""
        """The tracker by value, for the next worker."""
        self._purpose = purpose
        self._once = once
        self._stays = stays
        self._on_notice = on_notice
        self._lease: Lease | None = None
        self._is_fenced = False
        self._worker: Worker | None = None
        self._worker_gone = anyio.Event()
        self._changed = anyio.Event()
        self._stopping = anyio.Event()
        self._resumed = anyio.Event()
        self._drain = 0
        self._blame = Blame(tuning)
        self._one_by_one = False
        self._failures = 0
        self._said: set[str] = set()
        self._heard: set[str] = set()
        """Notices of the tracker that were passed on."""
        self._written_at = -_STATUS_FILE_INTERVAL
        self.status = SinkStatus(sink=sink)
        self.resolved: Resolved | None = None
        """What the tracker made of the configuration, once it has said so."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do for it here."""
        return self.status.state in DONE or self.status.state == "waiting" or (self._once and self.status.state == "up_to_date")

    def has_drained(self, number: int) -> bool:
        return self.is_done or self.status.drained >= number

    async def wait_until_drained(self, number: int) -> None:
        while not self.has_drained(number):
            self._changed = anyio.Event()
            await self._changed.wait()

    async def claim(self, *, take_over: bool = False) -> None:
        """Become the sink's owner.

        Raises:
            OwnershipError: somebody else is.
        """
        self._lease = await anyio.to_thread.run_sync(
            lambda: claim(self._directory, tuning=self._tuning, purpose=self._purpose, take_over=take_over)
        )
        # What a person looks for there outlives an owner that is interrupted before its worker has said anything.
        last = await anyio.to_thread.run_sync(read_status, self._directory)
        if last is not None and not self.status.url:
            self.status.url = last.url

    async def run(self) -> None:
        """Deliver until there is nothing left to do (with ``stays``: until `stop`)."""
        try:
            while not self._stopping.is_set():
                try:
                    if (lease := await self._own()) is not None:
                        await self._serve(lease)
                except Exception as error:
                    # One sink's trouble must not reach the others, nor the process that serves the ranks.
                    logger.exception("%s: delivery failed", self._sink)
                    self._set(state="retrying", last_error=describe(error), restarts=self.status.restarts + 1)
                    self._failures += 1
                    await self._sleep(back_off(self._failures, self._tuning))
                    continue
                if not self._stays:
                    break
                await self._wait_for_resumption()
        finally:
            self._end()

    async def stop(self) -> None:
        """Let the worker flush, move its cursor and leave; kill it if that takes longer than ``stop_grace``."""
        self._stopping.set()
        self._resumed.set()
        worker = self._worker
        if worker is not None:
            await worker.send(Command("stop"))
            with anyio.move_on_after(self._tuning.stop_grace):
                await self._worker_gone.wait()
            worker.kill()

    async def drain(self, number: int) -> None:
        """Ask the worker for word when all that is in the journal now is delivered."""
        self._drain = number
        if self._worker is not None:
            await self._worker.send(Command("drain", number))

    def resume(self) -> None:
        """There is more, or may be: start again if the sink was finished, or is about to. Until then it is not called finished."""
        self._resumed.set()
        if self.status.state == "finished":
            self._set(state="starting")

    # Owning

    async def _own(self) -> Lease | None:
        """Wait until the sink is ours. None: stopped before."""
        while self._lease is None and not self._stopping.is_set():
            try:
                await self.claim()
            except OwnershipError as error:
                if self.status.state not in ("fenced", "waiting"):
                    self._say("owner", "warning", str(error))
                self._set(state="waiting", last_error=str(error))
                if not self._stays:
                    return None
            except OSError as error:
                self._say("claim", "warning", f"its directory cannot be written ({error}); trying again")
                self._set(state="retrying", last_error=str(error))
            else:
                break
            await self._sleep(self._tuning.lease_interval)
        return self._lease

    async def _renew(self, lease: Lease) -> None:
        """Keep *lease* from expiring, also between two workers; end the worker if somebody else took over."""
        while True:
            await anyio.sleep(self._tuning.lease_interval)
            try:
                held = await anyio.to_thread.run_sync(lease.renew)
            except OSError as error:
                logger.warning("%s: the lease cannot be renewed: %s", self._sink, error)
                continue
            if not held:
                self._is_fenced = True
                if self._worker is not None:
                    self._worker.kill()
                return

    # Serving

    async def _serve(self, lease: Lease) -> None:
        """Run workers until the work is done, or is somebody else's."""
        self._is_fenced = is_done = False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._renew, lease)
            while not self._stopping.is_set() and not self._is_fenced:
                worker = self._new_worker(lease)
                code = await self._run(worker)
                if self.status.leaving == repeating.FENCED:
                    self._is_fenced = True
                elif self.status.leaving == repeating.DONE:
                    is_done = True
                    break
                elif not self._stopping.is_set() and not self._is_fenced:
                    self._learn_from_end(worker, code)
                    await self._sleep(back_off(self._failures, self._tuning))
            tasks.cancel_scope.cancel()
        # Only now: a renewal under way would undo a release.
        if is_done:
            self._leave_status(force=True)
            lease.release()
            self._lease = None
        if self._is_fenced:
            self._lease = None
            self._set(state="fenced")
            self._say("fenced", "warning", "somebody else took over" + ("; delivery goes on here when they leave" if self._stays else ""))

    def _new_worker(self, lease: Lease) -> Worker:
        spec = WorkerSpec(
            generation=lease.generation,
            record=self._record,
            tuning=msgspec.to_builtins(self._tuning),
            once=self._once,
            drain=self._drain,
            one_by_one=self._one_by_one,
            deaths=self._blame.deaths(),
            carried=self.carried,
        )
        if self._make_worker is not None:
            return self._make_worker(self._sink, spec, self._take)
        return WorkerProcess(self._run_dir, self._sink, spec, tuning=self._tuning, environ=self.environ, on_status=self._take)

    async def _run(self, worker: Worker) -> int:
        self._worker = worker
        self._worker_gone = anyio.Event()
        self._set(state="starting", phase="start", row="", leaving=None)
        code = repeating.RESTART
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._mind_slow_start)
                try:
                    code = await worker.run()
                except OSError as error:
                    self._set(last_error=f"the worker cannot be started: {error}", leaving=repeating.RESTART)
                tasks.cancel_scope.cancel()
        finally:
            self._worker = None
            self._worker_gone.set()
        return code

    def _learn_from_end(self, worker: Worker, code: int) -> None:
        """A worker ended before its work was done."""
        self._failures += 1
        error = self.status.last_error
        if self.status.leaving != repeating.RESTART:
            error = worker.killed_for or _describe_exit(code)
            self._one_by_one = True
            if row := self.status.row:
                self._blame.add(row, code, worker.killed_for)
            self._say("died", "warning", f"its worker ended ({error}) and is started again; see {self._run_dir.logs / self._sink}.log")
        self._set(state="retrying", restarts=self.status.restarts + 1, last_error=error)

    def _take(self, status: SinkStatus) -> None:
        """A report of the worker."""
        previous = self.status
        if status.resolved is not None:
            self.resolved, status.resolved = msgspec.msgpack.decode(status.resolved, type=Resolved), None
        status.restarts = previous.restarts
        status.url = status.url or previous.url
        if not status.ranks:
            # Not yet read from the cursor.
            status.ranks, status.dead_letters = previous.ranks, previous.dead_letters
        if status.state == "finished" and self._resumed.is_set() and not self._stopping.is_set():
            # It had read the journal before there was more; the next worker has not.
            status.state = "running"
        if status.state == "blocked":
            self._blame.clear()
        if status.state in _WORKING and status.caught_up_ns > previous.caught_up_ns:
            self._failures = 0
            self._one_by_one = False
            self._blame.clear()
        status.reported_ns = time.time_ns()
        self.status = status
        self._changed.set()
        self._tell(status, previous)
        self._leave_status(force=status.state != previous.state)

    def _tell(self, status: SinkStatus, previous: SinkStatus) -> None:
        if status.url:
            self._say("url", "info", status.url)
        for text in status.notices:
            self._say_what_it_says(text)
        if status.phase in _CALLS and status.phase_seconds > self._tuning.slow_notice:
            self._say(f"slow {status.phase}", "warning", f"has been in {status.phase} for {status.phase_seconds:.0f} s")
        if status.state == "retrying" and status.last_error:
            kind = "start" if not status.rows and not status.url else "log"
            self._say(kind, "warning", f"{status.last_error}; trying again")
        if status.dead_letters > previous.dead_letters:
            why = f" ({status.last_error})" if status.last_error else ""
            self._say("dead letters", "warning", f"refuses some of what was logged{why}; it is kept in {self._directory / FILE}")
        if status.state == "blocked" and previous.state != "blocked":
            self._on_notice(
                "error", f"{self._sink}: {status.failing_rows} rows failed one after the other ({status.last_error}); waiting", self._sink
            )
        if previous.state == "blocked" and status.state in _WORKING:
            self._on_notice("info", f"{self._sink}: works again", self._sink)

    def _say_what_it_says(self, text: str) -> None:
        """Pass a notice of the tracker on, once however often its worker is started."""
        if text in self._heard:
            return
        if len(self._heard) >= _MOST_NOTICES:
            self._say("more notices", "warning", f"says more; see {self._run_dir.logs / self._sink}.log")
            return
        self._heard.add(text)
        self._on_notice("warning", f"{self._sink}: {text}", self._sink)

    async def _mind_slow_start(self) -> None:
        await anyio.sleep(self._tuning.slow_notice)
        if self.status.state == "starting":
            self._say("slow start", "warning", f"not started after {self._tuning.slow_notice:g} s; still trying")

    def _say(self, kind: str, level: str, text: str) -> None:
        """Tell the user, once per *kind*."""
        if kind not in self._said:
            self._said.add(kind)
            self._on_notice(level, f"{self._sink}: {text}", self._sink)

    # Waiting

    async def _sleep(self, seconds: float) -> None:
        """Wait; a stop ends it."""
        with anyio.move_on_after(seconds):
            await self._stopping.wait()

    async def _wait_for_resumption(self) -> None:
        if self.status.state == "fenced":
            # Whoever took over may leave any moment, and nobody would deliver what comes after that.
            return
        if self._stopping.is_set():
            return
        await self._resumed.wait()
        if not self._stopping.is_set():
            self._resumed = anyio.Event()

    def _end(self) -> None:
        if not self.is_done:
            self._set(state="stopped", phase="idle")
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _set(self, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)
        self._changed.set()
        self._leave_status(force="state" in changes)

    def _leave_status(self, *, force: bool) -> None:
        now = time.monotonic()
        if self._lease is None:
            # Somebody else may own the sink, and its file.
            return
        if force or now - self._written_at > _STATUS_FILE_INTERVAL:
            self._written_at = now
            try:
                write_status(self._directory, self.status)
            except OSError as error:
                logger.debug("%s: the status cannot be written: %s", self._sink, error)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


__all__ = ["MakeWorker", "Notice", "Tender"]
