"""Opening a Comet experiment: who it is, with nothing captured by itself, and what an earlier process left of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accelbus.durable import write_atomically
from accelbus.errors import ConfigurationError
from accelbus.tracking import RunInfo

START_ARGUMENTS: Final = frozenset({"api_key", "workspace", "project", "project_name", "experiment_key", "mode", "online", "source"})
"""Those of ``comet_ml.start``; all others are fields of its ``ExperimentConfig``."""

NO_CAPTURE: Final[dict[str, Any]] = dict.fromkeys(
    (
        "log_code", "log_graph", "parse_args", "log_git_metadata", "log_git_patch", "log_env_details", "auto_output_logging",
        "auto_param_logging", "auto_metric_logging", "auto_log_co2",
    ),
    False,
) | {"display_summary_level": 0}  # fmt: skip
"""What Comet would find in this process is about this process, not about training."""

KEY_FILE: Final = "experiment_key"
ARCHIVES_FILE: Final = "archives.json"

_KEY_CHARACTERS: Final = 32
"""Comet wants 32 to 50 letters and digits."""


def experiment_key(info: RunInfo) -> str:
    """Return the key of the run's experiment: half from the run id, half chance, kept before it is used.

    The same in every process that delivers the run; another one for another run of the same id, since keys are shared by everybody
    on a server.
    """
    derived = hashlib.sha256(info.run_id.encode()).hexdigest()
    if info.state_dir == Path():
        return derived[:_KEY_CHARACTERS]
    path = info.state_dir / KEY_FILE
    if not path.exists():
        info.state_dir.mkdir(parents=True, exist_ok=True)
        half = _KEY_CHARACTERS // 2
        write_atomically(path, (derived[:half] + os.urandom(half // 2).hex()).encode())
    return path.read_text()


def start_arguments(kwargs: Mapping[str, Any], info: RunInfo, project: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split *kwargs* into arguments of ``comet_ml.start`` and fields of its ``ExperimentConfig``, completed from *info*."""
    given = dict(kwargs)
    config = given.pop("experiment_config", None) or {}
    if not isinstance(config, Mapping):  # an ExperimentConfig, which keeps its arguments as attributes
        config = {name.removeprefix("_"): value for name, value in vars(config).items() if value is not None}
    arguments = {name: given.pop(name) for name in list(given) if name in START_ARGUMENTS}
    if arguments.keys().isdisjoint({"project", "project_name"}):
        arguments["project_name"] = project
    fields = {**NO_CAPTURE, "name": info.name or None, "tags": list(info.tags) or None, **config, **given}
    return arguments, fields


def is_online(arguments: Mapping[str, Any]) -> bool:
    """Whether the experiment goes to a server; ``COMET_START_ONLINE`` and the configuration file are asked too, as Comet does.

    Raises:
        ConfigurationError: it does, and there is no key for it.
    """
    import comet_ml  # noqa: PLC0415  the package is imported when the tracker starts

    config = comet_ml.get_config()
    online = bool(config.get_bool(arguments.get("online"), "comet.start.online", default=True))
    if online and not config.get_string(arguments.get("api_key"), "comet.api_key"):
        raise ConfigurationError(
            "Comet needs an API key: set COMET_API_KEY, or run `comet login`; "
            'or init_kwargs={"comet_ml": {"online": False}} for archives that `comet upload` takes later'
        )
    return online


@contextlib.contextmanager
def alone(temporary: Path | None) -> Iterator[None]:
    """While an experiment is made: its data lies in *temporary*, and it ends no other one of this process, as Comet would have it."""
    from comet_ml import config  # noqa: PLC0415  see above

    other, before = config.get_global_experiment(), tempfile.tempdir
    config.set_global_experiment(None)
    if temporary is not None:
        temporary.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(temporary)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if other is not None and not other.ended:
            config.set_global_experiment(other)


class Archives:
    """The offline archives of a run: one for each time it was opened, to be uploaded in order.

    Args:
        directory: where they are; other experiments may have theirs there.
        state_dir: where it is written down which ones this run made.
        complete: names of those that are durable.
    """

    def __init__(self, directory: Path, state_dir: Path | None, complete: Sequence[str]) -> None:
        self.directory = directory
        self.complete = list(complete)
        self._record = state_dir / ARCHIVES_FILE if state_dir else None
        self._made: list[str] = json.loads(self._record.read_bytes()) if self._record and self._record.exists() else []

    def remove_unfinished(self, key: str) -> None:
        """Delete what a process that was killed left of experiment *key*: everything in it is delivered again."""
        for path in self.directory.glob(f"{key}*.zip"):
            if path.name not in self.complete and (path.name in self._made or not is_complete(path)):
                path.unlink()

    def add(self, name: str) -> None:
        """Write down that this run makes the archive *name*."""
        self._made.append(name)
        if self._record:
            write_atomically(self._record, json.dumps(self._made).encode())


def is_complete(path: Path) -> bool:
    """Whether *path* is an archive that was written to its end; Comet makes an empty one at the start."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"experiment.json", "messages.json"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def forget(directory: Path) -> None:
    """Remove *directory* and what is in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


__all__ = ["Archives", "alone", "experiment_key", "forget", "is_complete", "is_online", "start_arguments"]
