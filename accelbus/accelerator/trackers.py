"""What `Accelerator` offers for experiment tracking: `accelbus.init` under Accelerate's names."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from accelbus import tracking
from accelbus.accelerator import telemetry as telemetry_facts
from accelbus.accelerator.checkpoint import Marker
from accelbus.accelerator.parts import Parts
from accelbus.client import current
from accelbus.client.compiled import outside_of_graphs
from accelbus.client.run import Run
from accelbus.config import Settings
from accelbus.handlers import buckets_are_final
from accelbus.handlers.process import let_go_of_group
from accelbus.rundir import RunDir
from accelbus.values import config_values, step_of

_log = logging.getLogger(__name__)


class TrackerMethods(Parts):
    """Mixed into `Accelerator`."""

    _is_tracking = False
    _has_warned = False

    @property
    def run(self) -> Run | None:
        """The run of `init_trackers`; None before."""
        return self._run

    @property
    def trackers(self) -> list[Any]:
        """The trackers of the run, as `get_tracker` returns them."""
        return [] if self._run is None else [self._run.get_tracker(name) for name in self._run.sinks]

    def init_trackers(
        self,
        project_name: str,
        config: Any = None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        """Start logging; call it in every process. Waits for nobody; see `accelbus.init` for what it raises.

        With a ``project_dir`` that has a checkpoint of this project, the run of the newest one is continued, unless *settings* or
        ``ACCELBUS_RUN_ID`` name a run, or say ``resume="never"``. That is warned about where neither `load_state` nor ``resume`` has
        asked for it.

        Args:
            project_name: name of the project.
            config: hyperparameters: a mapping, dataclass or Namespace.
            init_kwargs: {tracker: arguments for it}; those of trackers that were not chosen are left out.
            settings: further `accelbus.Settings`: ``name``, ``tags``, ``mode``, …
        """
        run = self._run
        if run is not None and self._is_tracking and run.settings.project == project_name and current.current_run() is run:
            if config is not None:
                run.log_config(config)
            return
        arguments = {
            "log_with": self.log_with,
            "config": None if config is None else config_values(config),
            "init_kwargs": None if init_kwargs is None else self._chosen(init_kwargs),
            **self._place(project_name, settings),
        }
        self._run = run = current.init(project_name, **{**arguments, **settings})
        self._is_tracking = True
        if run.is_main and "config" in self.telemetry.kinds:
            run.log_config({"accelerator": self.facts()})
        self._continue(run, is_wanted="resume" in settings or bool(os.environ.get("ACCELBUS_RESUME")))

    @outside_of_graphs
    def log(self, values: Mapping[str, Any], step: int | None = None, log_kwargs: Mapping[str, Any] | None = None) -> None:
        """Queue *values* for every tracker, from any process; the telemetry since the last call goes with them. See `Run.log`.

        Before `init_trackers` nothing is recorded, which the main process says once.
        """
        run = self._run
        if run is None:
            self._say_that_nothing_is_recorded()
            return
        if step is not None:
            self._note(step)
        if self._sorting:
            self._tell_buckets(run)
        if isinstance(values, Mapping) and (numbers := self._numbers()):  # type: ignore[redundant-expr]  # log() takes anything
            values = {**numbers, **values}
        run.log(values, step, log_kwargs)

    @outside_of_graphs
    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Return one tracker, usable in every process; see `Run.get_tracker`. In a process without a run, one that does nothing."""
        run = self._run
        if run is None:
            run = Run(Settings(mode="disabled"), None, RunDir(Path("disabled")))
        return run.get_tracker(name, unwrap)

    def end_training(self, destroy_process_group: bool = False, status: str | None = None) -> None:
        """Finish the run; the process group stays, unless *destroy_process_group*.

        Args:
            destroy_process_group: also leave the process group: nothing that needs the other processes works afterwards.
            status: finished (when not given), failed or preempted.
        """
        if self._run is not None:
            self._tell_buckets(self._run)
            self._run.finish(status)
            self._is_tracking = False
        if destroy_process_group and self.state.backend is not None:
            let_go_of_group()
            dist.destroy_process_group()

    def _tell_buckets(self, run: Run) -> None:
        """Record the buckets of gradients again once DDP has sorted them as they stay: what was said at `prepare` was its first guess."""
        waiting = [model for model in self._sorting if not buckets_are_final(model)]
        if len(waiting) == len(self._sorting):
            return
        self._sorting = waiting
        if run.is_main and self._is_tracking and "config" in self.telemetry.kinds:
            run.log_config({"accelerator": telemetry_facts.wrapped(self._models)})

    def _chosen(self, init_kwargs: Mapping[Any, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Leave out arguments for built-in trackers that were not chosen: scripts pass them whatever ``log_with`` is."""
        log_with = self.log_with
        if log_with is None and (wanted := os.environ.get("ACCELBUS_LOG_WITH")):
            log_with = [name.strip() for name in wanted.split(",")]
        names, given = tracking.separate(log_with)
        chosen = tracking.resolve(names, check_installed=False, given=given)
        by_name = {str(getattr(name, "value", name)): dict(arguments) for name, arguments in init_kwargs.items()}
        return {name: arguments for name, arguments in by_name.items() if name in chosen or name not in tracking.BUILT_IN}

    def _place(self, project_name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return where the run directory is to be, and whose run is continued."""
        logging_dir = self.project_configuration.logging_dir
        found: dict[str, Any] = {} if logging_dir is None else {"dir": os.fspath(logging_dir)}
        if os.environ.get("ACCELBUS_RUN_ID"):
            return found  # an argument would win over it
        resume = settings.get("resume") or os.environ.get("ACCELBUS_RESUME")
        origin = self._origin or self._newest
        if origin is not None and origin.run_id and origin.project in {None, project_name} and resume != "never":
            found["run_id"] = origin.run_id
        return found

    def _continue(self, run: Run, *, is_wanted: bool) -> None:
        """Say whose run goes on: as a warning, if nobody has asked for it."""
        origin = self._origin or self._newest
        speaks = self.state.is_main_process and run.settings.mode != "disabled"
        if speaks and origin is not None and origin.run_id == run.id:
            _log.log(
                logging.INFO if is_wanted or self._origin is not None else logging.WARNING,
                "run %s is continued, from a checkpoint of step %s; init_trackers(..., resume='never') makes a new one, and "
                "resume='allow', or load_state() before, says that this is meant",
                run.id,
                origin.step,
            )
        if self._origin is not None:
            self.record_fork(self._origin)

    def record_fork(self, origin: Marker) -> None:
        """Record that the run goes on from another run's checkpoint, and say how to continue that one instead."""
        run = self._run
        if run is None or origin.run_id in {None, run.id} or not self.state.is_main_process:
            return
        run.log_config({"forked_from": {"run_id": origin.run_id, "step": origin.step}})
        _log.warning(
            "this run, %s, goes on from a checkpoint of run %s: recorded as forked_from. To continue that run instead, call load_state() "
            "before init_trackers(), or init_trackers(..., run_id=%r)",
            run.id,
            origin.run_id,
            origin.run_id,
        )

    def _note(self, step: Any) -> None:
        with contextlib.suppress(ValueError, TypeError):  # the run counts what is no step
            self._last_step = step if type(step) is int else step_of(step)

    def _say_that_nothing_is_recorded(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            level = logging.WARNING if self.state.is_main_process else logging.DEBUG
            _log.log(level, "log() before init_trackers(): nothing is recorded in process %d", self.state.process_index)


def check_trackers(log_with: Any) -> None:
    """Find what is wrong with *log_with* before anything is started.

    Raises:
        ConfigurationError: it names a tracker that nobody knows, or that is not installed.
    """
    if log_with is not None:
        online = os.environ.get("ACCELBUS_MODE", "online") == "online"
        names, given = tracking.separate(log_with)
        tracking.resolve(names, check_installed=online, given=given)


__all__ = ["TrackerMethods", "check_trackers"]
