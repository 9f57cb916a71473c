"""Make the tracker of a sink: by its name, by where its class comes from, or of what was handed over."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from accelbus.errors import ConfigurationError
from accelbus.rundir import RunRecord
from accelbus.tracking import GeneralTracker, adapted, extend_path, load_tracker_class, make_tracker, name_and_rank, rebuild


class Maker:
    """Makes the tracker called *sink*, anew for every start.

    Args:
        sink: its name.
        record: of the run.
        carried: the tracker by value, if that is how it comes.
        given: the tracker itself, class or instance, in the process that made it.
        in_trainer: this is the process that trains: its environment stays as it is.
    """

    def __init__(self, sink: str, record: RunRecord, *, carried: bytes = b"", given: Any = None, in_trainer: bool = False) -> None:
        self._sink = sink
        self._record = record
        self._carried = carried
        self._given = given
        self._in_trainer = in_trainer

    def make(self, logging_dir: Path, state_dir: Path) -> GeneralTracker:
        """Return a tracker that was not started.

        Args:
            logging_dir: made, if the tracker asks for one.
            state_dir: the tracker's own; made.

        Raises:
            ConfigurationError: nobody here knows how to make it.
        """
        found = self._find()
        kind: Any = found if inspect.isclass(found) else type(found)
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._in_trainer:
            _set_environment(kind, state_dir)
        if kind.requires_logging_directory:
            logging_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return adapted(self._build(found, logging_dir) if inspect.isclass(found) else found)

    def _find(self) -> Any:
        """Return a class, or a tracker."""
        if self._given is not None:
            return self._given
        extend_path(self._record.search_path)
        if self._carried:
            return rebuild(self._carried)
        origin = self._record.trackers.get(self._sink)
        if origin is None:
            return load_tracker_class(name_and_rank(self._sink)[0])
        if not origin.path:
            raise ConfigurationError(
                f"the tracker {self._sink!r} was defined in the training script and cannot be built without its main rank; "
                f"in a module of its own it can"
            )
        return load_tracker_class(origin.path)

    def _build(self, kind: Any, logging_dir: Path) -> Any:
        origin = self._record.trackers.get(self._sink)
        if origin is not None and origin.state is not None:
            made = kind.__new__(kind)
            made.__dict__.update(origin.state)
            return made
        if origin is not None and origin.is_instance:
            return kind(*origin.args, **origin.kwargs)
        arguments = self._record.init_kwargs.get(self._sink) or self._record.init_kwargs.get(kind.name) or {}
        return make_tracker(kind, self._record, logging_dir, arguments)


def _set_environment(kind: Any, state_dir: Path) -> None:
    """Set what the tracker's package needs to know before it is imported; what the user has set stays."""
    wanted = getattr(kind, "environment", None)
    for name, value in (wanted(state_dir, dict(os.environ)) if callable(wanted) else {}).items():
        os.environ.setdefault(name, value)


__all__ = ["Maker"]
