"""What a tracker is: Accelerate's interface, and optional hooks with defaults that work.

A tracker runs in a process of its own; delivery calls, in this order and from one thread::

    tracker = make_tracker(cls, record, logging_dir, init_kwargs)     # cls.environment() is in force
    tracker.run_info = RunInfo(...)
    tracker.restore(checkpoint or {})
    tracker.start()
    tracker.store_init_configuration(config)     # again, with everything merged, for each later update
    tracker.resolved_config()                    # where ``config_from`` names it
    tracker.define_metric(...), summarise(...), store_run_record(...)
    tracker.log_batch(rows) or tracker.log(values, step=step)
    tracker.log_image(key, media, step), ...     # media of a row after its other values
    tracker.flush(), tracker.refused_rows(), tracker.checkpoint()        # before the cursor moves
    tracker.finish(status), tracker.refused_rows()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from accelbus.events import Scalar
from accelbus.tracking.media import MediaHooks

_log = logging.getLogger(__name__)


class RunInfo(NamedTuple):
    """The run a tracker records."""

    run_id: str = ""
    project: str = ""
    name: str = ""
    """Display name; the run id where the user gave none."""
    group: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    attempt: int = 0
    resumed: bool = False
    """A start of this tracker was begun before, by an earlier process or attempt or by a try that failed: its run may be there, with
    values in it. Whether or not there is a checkpoint; False only the very first time."""
    state_dir: Path = Path()
    """Private to this (run, tracker) and kept: ids, caches, offline files."""
    output_dir: Path = Path()
    """For what a person opens; the logging directory of trackers that ask for one."""
    world_size: int = 1
    directory: Path = Path()
    """Where the job called ``init``: what the user gave as a relative path is meant from here, and not from where this process
    stands. The empty path when that is not known."""


class Row(NamedTuple):
    """All values of one step that are ready at the same time."""

    step: int
    values: Mapping[str, Scalar | list[Any]]
    """Flat: names with ``/``, numbers, text and lists of those. Media go to their own hooks."""
    time_ns: int
    """Wall clock of the rank that logged it."""
    attempt: int = 0
    """A higher attempt replaces, step by step, what lower ones logged."""
    log_kwargs: Mapping[str, Any] = {}
    """What the user gave for this tracker's ``log``, of what it takes. `GeneralTracker.log_batch` passes it on; all rows of one call have the same."""


class RefusedRow(NamedTuple):
    """A row, or values of one, that a tracker took and its service will not have."""

    attempt: int
    step: int
    reason: str
    """For people: what the service said."""
    keys: tuple[str, ...] = ()
    """Only these values of the row, or this media value. Empty: the whole row; of several rows of one step the last one."""


class GeneralTracker(MediaHooks):
    """Base class of all trackers: Accelerate's interface, and optional hooks with defaults that work.

    A subclass must define ``name``, ``requires_logging_directory`` and ``tracker`` (the underlying object, such as W&B's run). All
    calls come from one thread. A call may block or raise: delivery retries, restarts and gives up on single rows.

    Raises:
        NotImplementedError: a required attribute is missing.
    """

    name: str
    requires_logging_directory: bool
    main_process_only: bool = True
    """False: one instance per rank, fed with the rank's own stream."""
    durable_after: Literal["call", "flush", "finish"] = "flush"
    """What makes a logged value survive a SIGKILL of this process. After a crash, ``finish`` trackers are fed again from the start
    of the attempt, the others from the last cursor."""

    log_keywords: Collection[str] | None = None
    """Keyword arguments that ``log`` and ``log_batch`` do something with; the user is told once of others, which are left out. None:
    those in the signature of ``log``, all of them where it has ``**kwargs``."""

    run_info: RunInfo = RunInfo()
    """Set by delivery before `restore` and `start`."""
    tell_user: Callable[[str], None] | None = None
    """Where `notice` goes; set by delivery, with `run_info`."""

    @classmethod
    def environment(cls, state_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG003  for subclasses
        """Return variables to be set in the tracker's process before its package is imported.

        Where its caches go, mostly: below *state_dir*, so that HOME may be missing or read-only; what the user has set in *environ*
        stays.
        """
        return {}

    made_with: tuple[tuple[Any, ...], dict[str, Any]]
    """Arguments of the constructor: an instance that is given as ``log_with`` is made again in its own process."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made.made_with = args, kwargs
        return made

    def __init__(self, _blank: bool = False) -> None:
        if _blank:
            return
        missing = [attribute for attribute in ("name", "requires_logging_directory", "tracker") if attribute not in dir(self)]
        if missing:
            listed = ", ".join(f"`{attribute}`" for attribute in missing)
            raise NotImplementedError(
                f"The implementation for this tracker class is missing the following required attributes. Please define them in the class definition: {listed}"
            )

    @property
    def url(self) -> str | None:
        """Where a person finds the run: a URL or a path. Read after ``start``; printed once."""
        return None

    def start(self) -> None:
        """Open the underlying run. Called again after a failure, and in a new process after a crash."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record the hyperparameters *values*: nested plain data, complete; a later call replaces what an earlier one stored."""

    def resolved_config(self) -> dict[str, Any] | None:
        """Return the configuration as this tracker has resolved it: a sweep's choice, or what somebody has set in its user interface.

        For ``config_from``; called after `start`, and after the first `store_init_configuration` of a run that has a configuration.
        May block until the tracker knows. None: this tracker has no word on it.

        Returns:
            Nested as it was stored; what it leaves out stays as it was given.
        """
        return None

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record *values* at *step*; None means the step of the call before."""

    def log_batch(self, rows: Sequence[Row]) -> None:
        """Record *rows* in order.

        Override it where the tracker has a faster way, or takes event times. An override **must** take all rows or, when it
        raises, none; delivery calls ``log`` row by row where it is not overridden (see `overrides`).
        """
        for row in rows:
            self.log(row.values, step=row.step, **row.log_kwargs)

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        """Say how keys like *pattern* are to be shown.

        Args:
            pattern: key, or glob such as ``eval/*``.
            axis: key whose value is the x axis instead of the step.
            summary: min, max, best, last or mean: what one number stands for the curve.
            goal: minimize or maximize.
        """

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Record single *values* of the whole run, flat and complete; a later call replaces what an earlier one recorded."""

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        """Record the circumstances of the run: nested plain data, complete; a later call replaces what an earlier one recorded.

        Args:
            facts: ``argv``, ``command``, ``executable``, ``cwd``, ``host``, ``pid``, ``python``, ``accelbus``, ``os``, ``memory_bytes``;
                ``launcher`` {name, world_size, …}, ``environment`` {variable: value}, ``cpu`` {name, count}, ``gpus`` [{name,
                memory_mib, driver}], ``torch`` {version, cuda, …}, ``packages`` {name: version}, ``git`` {commit, branch, remote,
                dirty, …}, ``patch`` (text, may be long), ``hosts`` {host: its ranks}. Any may be missing, or None where it could not be found out.
        """

    def log_console(self, lines: Sequence[str]) -> None:
        """Record *lines* that the trainer printed."""

    def flush(self) -> None:
        """Make everything logged so far durable. Called about every second, and before each cursor write."""

    def refused_rows(self) -> list[RefusedRow]:
        """Return rows handed over before that the tracker's service will not have; each is returned once.

        Called after every `flush` and `finish`, about every second for trackers durable only after ``finish``. Each becomes a dead
        letter with its values, which then count as such and not as delivered. What the tracker knows at once it raises instead.
        """
        return []

    def notice(self, text: str) -> None:
        """Tell the user *text*, once: on the main rank's stderr; outside of delivery it is logged. Any thread may call it."""
        told: set[str] = self.__dict__.setdefault("_told", set())
        if text in told:
            return
        told.add(text)
        if self.tell_user is not None:
            self.tell_user(text)
        else:
            _log.warning("%s", text)

    def checkpoint(self) -> dict[str, Any]:
        """Return what `restore` needs to forget all that is logged after the last ``flush``. Called after it, and after ``finish``.

        Plain data, small: it is kept in the cursor. Together the two make a file tracker exactly-once.

        ``files`` in it, {path, relative to the logging directory: bytes}, names what must be there for the rest to hold: when one of them
        is gone or shorter, also after the end of the run, everything is fed again from the beginning, with an empty checkpoint.
        """
        return {}

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Go back to *checkpoint*; called once, before ``start``, by delivery.

        Args:
            checkpoint: what `checkpoint` returned when the cursor was written, in this or an earlier process. Empty when there is
                no cursor: every row will be fed, so what an earlier process left half done must go.
        """

    def finish(self, status: str | None = None) -> None:
        """Close the run with *status*: finished, preempted, lost, killed or failed. Everything logged is durable afterwards."""
