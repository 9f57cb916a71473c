"""The process's current run: `init`, `attach`, `log`, `finish`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from accelbus.client import directory
from accelbus.client.attach import Handle
from accelbus.client.compiled import outside_of_graphs
from accelbus.client.plan import WORKER, make_plan
from accelbus.client.run import Run
from accelbus.client.unheard import speak_up
from accelbus.errors import NotInitializedError
from accelbus.rundir import RunDir

_current: Run | None = None
_opened: Counter[str | None] = Counter()
"""{run id, None where it is derived: how often this process has opened it}; every rank opens them in the same order."""


def init(project: str | None = None, **settings: Any) -> Run:
    """Start logging from this process; call it in every rank. Returns without waiting for anybody.

    Args:
        project: name of the project.
        settings: the fields of `accelbus.Settings`; each can also be set as ``ACCELBUS_<NAME>``. ``log_with`` may hold tracker classes
            and trackers beside names, also ones written for Accelerate.

    Returns:
        The run, also available as ``accelbus.run``. A run of this process that is still open is finished first.

    Raises:
        ConfigurationError: a setting is unknown or wrong, settings contradict each other, the run directory cannot be written.
        UnknownTrackerError: ``log_with`` or ``require`` names a tracker nobody registered.
        MissingExtraError: a tracker's package is not installed; the message has the command.
        RequiredTrackerError: a tracker in ``require`` did not start, or ``config_from`` did not say what the configuration is. `init`
            waits for these two only.
    """
    global _current  # noqa: PLW0603  the process has one current run
    speak_up()
    plan = make_plan(project, settings, _opened)
    if plan.settings.mode == "disabled":
        finish()
        _current = Run(plan.settings, plan.identity, plan.run_dir, tuning=plan.tuning)
        _current.config.update(plan.settings.config or {})
        return _current
    with directory.made(plan.run_dir, is_main=plan.is_main):
        run = Run(plan.settings, plan.identity, plan.run_dir, trackers=plan.trackers, tuning=plan.tuning)
        # Not before all that can be wrong was looked at: a mistaken call must not end the run that is there.
        finish()
        if plan.is_main:
            directory.write_record(plan.run_dir, run.record())
        run.open()
    _opened[plan.settings.run_id] += 1
    _current = run
    _start(run)
    return run


def _start(run: Run) -> None:
    config = run.settings.config
    run.config.update(config or {})
    if config is not None and run.is_main:
        run.log_config(config)
    if (run.settings.require or run.settings.config_from) and run.settings.mode == "online":
        run.wait_for_required()
    run.start_recording()


def attach(run: Run | Handle | None = None, *, role: str = WORKER) -> Run:
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
        raise NotInitializedError(
            "there is no run to attach to: pass the Run (or run.handle()) to this process, or fork after accelbus.init()"
        )
    handle = source.handle() if isinstance(source, Run) else source
    settings = msgspec.structs.replace(handle.settings, role=role, config=None)
    attached = Run(settings, handle.identity, RunDir(handle.dir), trackers=handle.trackers, tuning=handle.tuning)
    if handle.identity is not None and settings.mode != "disabled":
        attached.open(signals=False)
    _current = attached
    return attached


@outside_of_graphs
def log(values: Mapping[str, Any], step: int | None = None, log_kwargs: Mapping[str, Any] | None = None) -> None:
    """`Run.log` of the current run.

    Raises:
        NotInitializedError: before `init`.
    """
    _need_current().log(values, step, log_kwargs)


@outside_of_graphs
def log_artifact(path: str | os.PathLike[str], name: str | None = None, **arguments: Any) -> None:
    """`Run.log_artifact` of the current run: a file or directory, for every tracker.

    Raises:
        NotInitializedError: before `init`.
    """
    _need_current().log_artifact(path, name, **arguments)


@outside_of_graphs
def alert(title: str, text: str = "", level: str = "info") -> None:
    """`Run.alert` of the current run: a message to whoever watches.

    Raises:
        NotInitializedError: before `init`.
    """
    _need_current().alert(title, text, level)


def define_metric(pattern: str, axis: str | None = None, summary: str | None = None, goal: str | None = None) -> None:
    """`Run.define_metric` of the current run: how keys like *pattern* are to be shown.

    Raises:
        NotInitializedError: before `init`.
    """
    _need_current().define_metric(pattern, axis, summary, goal)


def get_tracker(name: str, unwrap: bool = False) -> Any:
    """`Run.get_tracker` of the current run: one tracker, the same usable object in every rank.

    Raises:
        NotInitializedError: before `init`.
        UnknownTrackerError, ConfigurationError: see `Run.get_tracker`.
    """
    return _need_current().get_tracker(name, unwrap)


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
