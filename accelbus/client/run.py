"""`Run`, what a training script talks to; and `init`, `attach`, `log`, `finish` for the process's current run."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from time import time_ns
from types import TracebackType
from typing import Any

import msgspec

from accelbus import __version__, control, tracking
from accelbus import values as value_model
from accelbus.blobs import BlobStore
from accelbus.client.attach import Handle
from accelbus.client.finishing import wait_for_sinks
from accelbus.client.hooks import HOOKS, Ending, ending_by
from accelbus.client.identity import Identity, identify
from accelbus.client.launch import BusLauncher, node_directory
from accelbus.client.placement import place
from accelbus.client.pump import Pump, Spill, Wake
from accelbus.config import Settings, Tuning, from_environment
from accelbus.errors import ConfigurationError, NotInitializedError, QueueFullError, RequiredTrackerError, StrictError
from accelbus.events import METRICS_TAG, STATUSES, TRAINER, ConfigUpdate, RunEnd, RunStart
from accelbus.journal.memory_queue import MemoryQueue
from accelbus.journal.segments import JournalWriter
from accelbus.journal.spool import Spool
from accelbus.rundir import RunDir, RunRecord, check_run_id

_log = logging.getLogger("accelbus")
_encode = value_model.encoder().encode


class Statistics(msgspec.Struct, frozen=True):
    """Snapshot of one producer; counts are events unless they say otherwise."""

    logged: int
    acked: int
    pending: int
    dropped: dict[str, int]
    """{reason: events or values not kept}"""
    spool: str
    """tmpfs, disk, memory, none"""
    fill: float
    connected: bool
    attempt: int | None
    frames: int = 0
    resent: int = 0
    hellos: int = 0
    reconnects: int = 0
    spilled: int = 0
    spill_errors: int = 0
    bad_frames: int = 0


class Run:
    """One producer of one run. Made by `init` or `attach`.

    `log` never waits and never raises for transport trouble, a full disk or a value no tracker takes; see `statistics`.
    """

    def __init__(self, settings: Settings, identity: Identity | None, run_dir: RunDir, *, sinks: tuple[str, ...] = (), tuning: Tuning | None = None) -> None:
        """Use `init` instead."""
        self.id = run_dir.run_id
        self.dir = run_dir.path
        self.config: dict[str, Any] = {}
        self.settings = settings
        self.sinks = sinks
        self._run_dir = run_dir
        self._identity = identity
        self._tuning = tuning or Tuning()
        self._step: int | None = None
        self._auto_steps = count()
        self._warned: set[str] = set()
        self._finishing = threading.Lock()
        self._state = "disabled"
        self._queue: Spool | MemoryQueue | None = None
        self._pump: Pump | None = None
        self._wake = Wake()
        self._where = "none"
        self._append = _keep_nothing
        self._producer = uuid.uuid4().bytes
        self._local_drops: dict[str, int] = {}
        self._created_ns = time_ns()
        self._blobs = BlobStore(run_dir.blobs, self._producer.hex(), quota=self._tuning.blob_bytes)

    # --- logging

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Queue *values* for every tracker, as they are now. Never waits; never raises for transport trouble or bad values.

        What cannot be kept is counted by reason in `statistics().dropped` and warned about once per key;
        ``ACCELBUS_STRICT=1`` raises instead.

        Args:
            values: {key: number, text, bool, None, array or tensor with one element, nested mapping, sequence}.
            step: anything with ``__index__``, or an integral float. None: this producer's last explicit step; a producer that
                never gives one is counted per call.
        """
        if type(step) is int and type(values) is dict:
            try:
                payload = _encode((METRICS_TAG, time_ns(), step, values))
            except Exception:  # noqa: BLE001  the slow path says which value and why
                self._log_slowly(values, step)
                return
            self._step = step
            if not self._append(payload):
                self._not_kept(payload, values, step)
        else:
            self._log_slowly(values, step)

    def log_config(self, config: Any) -> None:
        """Record hyperparameters; later values of a key replace earlier ones.

        Args:
            config: mapping, dataclass, Namespace or anything else with items; nested values are kept.
        """
        plain = value_model.config_values(config)
        self.config.update(plain)
        if self._queue is not None and self._state == "running":
            self._put_reserved(ConfigUpdate(time_ns(), plain))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything logged so far is safe outside this process; False when *timeout* seconds were not enough.

        Args:
            timeout: seconds; ``ACCELBUS_EXIT_TIMEOUT`` (5) when not given.
        """
        queue = self._queue
        if queue is None or self._state == "inert":
            return True
        target = queue.last_seq
        deadline = time.monotonic() + (self._tuning.exit_timeout if timeout is None else timeout)
        while queue.released_seq < target:
            if time.monotonic() > deadline:
                return False
            self._wake.set()
            time.sleep(0.002)
        return True

    # --- the end

    def finish(self, status: str | None = None, timeout: float | None = None) -> bool:
        """Say that nothing follows and wait, bounded, until everything is in the run directory.

        The main rank then waits for the trackers, up to ``finish_timeout``. Calling it again does nothing.

        Args:
            status: finished (default), failed or preempted.
            timeout: seconds for the trackers instead of ``finish_timeout``.

        Returns:
            Whether everything is safe; if not, a warning says what would be lost and how to get it.
        """
        if status is not None and status not in STATUSES:
            raise ConfigurationError(f"status={status!r}: expected one of {', '.join(STATUSES)}")
        return self._finish(Ending(status or "finished", ""), timeout)

    def finish_at_exit(self, ending: Ending) -> None:
        """Finish because the process ends."""
        self._finish(ending, None)

    def _finish(self, ending: Ending, timeout: float | None) -> bool:
        # A signal handler that finds finish() running in its own thread must not wait for it.
        if not self._finishing.acquire(blocking=False):
            return self._state != "running"
        try:
            return self._finish_once(ending, timeout)
        finally:
            self._finishing.release()

    def _finish_once(self, ending: Ending, timeout: float | None) -> bool:
        _forget(self)
        queue, pump = self._queue, self._pump
        if self._state != "running" or queue is None or pump is None:
            return True
        self._append = self._append_closed
        self._put_reserved(RunEnd(time_ns(), ending.status, ending.reason))
        self._state = "closed"
        if queue.file is not None:
            queue.file.mark_ending(ending.status)
        pump.say_goodbye(ending.status)
        safe = self._wait_until_safe(queue, pump)
        if not safe:
            self._say_what_is_at_risk(queue)
        if self._is_main and self.settings.mode == "online":
            wait_for_sinks(pump, self.dir, self.settings, timeout)
        self._close(queue, pump, safe=safe)
        return safe

    def _wait_until_safe(self, queue: Spool | MemoryQueue, pump: Pump) -> bool:
        deadline = time.monotonic() + self._tuning.exit_timeout
        while time.monotonic() < deadline:
            if pump.final.wait(0.005):
                return True
            if queue.released_seq >= queue.last_seq and not pump.connected and pump.counters["spilled"]:
                return True  # all of it is in the run directory, and nobody is there to confirm
        return queue.released_seq >= queue.last_seq

    def _say_what_is_at_risk(self, queue: Spool | MemoryQueue) -> None:
        left = queue.last_seq - queue.released_seq
        where = f"they are in {queue.file.path}: `accelbus salvage {queue.file.path}` brings them into the run" if isinstance(queue, Spool) else "they end with this process"
        _log.warning("%d events of run %s, rank %d, are not in the run directory; %s", left, self.id, self.rank, where)

    def _close(self, queue: Spool | MemoryQueue, pump: Pump, *, safe: bool) -> None:
        pump.stop()
        pump.join(2.0)
        confirmed = pump.final.is_set()
        if confirmed and queue.file is not None:
            queue.file.mark_closed()
        if not pump.is_alive():
            # Without the bus process's word the file stays: it tells the next one that this producer was here, and ended.
            self._final_statistics = self.statistics()
            self._queue = None
            queue.close(unlink=confirmed and safe)

    # --- information

    @property
    def rank(self) -> int:
        return 0 if self._identity is None else self._identity.rank

    @property
    def _is_main(self) -> bool:
        return self.rank == 0 and self.settings.role == TRAINER

    def url(self, sink: str) -> str | None:
        """Return where *sink* shows this run, None while that is not known.

        Raises:
            ConfigurationError: the run has no such sink.
        """
        if sink not in self.sinks:
            raise ConfigurationError(f"this run has no tracker {sink!r} (it has: {', '.join(self.sinks) or 'none'})")
        states = (self._pump.sink_states if self._pump is not None else None) or _read_sink_states(self._run_dir)
        url = states.get(sink, {}).get("url")
        return str(url) if url else None

    def statistics(self) -> Statistics:
        """Return a snapshot of this producer's counters."""
        queue, pump = self._queue, self._pump
        if queue is None or pump is None:
            return getattr(self, "_final_statistics", None) or Statistics(0, 0, 0, dict(self._local_drops), self._where, 0.0, connected=False, attempt=None)
        logged, acked = queue.last_seq, queue.released_seq
        return Statistics(
            logged, acked, logged - acked, self.dropped(), self._where, queue.fill, connected=pump.connected, attempt=pump.attempt, **pump.counters
        )

    def dropped(self) -> dict[str, int]:
        """Return {reason: count} of what this producer did not keep."""
        queue = self._queue
        if queue is None or queue.file is None:
            return dict(self._local_drops)
        return queue.file.dropped()

    def hello(self, base_seq: int, last_seq: int) -> control.Hello:
        """Return what this producer says about itself; the pump sends it, the spool keeps it."""
        identity = self._identity
        if identity is None:
            raise NotInitializedError("a disabled run has no producer")
        file = self._queue.file if self._queue is not None else None
        return control.Hello(
            producer=self._producer,
            run_id=self.id,
            run_dir=str(self.dir),
            rank=identity.rank,
            world_size=identity.world_size,
            local_rank=identity.local_rank,
            local_world_size=identity.local_world_size,
            host=identity.host,
            pid=os.getpid(),
            role=self.settings.role,
            launch=identity.launch,
            launcher=identity.launcher,
            base_seq=base_seq,
            last_seq=last_seq,
            spool=str(file.path) if file is not None else None,
            attempt=self.settings.attempt,
            main=self._is_main,
            record=msgspec.to_builtins(self._record()),
        )

    def _record(self) -> RunRecord:
        settings = self.settings
        return RunRecord(
            run_id=self.id,
            project=settings.project,
            name=settings.name,
            group=settings.group,
            tags=settings.tags,
            notes=settings.notes,
            sinks=self.sinks,
            init_kwargs=settings.init_kwargs,
            reduce=settings.reduce,
            require=settings.require,
            mode=settings.mode,
            durability=settings.durability,
            world_size=1 if self._identity is None else self._identity.world_size,
            created_ns=self._created_ns,
            accelbus=__version__,
            settings_of_rank=self.rank,
        )

    # --- context manager, pickling, forking

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._finish(ending_by(error), None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inert_run, (self.handle(),)

    def handle(self) -> Handle:
        """Return what another process needs to `attach` to this run."""
        return Handle(self.settings, self._identity, str(self.dir), self.sinks, self._tuning)

    def after_fork_in_child(self) -> None:
        """Become inert: the spool, the socket and the thread are the parent's."""
        if self._queue is not None and self._queue.file is not None:
            self._queue.file.abandon_in_child()
        self._become_inert()

    def _wait_for_required(self) -> None:
        """Wait until the bus process says whether the required trackers have started; it says the same to every rank.

        Raises:
            RequiredTrackerError: they have not, or there is no bus process to say so; the run is closed.
        """
        # The bus process gives up at require_timeout; the margin is for its own start and the way back.
        deadline = time.monotonic() + self._tuning.require_timeout + 2 * self._tuning.ack_timeout
        while (verdict := self._pump.verdict if self._pump is not None else None) is None and time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.02)
        if verdict is not None and verdict.ok:
            return
        self.finish("failed", timeout=0)
        reason = verdict.reason if verdict is not None else "the bus process did not answer"
        raise RequiredTrackerError(f"require={list(self.settings.require)}: {reason}")

    def _become_inert(self) -> None:
        self._state = "inert"
        self._append = self._append_inert
        self._pump = None
        self._queue = None
        self._finishing = threading.Lock()
        self._local_drops = {}

    def __repr__(self) -> str:
        return f"<accelbus.Run {self.id!r} rank {self.rank} {self._state}>"

    # --- opening

    def _open(self) -> None:
        """Place the spool, start the pump. After this nothing raises."""
        hello = self.hello(1, 0)
        placed = place(hello, durability=self.settings.durability, tuning=self._tuning, wake=self._wake)
        self._queue, self._where = placed
        self._append = self._queue.append
        self._state = "running"
        self._put_reserved(
            RunStart(
                time_ns(), self.id, hello.rank, hello.world_size, hello.local_rank, hello.host, hello.pid, hello.role, hello.launch,
                self.settings.attempt, hello.launcher,
            )  # fmt: skip
        )
        launcher = None
        endpoint = self.settings.endpoint
        if endpoint is None:
            launcher = BusLauncher(self._run_dir, node_directory(self._run_dir, self._tuning))
            endpoint = launcher.endpoint
            # Here and not only in the pump: a rank killed in its first milliseconds leaves somebody who finds its spool.
            try:
                launcher.ensure()
            except OSError as error:
                _log.warning("the bus process cannot be started yet (%s); events wait in the spool and the run directory", error)
        spill_directory = self._run_dir.journal / f"spill-{self._producer.hex()}"
        spill = Spill(lambda: JournalWriter(spill_directory, tuning=self._tuning), max_bytes=self._tuning.spill_bytes)
        self._pump = Pump(
            self._queue, self, wake=self._wake, endpoint=endpoint, launcher=launcher, spill=spill, tuning=self._tuning, on_notice=_print_notice
        )
        self._pump.start()
        HOOKS.watch(self)

    # --- the slow path

    def _put_reserved(self, event: ConfigUpdate | RunStart | RunEnd) -> None:
        if self._queue is None:
            return
        try:
            payload = _encode(event)
        except (TypeError, ValueError, OverflowError):
            if not isinstance(event, ConfigUpdate):
                raise
            clean, faults = value_model.sanitise(event.values)
            self._count_faults(faults)
            payload = _encode(ConfigUpdate(event.time_ns, clean))
        self._queue.append_reserved(payload)

    def _log_slowly(self, values: Any, step: Any) -> None:
        """Keep what can be kept of a call that the hot path could not take as it is."""
        if self._state != "running":
            self._append(b"")
            return
        now = time_ns()
        if not isinstance(values, Mapping):
            self._fault("bad_values", "values", f"expected a mapping of keys to values, got {type(values).__name__}")
            return
        clean, faults = value_model.sanitise(values)
        self._count_faults(faults)
        if faults and not clean:
            return
        number, auto_step = self._resolve_step(step)
        self._put_metrics(now, number, auto_step, clean)

    def _resolve_step(self, step: Any) -> tuple[int | None, int]:
        if step is not None:
            try:
                self._step = value_model.step_of(step)
            except (TypeError, ValueError, OverflowError) as error:
                self._fault("bad_step", "step", f"{error}; the values go to the last step")
        if self._step is None:
            return None, next(self._auto_steps)
        return self._step, 0

    def _put_metrics(self, now: int, step: int | None, auto_step: int, clean: dict[str, Any]) -> None:
        event = (METRICS_TAG, now, step, clean) if step is not None else (METRICS_TAG, now, None, clean, auto_step)
        payload = _encode(event)
        if len(payload) > self._tuning.event_bytes:
            self._put_in_parts(now, step, auto_step, clean)
        elif not self._append(payload):
            self._not_kept(payload, clean, step)

    def _put_in_parts(self, now: int, step: int | None, auto_step: int, clean: dict[str, Any]) -> None:
        parts, large = value_model.split(clean, self._tuning.event_bytes)
        for key, value in large.items():
            try:
                parts.append({key: self._blobs.write(_encode(value))})
            except OSError as error:
                self._fault("blob_full", key, f"a value this large needs a file in the run directory: {error}")
        for part in parts:
            event = (METRICS_TAG, now, step, part) if step is not None else (METRICS_TAG, now, None, part, auto_step)
            payload = _encode(event)
            if not self._append(payload):
                self._not_kept(payload, None, step)

    def _not_kept(self, payload: bytes, values: dict[str, Any] | None, step: int | None) -> None:
        """The queue refused *payload*: closed, too large for one event, or full."""
        if self._state != "running":
            return
        if values is not None and len(payload) > self._tuning.event_bytes:
            self._log_slowly(values, step)
            return
        if self.settings.on_full == "raise":
            raise QueueFullError(f"the spool of run {self.id}, rank {self.rank}, is full: the bus process and the run directory do not keep up")
        if self.settings.on_full == "block" and self._append_blocking(payload):
            return
        reason = "blocked" if self.settings.on_full == "block" else "full"
        self._count(reason)
        self._warn_once(reason, "events are dropped: the spool is full and neither the bus process nor the run directory keeps up")

    def _append_blocking(self, payload: bytes) -> bool:
        deadline = time.monotonic() + self._tuning.block_timeout
        while time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.001)
            if self._append(payload):
                return True
        return False

    def _append_closed(self, payload: bytes) -> bool:
        self._count("closed")
        self._warn_once("closed", f"log() after finish() of run {self.id}: the values are not kept")
        return False

    def _append_inert(self, payload: bytes) -> bool:
        self._count("forked")
        self._warn_once("forked", f"run {self.id} belongs to another process; call accelbus.attach() here to log from this one")
        return False

    def _count_faults(self, faults: list[value_model.Fault]) -> None:
        for fault in faults:
            self._fault(fault.reason, fault.key, fault.detail)

    def _fault(self, reason: str, key: str, text: str) -> None:
        if self.settings.strict:
            raise StrictError(f"{reason} ({key!r}): {text}")
        self._count(reason)
        self._warn_once(f"{reason}:{key}", f"{reason} ({key!r}): {text}")

    def _count(self, reason: str) -> None:
        file = self._queue.file if self._queue is not None else None
        if file is not None:
            file.count_dropped(reason)
        else:
            self._local_drops[reason] = self._local_drops.get(reason, 0) + 1

    def _warn_once(self, topic: str, text: str) -> None:
        # Bounded: keys that are made up anew at every step must not fill the memory, or the terminal.
        if topic not in self._warned and len(self._warned) < 100:  # noqa: PLR2004
            self._warned.add(topic)
            _log.warning("%s", text)


_current: Run | None = None
_opened = 0
"""Runs without an explicit id that this process has opened; every rank opens them in the same order."""


def init(project: str | None = None, **settings: Any) -> Run:
    """Start logging from this process; call it in every rank. Returns without waiting for anybody.

    Args:
        project: name of the project.
        settings: the fields of `accelbus.Settings`; each can also be set as ``ACCELBUS_<NAME>``.

    Returns:
        The run, also available as ``accelbus.run``. A run of this process that is still open is finished first.

    Raises:
        ConfigurationError: a setting is unknown or wrong, settings contradict each other, the run directory cannot be written.
        UnknownTrackerError: ``log_with`` or ``require`` names a tracker nobody registered.
        MissingExtraError: a tracker's package is not installed; the message has the command.
        RequiredTrackerError: a tracker in ``require`` did not start. Only then does `init` wait.
    """
    global _current, _opened  # noqa: PLW0603  the process has one current run
    resolved = from_environment(Settings, project=project, **settings)
    tuning = from_environment(Tuning)
    if _current is not None:
        _current.finish()
    if resolved.mode == "disabled":
        _current = Run(resolved, None, RunDir(Path(resolved.dir) / (resolved.run_id or "disabled")), tuning=tuning)
        return _current
    sinks = _check(resolved)
    identity = identify(settings=resolved, ordinal=_opened)
    if resolved.run_id is None:
        _opened += 1
    run_dir = RunDir(Path(resolved.dir).absolute() / check_run_id(identity.run_id))
    _check_resume(resolved, identity, run_dir)
    run_dir.create()
    run = Run(resolved, identity, run_dir, sinks=sinks, tuning=tuning)
    if run._is_main:  # noqa: SLF001
        run_dir.write_record(run._record())  # noqa: SLF001
    run._open()  # noqa: SLF001
    _current = run
    if resolved.config is not None:
        run.config.update(value_model.config_values(resolved.config))
        if run._is_main:  # noqa: SLF001
            run.log_config(resolved.config)
    if resolved.require and resolved.mode == "online":
        run._wait_for_required()  # noqa: SLF001
    return run


def attach(run: Run | Handle | None = None, *, role: str = "worker") -> Run:
    """Log from another process of a run: a data loader's worker, a forked or spawned child.

    Args:
        run: the run as it was passed (it pickles to a handle); not given: the run this process was forked with.
        role: what the producer is called; it never holds the trainer's steps.

    Raises:
        NotInitializedError: there is no run to attach to.
    """
    global _current  # noqa: PLW0603
    source: Run | Handle | None = run if run is not None else _current
    if source is None:
        raise NotInitializedError("there is no run to attach to: pass the Run (or run.handle()) to this process, or fork after accelbus.init()")
    handle = source.handle() if isinstance(source, Run) else source
    settings = msgspec.structs.replace(handle.settings, role=role, config=None)
    attached = Run(settings, handle.identity, RunDir(handle.dir), sinks=handle.sinks, tuning=handle.tuning)
    if handle.identity is not None:
        attached._open()  # noqa: SLF001
    _current = attached
    return attached


def log(values: Mapping[str, Any], step: int | None = None) -> None:
    """`Run.log` of the current run.

    Raises:
        NotInitializedError: before `init`.
    """
    _need_current().log(values, step)


def finish(status: str | None = None, timeout: float | None = None) -> bool:
    """`Run.finish` of the current run; True when there is none."""
    return True if _current is None else _current.finish(status, timeout)


def current_run() -> Run | None:
    """Return the current run of this process."""
    return _current


def _need_current() -> Run:
    if _current is None:
        raise NotInitializedError("there is no run yet: call accelbus.init(project) in every rank first")
    return _current


def _forget(run: Run) -> None:
    HOOKS.forget(run)


def _check(settings: Settings) -> tuple[str, ...]:
    """Return the resolved tracker names; everything a user can get wrong is found here, before the first step."""
    if os.name != "posix":
        raise ConfigurationError("accelbus needs Linux or macOS; on Windows use WSL")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ConfigurationError("accelbus needs the GIL: run with PYTHON_GIL=1, or a Python that is not free-threaded")
    if settings.reduce is not None and set(settings.reduce.values()) - {"mean"}:
        raise ConfigurationError(f"reduce={settings.reduce!r}: expected 'mean' for every pattern; other reductions are not there yet")
    if not settings.project:
        raise ConfigurationError("project is missing: accelbus.init('my-project') or ACCELBUS_PROJECT")
    if settings.resume == "must" and settings.run_id is None:
        raise ConfigurationError("resume='must' needs the run_id of the run to go on with")
    if settings.endpoint is not None and "://" not in settings.endpoint:
        raise ConfigurationError(f"endpoint={settings.endpoint!r}: expected an address such as 'ipc:///run/accelbus.sock' or 'tcp://host:5557'")
    # An offline run is delivered by `accelbus sync`, perhaps from a machine where more is installed.
    sinks = tracking.resolve(settings.log_with, check_installed=settings.mode == "online")
    missing = [name for name in settings.require if name not in sinks]
    if missing:
        raise ConfigurationError(f"require names {missing[0]!r}, which is not in log_with ({', '.join(sinks) or 'none'})")
    unknown = [name for name in settings.init_kwargs if name not in sinks]
    if unknown:
        raise ConfigurationError(f"init_kwargs has arguments for {unknown[0]!r}, which is not in log_with ({', '.join(sinks) or 'none'})")
    return sinks


def _check_resume(settings: Settings, identity: Identity, run_dir: RunDir) -> None:
    there = run_dir.record_path.exists()
    if settings.resume == "must" and not there:
        raise ConfigurationError(f"resume='must', but there is no run {identity.run_id!r} in {str(run_dir.path.parent)!r}")
    if settings.resume == "never" and there and identity.rank == 0 and identity.restart_count == 0:
        raise ConfigurationError(f"resume='never', but the run {identity.run_id!r} is there already in {str(run_dir.path.parent)!r}")


def _inert_run(handle: Handle) -> Run:
    run = Run(handle.settings, handle.identity, RunDir(handle.dir), sinks=handle.sinks, tuning=handle.tuning)
    run._become_inert()  # noqa: SLF001
    return run


def _keep_nothing(payload: bytes) -> bool:
    """Stand in for the queue of a disabled run."""
    return True


def _print_notice(notice: control.Notice) -> None:
    level = logging.WARNING if notice.level == "warning" else logging.INFO
    _log.log(level, "%s", notice.text)


def _read_sink_states(run_dir: RunDir) -> dict[str, Any]:
    try:
        status = msgspec.json.decode(run_dir.status_path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    states = status.get("sinks", {})
    return states if isinstance(states, dict) else {}
