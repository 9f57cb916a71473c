"""`Run`, what a training script talks to. `accelbus.client.current` makes them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from time import time_ns
from types import TracebackType
from typing import Any, Literal, Self, overload

import msgspec

from accelbus import __version__, control, host, values as value_model
from accelbus.blobs import BlobStore
from accelbus.client.attach import Handle
from accelbus.client.console import Console
from accelbus.client.facts import Recorder
from accelbus.client.faults import Faults
from accelbus.client.finishing import how_long, may_restart, wait_for_sinks
from accelbus.client.hooks import HOOKS, Ending, ending_by
from accelbus.client.identity import Identity, launcher_process
from accelbus.client.inline import InlineTrackers
from accelbus.client.intake import Intake
from accelbus.client.launch import BusLauncher, node_directory
from accelbus.client.media_methods import MediaMethods
from accelbus.client.placement import place
from accelbus.client.pump import Pump, Spill, Wake
from accelbus.client.statement_methods import StatementMethods
from accelbus.client.statistics import Statistics
from accelbus.client.tracker_proxy import TrackerProxy, cannot_unwrap
from accelbus.client.trackers import Trackers
from accelbus.config import Settings, Tuning
from accelbus.errors import ConfigurationError, NotInitializedError, RequiredTrackerError, UnknownTrackerError
from accelbus.events import (
    METRICS_TAG,
    STATUSES,
    TRAINER,
    ConfigUpdate,
    ConsoleLines,
    MetricDefinition,
    RunEnd,
    RunFacts,
    RunStart,
    Summary,
)
from accelbus.journal.memory_queue import MemoryQueue
from accelbus.journal.segments import JournalWriter
from accelbus.journal.spool import Spool
from accelbus.rundir import RunDir, RunRecord
from accelbus.values.hyperparameters import merge_config

_log = logging.getLogger("accelbus")
_STEP_END = 2**63


class Run(MediaMethods, StatementMethods):
    """One producer of one run. Made by `init` or `attach`.

    `log` never waits and never raises for transport trouble, a full disk or a value no tracker takes; see `statistics`.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity | None,
        run_dir: RunDir,
        *,
        trackers: Trackers = Trackers(),  # noqa: B008  nobody changes it
        tuning: Tuning | None = None,
    ) -> None:
        """Use `init` instead."""
        self.id = run_dir.run_id
        self.dir = run_dir.path
        self.config: dict[str, Any] = {}
        self.settings = settings
        self.sinks = trackers.sinks
        self._trackers = trackers
        self._inline: InlineTrackers | None = None
        self._run_dir = run_dir
        self._identity = identity
        self._started_by: tuple[int, int] | None = None
        self._environ: dict[str, str] = {}
        # Once: the user may go elsewhere, and no relative path with him.
        self._directory = host.working_directory(os.environ)
        self._tuning = tuning or Tuning()
        self._finishing = threading.Lock()
        self._finisher: int | None = None
        """Thread that is in `finish`."""
        self._state = "disabled"
        self._queue: Spool | MemoryQueue | None = None
        self._pump: Pump | None = None
        self._wake = Wake()
        self._recorder: Recorder | None = None
        self._console: Console | None = None
        self._where = "none"
        self._producer = uuid.uuid4().bytes
        self._created_ns = time_ns()
        self._final_statistics = Statistics()
        blobs = BlobStore(run_dir.blobs, self._producer.hex(), quota=self._tuning.blob_bytes)
        self._intake = Intake(f"run {self.id}, rank {self.rank}", settings, self._tuning, blobs, self._wake)

    # --- logging

    def log(self, values: Mapping[str, Any], step: int | None = None, log_kwargs: Mapping[str, Any] | None = None) -> None:
        """Queue *values* for every tracker, as they are now. Never waits; never raises for transport trouble or bad values.

        What cannot be kept is counted by reason in `statistics().dropped` and warned about once per key;
        ``ACCELBUS_STRICT=1`` raises instead.

        Args:
            values: {key: number, text, bool, None, array or tensor with one element, nested mapping, sequence}.
            step: anything with ``__index__``, or an integral float. None: this producer's last explicit step; a producer that
                never gives one is counted per call.
            log_kwargs: {tracker: keyword arguments for its ``log``}, plain data.
        """
        intake = self._intake
        if step is None:
            step = intake.step
        if type(values) is dict and type(step) is int and step < _STEP_END and log_kwargs is None:
            hook = intake.hook
            calls = hook.calls
            try:
                payload = intake.encode((METRICS_TAG, time_ns(), step, values))
            except Exception:  # noqa: BLE001  the slow path says which value and why
                intake.put(values, step)
                return
            if calls != hook.calls and not intake.is_intact(payload):
                intake.put(values, step)
                return
            intake.step = step
            if not intake.append(payload):
                intake.refused(payload, values, step)
        else:
            self.put(values, step, log_kwargs=log_kwargs)

    def put(
        self,
        values: Any,
        step: Any,
        *,
        sinks: tuple[str, ...] = (),
        log_kwargs: Mapping[str, Any] | None = None,
        beside: bool = False,
    ) -> None:
        """`log` for what is no plain call; see `accelbus.client.intake.Intake.put`."""
        plain = None
        if log_kwargs:
            try:
                plain = value_model.config_values(log_kwargs)
            except ConfigurationError as error:
                self.faults.blame("bad_values", "log_kwargs", f"expected {{tracker: keyword arguments}} ({error})")
        if plain and not all(isinstance(given, dict) for given in plain.values()):
            self.faults.blame("bad_values", "log_kwargs", f"expected {{tracker: keyword arguments}}, got {log_kwargs!r}")
            plain = None
        if plain:
            plain = {self.sink_of(name): given for name, given in plain.items()}
        self._intake.put(values, step, sinks=sinks, log_kwargs=plain, beside=beside)

    def log_config(self, config: Any) -> None:
        """Record hyperparameters; later values of a key replace earlier ones.

        Args:
            config: mapping, dataclass, Namespace or anything else with items; nested values are kept.
        """
        plain = value_model.config_values(config)
        merge_config(self.config, plain)
        if self._queue is not None and self._state == "running":
            self._intake.put_config(ConfigUpdate(time_ns(), plain))

    def put_config(self, config: Any, *, sinks: tuple[str, ...]) -> None:
        """`log_config` for some trackers only; it is no part of `config`."""
        try:
            plain = value_model.config_values(config)
        except ConfigurationError as error:
            self.faults.blame("bad_values", "config", str(error))
            return
        if self._state == "running":
            self._intake.put_config(ConfigUpdate(time_ns(), plain, sinks))

    def put_statement(self, event: MetricDefinition | Summary) -> None:
        """Record what is said about the run."""
        self._intake.put_statement(event)

    @overload
    def get_tracker(self, name: str, unwrap: Literal[False] = False) -> TrackerProxy: ...

    @overload
    def get_tracker(self, name: str, unwrap: bool) -> Any: ...

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Return one tracker of the run, the same usable object in every rank: what is logged there goes to it only.

        Args:
            name: as in ``log_with``.
            unwrap: return the live object of the tracker's library, such as W&B's run; only in the main rank, and only of a tracker
                that runs there (``inline``). Waits until it has started.

        Raises:
            UnknownTrackerError: the run has no such tracker.
            ConfigurationError: *unwrap*, and the live object lives elsewhere; names the ways that work.
        """
        name = str(getattr(name, "value", name))  # Accelerate's LoggerType is an enum
        if name not in self.sinks and self._state != "disabled":
            raise UnknownTrackerError(f"this run has no tracker {name!r} (it has: {', '.join(self.sinks) or 'none'})")
        if not unwrap:
            return TrackerProxy(self, name)
        if self._inline is None or name not in self._trackers.inline:
            raise cannot_unwrap(name, is_inline=name in self._trackers.inline)
        return self._inline.live(name)

    @property
    def faults(self) -> Faults:
        """Counters of what was not kept."""
        return self._intake.faults

    def _log_beside(self, values: Mapping[str, Any], step: Any) -> None:
        self._intake.put(values, step, beside=True)

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
        # A signal handler that finds finish() running in its own thread must not wait for it; others do.
        is_own = self._finisher == threading.get_ident()
        if not self._finishing.acquire(timeout=0 if is_own else self._tuning.exit_timeout):
            queue = self._queue
            return queue is None or queue.released_seq >= queue.last_seq
        self._finisher = threading.get_ident()
        try:
            return self._finish_once(ending, timeout)
        finally:
            self._finisher = None
            self._finishing.release()

    def _finish_once(self, ending: Ending, timeout: float | None) -> bool:
        HOOKS.forget(self)
        queue, pump, identity = self._queue, self._pump, self._identity
        if self._state != "running" or queue is None or pump is None:
            return True
        self._stop_recording(ending)
        self._intake.close(RunEnd(time_ns(), ending.status, ending.reason))
        self._state = "closed"
        if queue.file is not None:
            queue.file.mark_ending(ending.status)
        pump.say_goodbye(ending.status)
        safe = self._wait_until_safe(queue, pump)
        if not safe:
            self._say_what_is_at_risk(queue)
        if self._inline is not None:
            alone = identity is not None and identity.world_size == 1
            self._inline.finish(ending.status, how_long(ending, self.settings, self._tuning, timeout, alone=alone, inline=True))
        if self.is_main and self.settings.mode == "online" and set(self.sinks) != set(self._trackers.inline):
            alone = identity is not None and identity.world_size == 1
            wait_for_sinks(pump, self.dir, how_long(ending, self.settings, self._tuning, timeout, alone=alone))
        elif pump.attempt is None:
            self._leave_settings()
        self._close(queue, pump, safe=safe)
        return safe

    def _stop_recording(self, ending: Ending) -> None:
        """Hand over the last lines that were printed, and what is known of the run record; who was told to end does not wait for it."""
        if self._console is not None:
            self._console.close()
        if self._recorder is not None:
            self._recorder.finish(0.0 if ending.status == "preempted" else self._tuning.facts_patience)

    def _wait_until_safe(self, queue: Spool | MemoryQueue, pump: Pump) -> bool:
        deadline = time.monotonic() + self._tuning.exit_timeout
        while time.monotonic() < deadline:
            if pump.final.wait(0.005):
                return True
            if queue.released_seq >= queue.last_seq and pump.is_alone and pump.counters["spilled"]:
                return True  # all of it is in the run directory, and nobody is there to confirm
        return queue.released_seq >= queue.last_seq

    def _say_what_is_at_risk(self, queue: Spool | MemoryQueue) -> None:
        left = queue.last_seq - queue.released_seq
        where = (
            f"they are in {queue.file.path}: `accelbus salvage {queue.file.path}` brings them into the run"
            if isinstance(queue, Spool)
            else "they end with this process"
        )
        _log.warning("%d events of run %s, rank %d, are not in the run directory; %s", left, self.id, self.rank, where)

    def _leave_settings(self) -> None:
        """Say which trackers the run wants where neither rank 0 nor the bus process was ever there to hear it."""
        with contextlib.suppress(OSError):
            if not self._run_dir.record_path.exists():
                self._run_dir.write_record(self.record())

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
            self._intake.detach()
            queue.close(unlink=confirmed and safe)

    # --- information

    @property
    def rank(self) -> int:
        return 0 if self._identity is None else self._identity.rank

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0 of the trainers, whose settings rule."""
        return self.rank == 0 and self.settings.role == TRAINER

    def sink_of(self, name: str) -> str:
        """Return what the tracker *name*, as this rank has it, is called in the run's record and status."""
        return self._trackers.sink_of(name, self.rank)

    def url(self, sink: str) -> str | None:
        """Return where *sink* shows this run, None while that is not known.

        Raises:
            ConfigurationError: the run has no such sink.
        """
        if sink not in self.sinks:
            raise ConfigurationError(f"this run has no tracker {sink!r} (it has: {', '.join(self.sinks) or 'none'})")
        if self._inline is not None and (state := self._inline.states().get(sink)) is not None:
            return state.url or None
        states = (self._pump.sink_states if self._pump is not None else None) or _read_sink_states(self._run_dir)
        url = states.get(self.sink_of(sink), {}).get("url")
        return str(url) if url else None

    def statistics(self) -> Statistics:
        """Return a snapshot of this producer's counters."""
        queue, pump = self._queue, self._pump
        if queue is None or pump is None:
            return msgspec.structs.replace(self._final_statistics, dropped=self.dropped())
        logged, acked = queue.last_seq, queue.released_seq
        return Statistics(
            logged=logged, acked=acked, pending=logged - acked, dropped=self.dropped(), spool=self._where, fill=queue.fill,
            connected=pump.connected, attempt=pump.attempt, console_left_out=0 if self._console is None else self._console.lines_left_out,
            **pump.counters,
        )  # fmt: skip

    def dropped(self) -> dict[str, int]:
        """Return {reason: count} of what this producer did not keep."""
        return self._intake.faults.dropped()

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
            main=self.is_main,
            record=msgspec.to_builtins(self.record()),
            may_restart=may_restart(os.environ),
            started_by=self._started_by,
        )

    def handover(self) -> control.Handover | None:
        """Return what the main rank's trackers need and nobody may store; None in other ranks, and for a bus process that is not ours
        alone.
        """
        endpoint = self.settings.endpoint
        if not self.is_main or (endpoint is not None and not endpoint.startswith("ipc://")):
            return None
        environ = {name: value for name, value in self._environ.items() if _is_text(name) and _is_text(value)}
        if sum(map(len, environ.values())) > self._tuning.frame_bytes // 4:
            environ = {}  # the bus process has that of the rank that started it
        return control.Handover(environ, dict(self._trackers.carried))

    def record(self) -> RunRecord:
        """Return ``run.json`` as this rank would write it."""
        settings = self.settings
        record = RunRecord(
            run_id=self.id,
            project=settings.project,
            name=settings.name,
            group=settings.group,
            tags=settings.tags,
            notes=settings.notes,
            sinks=self.sinks,
            init_kwargs=settings.init_kwargs,
            log_kwargs=settings.log_kwargs,
            sink_options=settings.sink_options,
            inline=self._trackers.inline,
            trackers=dict(self._trackers.origins),
            reduce=settings.reduce,
            require=settings.require,
            config_from=settings.config_from,
            has_config=settings.config is not None,
            mode=settings.mode,
            durability=settings.durability,
            world_size=1 if self._identity is None else self._identity.world_size,
            created_ns=self._created_ns,
            directory=self._directory,
            accelbus=__version__,
            settings_of_rank=self.rank,
            search_path=tuple(os.path.abspath(path) for path in sys.path) if self._needs_search_path else (),
        )
        return self._trackers.spread(record)

    # --- context manager, pickling, forking

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._finish(ending_by(error), None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inert_run, (self.handle(),)

    @property
    def _needs_search_path(self) -> bool:
        return bool(self._trackers.origins) or any(":" in sink for sink in self.sinks)

    def handle(self) -> Handle:
        """Return what another process needs to `attach` to this run."""
        return Handle(self.settings, self._identity, str(self.dir), self._trackers.for_others(), self._tuning)

    def after_fork_in_child(self) -> None:
        """Become inert: the spool, the socket and the thread are the parent's."""
        if self._queue is not None and self._queue.file is not None:
            self._queue.file.abandon_in_child()
        if self._console is not None:
            self._console.abandon_in_child()
        self.become_inert()

    def wait_for_required(self) -> None:
        """Wait until the bus process says whether the required trackers have started, and what ``config_from`` made of the configuration;
        it says the same to every rank.

        Raises:
            RequiredTrackerError: they have not, or there is no bus process to say so; the run is closed.
        """
        # The bus process gives up at require_timeout; the margin is for its own start and the way back.
        deadline = time.monotonic() + self._tuning.require_timeout + 2 * self._tuning.ack_timeout
        while (verdict := self._pump.verdict if self._pump is not None else None) is None and time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.02)
        if verdict is not None and verdict.ok:
            self._take_resolved(verdict.config)
            return
        self.finish("failed", timeout=0)
        reason = verdict.reason if verdict is not None else "the bus process did not answer"
        wanted = [f"require={list(self.settings.require)}"] if self.settings.require else []
        wanted += [f"config_from={self.settings.config_from!r}"] if self.settings.config_from else []
        raise RequiredTrackerError(f"{', '.join(wanted)}: {reason}")

    def _take_resolved(self, config: dict[str, Any] | None) -> None:
        if config is None:
            return
        merge_config(self.config, config)
        if self.is_main:
            # For the other trackers, and whoever reads the journal; each of the ranks would say the same.
            self._intake.put_config(ConfigUpdate(time_ns(), config))

    def become_inert(self) -> None:
        """Take nothing any more: the producer is another process."""
        self._state = "inert"
        self._intake.become_inert()
        self._pump = None
        self._queue = None
        self._recorder = None
        self._console = None
        self._inline = None
        self._finishing = threading.Lock()
        self._finisher = None

    def __repr__(self) -> str:
        return f"<accelbus.Run {self.id!r} rank {self.rank} {self._state}>"

    # --- opening

    def open(self, *, signals: bool = True) -> None:
        """Place the spool, start the pump. After this nothing raises.

        Args:
            signals: whether SIGTERM is observed.

        Raises:
            ConfigurationError: no place for sockets that is ours alone; nothing was opened.
        """
        launcher = self._bus_launcher() if self.settings.endpoint is None else None
        self._started_by = launcher_process(os.environ)
        self._environ = {**os.environ, "PWD": self._directory}
        hello = self.hello(1, 0)
        placed = place(hello, durability=self.settings.durability, tuning=self._tuning, wake=self._wake)
        self._queue, self._where = placed
        self._intake.open(self._queue)
        self._state = "running"
        self._intake.put_start(
            RunStart(
                time_ns(),
                self.id,
                hello.rank,
                hello.world_size,
                hello.local_rank,
                hello.host,
                hello.pid,
                hello.role,
                hello.launch,
                self.settings.attempt,
                hello.launcher,
            )
        )
        if launcher is not None:
            # Here and not only in the pump: a rank killed in its first milliseconds leaves somebody who finds its spool.
            launcher.ensure()
        spill_directory = self._run_dir.journal / f"spill-{self._producer.hex()}"
        spill = Spill(
            lambda: JournalWriter(spill_directory, tuning=self._tuning, local=not host.is_on_network(spill_directory.parent)),
            max_bytes=self._tuning.spill_bytes,
        )
        self._pump = Pump(
            self._queue,
            self,
            wake=self._wake,
            endpoint=self.settings.endpoint or (launcher.endpoint if launcher is not None else ""),
            launcher=launcher,
            spill=spill,
            tuning=self._tuning,
            on_notice=_print_notice,
        )
        self._pump.start()
        HOOKS.watch(self, signals=signals)
        if self._trackers.inline and self.is_main and self.settings.mode == "online":
            self._inline = InlineTrackers(self._run_dir, self.record(), self._trackers, tuning=self._tuning, on_notice=_print_notice)
            self._inline.start()

    def start_recording(self) -> None:
        """Begin to collect the run record and what is printed, as far as the settings want it, in the main rank. Returns at once."""
        identity, pump = self._identity, self._pump
        if not self.is_main or identity is None or pump is None:
            return
        if self.settings.console:
            self._console = Console(lambda stream, lines: self._intake.put_aside(ConsoleLines(time_ns(), lines, stream)), self._tuning)
            self._console.open(pump.ident)
        if self.settings.run_record:
            put = self._intake.put_aside
            self._recorder = Recorder(identity, self.settings, self._tuning, lambda facts: put(RunFacts(time_ns(), facts)))
            self._recorder.start()

    def _bus_launcher(self) -> BusLauncher:
        return BusLauncher(self._run_dir, node_directory(self._run_dir, self._tuning), retry_interval=self._tuning.bus_retry_interval)


def _is_text(text: str) -> bool:
    """Whether it can be encoded: a variable of bytes that are no UTF-8 has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _inert_run(handle: Handle) -> Run:
    run = Run(handle.settings, handle.identity, RunDir(handle.dir), trackers=handle.trackers, tuning=handle.tuning)
    run.become_inert()
    return run


def _print_notice(notice: control.Notice) -> None:
    """Show a line of the bus process once: through logging where somebody listens, else on stderr."""
    level = logging.WARNING if notice.level in {"warning", "error"} else logging.INFO
    if level == logging.INFO and not (_log.isEnabledFor(level) and _log.hasHandlers()):
        sys.stderr.write(f"accelbus: {notice.text}\n")
    else:
        _log.log(level, "%s", notice.text)


def _read_sink_states(run_dir: RunDir) -> dict[str, Any]:
    try:
        status = msgspec.json.decode(run_dir.status_path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    states = status.get("sinks", {})
    return states if isinstance(states, dict) else {}
