"""What `accelbus.init` finds out before it starts or changes anything: settings, trackers, identity, directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from accelbus import tracking
from accelbus.client.checks import check_resume, check_settings
from accelbus.client.identity import Identity, bystander, identify
from accelbus.client.placement import named_from_anywhere
from accelbus.client.relatives import ancestor_in_place_of
from accelbus.client.trackers import Trackers, admit
from accelbus.config import Settings, Tuning, from_environment, misspelt
from accelbus.errors import ConfigurationError
from accelbus.events import TRAINER
from accelbus.rundir import RunDir, check_run_id
from accelbus.values import config_values

_log = logging.getLogger("accelbus")
WORKER = "worker"
"""Role of processes that a rank has started."""
_shown: set[str] = set()


class Plan(NamedTuple):
    """A run that can be opened."""

    settings: Settings
    tuning: Tuning
    identity: Identity
    trackers: Trackers
    run_dir: RunDir

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0 of the trainers, whose settings rule."""
        return self.identity.rank == 0 and self.settings.role == TRAINER


def make_plan(project: str | None, arguments: Mapping[str, Any], opened: Mapping[str | None, int]) -> Plan:
    """Return what `init` would open. Touches no file.

    Args:
        project: name of the project.
        arguments: the fields of `Settings`; None means "not given".
        opened: {run id, None where it is derived: how often this process has opened it}

    Raises:
        ConfigurationError: a setting is wrong or contradicts another; see `accelbus.init` for its kinds.
    """
    arguments = dict(arguments)
    log_with, given = tracking.separate(arguments.pop("log_with", None))
    if (config := arguments.get("config")) is not None:
        arguments["config"] = config_values(config)
    if arguments.get("dir") == "":
        del arguments["dir"]  # as an empty variable
    settings = from_environment(Settings, project=project, log_with=log_with, **arguments)
    if settings.config is not None:
        settings = msgspec.structs.replace(settings, config=config_values(settings.config))
    tuning = named_from_anywhere(from_environment(Tuning))
    if settings.mode == "disabled":
        return Plan(
            settings, tuning, bystander(settings=settings), Trackers(), RunDir(Path(settings.dir) / (settings.run_id or "disabled"))
        )
    sinks = check_settings(settings, given)
    trackers = admit(settings, sinks, given)
    identity = identify(settings=settings, ordinal=opened.get(settings.run_id, 0))
    run_dir = RunDir(_absolute(settings.dir) / check_run_id(identity.run_id))
    check_resume(settings, identity, run_dir)
    if identity.rank == 0:
        _say_what_is_misspelt()
    return Plan(_in_its_role(settings, identity, run_dir), tuning, identity, trackers.in_world_of(identity.world_size), run_dir)


def _absolute(directory: str) -> Path:
    """Return the absolute path of *directory*, which has to be one that can be written down."""
    try:
        path = Path(directory).absolute()
        str(path).encode()
    except OSError as error:
        raise ConfigurationError(
            f"dir={directory!r}: expected an absolute path where the working directory is gone ({error.strerror or error})"
        ) from error
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"dir={directory!r}: expected a path in UTF-8, got {str(path)!r}") from error
    if "\0" in directory:
        raise ConfigurationError(f"dir={directory!r}: expected a path, got one with a null character")
    return path


def _in_its_role(settings: Settings, identity: Identity, run_dir: RunDir) -> Settings:
    """A process that a rank has started, and that has the rank's environment, is not a second one of that rank."""
    if settings.role != TRAINER or (ancestor := ancestor_in_place_of(identity.rank, run_dir.path)) is None:
        return settings
    _log.warning(
        "process %d, which started this one, is rank %d of run %s: this process joins it as a %s",
        ancestor,
        identity.rank,
        run_dir.run_id,
        WORKER,
    )
    return msgspec.structs.replace(settings, role=WORKER)


def _say_what_is_misspelt() -> None:
    for variable, meant in misspelt(os.environ).items():
        if variable not in _shown:
            _shown.add(variable)
            _log.warning("the environment variable %s means nothing; is it %s?", variable, meant)


__all__ = ["WORKER", "Plan", "make_plan"]
