"""`Run`, what a training script talks to. `accelbus.client.current` makes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import time_ns
from types import TracebackType
from typing import Any, Literal, Self, overload

from accelbus import host, values as value_model
from accelbus.blobs import BlobStore
from accelbus.client import finishing, required
from accelbus.client.addresses import url_of
from accelbus.client.attach import Handle
from accelbus.client.compiled import outside_of_graphs
from accelbus.client.faults import Faults
from accelbus.client.hooks import HOOKS, Ending, ending_by
from accelbus.client.identity import Identity
from accelbus.client.intake import Intake
from accelbus.client.introduction import Introduction
from accelbus.client.media_methods import MediaMethods
from accelbus.client.pump import Wake
from accelbus.client.session import Session
from accelbus.client.statement_methods import StatementMethods
from accelbus.client.statistics import Statistics
from accelbus.client.tracker_proxy import TrackerProxy, cannot_unwrap
from accelbus.client.trackers import Trackers
from accelbus.config import Settings, Tuning
from accelbus.errors import ConfigurationError, UnknownTrackerError
from accelbus.events import METRICS_TAG, STATUSES, ConfigUpdate, MetricDefinition, Summary
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
        self._run_dir = run_dir
        self._tuning = tuning or Tuning()
        self._introduction = Introduction(run_dir, settings, identity, trackers)
        self._wake = Wake()
        blobs = BlobStore(
            run_dir.blobs,
            self._introduction.producer.hex(),
            quota=self._tuning.blob_bytes,
            backlog=self._tuning.blob_backlog_bytes,
            must_sync=settings.durability == "disk",
            keeps_open=host.is_on_network,
            on_lost=lambda what: _log.warning("a large value of run %s: %s", run_dir.run_id, what),
        )
        self._intake = Intake(f"run {self.id}, rank {self.rank}", settings, self._tuning, blobs, self._wake)
        self._session: Session | None = None
        self._state: Literal["disabled", "running", "closed", "inert"] = "disabled"
        self._turn = finishing.Turn(self._tuning.exit_timeout)

    # --- logging

    @outside_of_graphs
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

    @outside_of_graphs
    def log_config(self, config: Any) -> None:
        """Record hyperparameters; later values of a key replace earlier ones.

        Args:
            config: mapping, dataclass, Namespace or anything else with items; nested values are kept.
        """
        plain = value_model.config_values(config)
        merge_config(self.config, plain)
        if self._state == "running":
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

    @outside_of_graphs
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
        if name not in self.sinks and self.settings.mode != "disabled":
            raise UnknownTrackerError(f"this run has no tracker {name!r} (it has: {', '.join(self.sinks) or 'none'})")
        if not unwrap:
            return TrackerProxy(self, name)
        inline = self._session.inline if self._session is not None else None
        is_inline = name in self._introduction.trackers.inline
        if inline is None or not is_inline:
            raise cannot_unwrap(name, is_inline=is_inline)
        return inline.live(name)

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
        if self._session is None:
            return True
        return self._session.flush(self._tuning.exit_timeout if timeout is None else timeout)

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
        session = self._session
        with self._turn.taken() as is_ours:
            if not is_ours:
                return session is None or session.is_safe
            HOOKS.forget(self)
            if self._state != "running" or session is None:
                return True
            finishing.end(session, ending)
            self._state = "closed"
            return finishing.finish(session, ending, timeout)

    # --- information

    @property
    def rank(self) -> int:
        return self._introduction.rank

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0 of the trainers, whose settings rule."""
        return self._introduction.is_main

    def sink_of(self, name: str) -> str:
        """Return what the tracker *name*, as this rank has it, is called in the run's record and status."""
        return self._introduction.trackers.sink_of(name, self.rank)

    def url(self, sink: str) -> str | None:
        """Return where *sink* shows this run, None while that is not known, and always for a disabled run.

        Raises:
            ConfigurationError: the run has no such sink.
        """
        if self.settings.mode == "disabled":
            return None
        if sink not in self.sinks:
            raise ConfigurationError(f"this run has no tracker {sink!r} (it has: {', '.join(self.sinks) or 'none'})")
        return url_of(sink, self.sink_of(sink), session=self._session, run_dir=self._run_dir)

    def statistics(self) -> Statistics:
        """Return a snapshot of this producer's counters."""
        return Statistics(dropped=self.faults.dropped()) if self._session is None else self._session.statistics()

    def record(self) -> RunRecord:
        """Return ``run.json`` as this rank would write it."""
        return self._introduction.record()

    # --- context manager, pickling, forking

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._finish(ending_by(error), None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inert_run, (self.handle(),)

    def handle(self) -> Handle:
        """Return what another process needs to `attach` to this run."""
        about = self._introduction
        return Handle(self.settings, about.identity, str(self.dir), about.trackers.for_others(), self._tuning)

    def after_fork_in_child(self) -> None:
        """Become inert: the spool, the socket and the threads are the parent's."""
        if self._session is not None:
            self._session.abandon_in_child()
        self.become_inert()

    def become_inert(self) -> None:
        """Take nothing any more: the producer is another process."""
        self._state = "inert"
        self._intake.become_inert()
        self._session = None
        self._turn = finishing.Turn(self._tuning.exit_timeout)

    def __repr__(self) -> str:
        return f"<accelbus.Run {self.id!r} rank {self.rank} {self._state}>"

    # --- opening

    def open(self, *, signals: bool = True) -> None:
        """Begin to take events. After this nothing raises.

        Args:
            signals: whether SIGTERM is observed.

        Raises:
            ConfigurationError: no place for sockets that is ours alone; nothing was opened.
        """
        self._session = Session(self._introduction, self._intake, tuning=self._tuning, wake=self._wake)
        self._state = "running"
        HOOKS.watch(self, signals=signals)
        self._session.start_inline()

    def start_recording(self) -> None:
        """Begin to collect the run record and what is printed, as far as the settings want it, in the main rank. Returns at once."""
        if self._session is not None:
            self._session.start_recording()

    def wait_for_required(self) -> None:
        """Wait until the bus process says whether the required trackers have started, and what ``config_from`` made of the configuration;
        it says the same to every rank.

        Raises:
            RequiredTrackerError: they have not, or there is no bus process to say so; the run is closed.
        """
        verdict = required.wait_for_verdict(self._session, self._tuning)
        if verdict is None or not verdict.ok:
            self.finish("failed", timeout=0)
            raise required.refusal(self.settings, verdict)
        if verdict.config is None:
            return
        merge_config(self.config, verdict.config)
        if self.is_main:
            # For the other trackers, and whoever reads the journal; each of the ranks would say the same.
            self._intake.put_config(ConfigUpdate(time_ns(), verdict.config))


def _inert_run(handle: Handle) -> Run:
    run = Run(handle.settings, handle.identity, RunDir(handle.dir), trackers=handle.trackers, tuning=handle.tuning)
    run.become_inert()
    return run
