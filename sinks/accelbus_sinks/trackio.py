"""Trackio: rows with their own times straight in its local store, or through its queue to a Space or a server.

Trackio never raises while it logs. What it would drop with a warning is therefore refused here first, and whether it has what it was
given is looked up.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trackio
from trackio import utils
from trackio.sqlite_storage import SQLiteStorage

from accelbus.media import Media
from accelbus.tracking import GeneralTracker, Row
from accelbus_sinks import _trackio_media as data_types
from accelbus_sinks._config import flat_config, write_config
from accelbus_sinks._keys import KeyMap
from accelbus_sinks._trackio_writers import Entry, QueueWriter, StoreWriter, Writer, can_write_directly

logger = logging.getLogger(__name__)

_OURS: Final = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
"""They would measure this process, or show it in a notebook."""
_READ_AS_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
"""Text that Trackio's readers take for a number, since it stores such numbers so."""


class TrackioTracker(GeneralTracker):
    """Log to Trackio. Local runs are exactly once, durable after `flush`.

    Args:
        run_name: Trackio's project.
        kwargs: of ``trackio.init``; they come before what the run says of itself.
    """

    name = "trackio"
    requires_logging_directory = False
    log_keywords = ()
    # Trackio's own queue loses up to half a second: killed at once, it had 0 of 300 rows. What is flushed here is committed.
    durable_after = "flush"

    @classmethod
    def environment(cls, state_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
        # Trackio's directory is no cache but where ``trackio show`` looks, and compares runs: it stays unless it cannot be.
        if "TRACKIO_DIR" in environ or _is_writable(_default_directory(environ)):
            return {}
        return {"TRACKIO_DIR": str(state_dir / "trackio")}

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self._project = run_name
        self._kwargs = kwargs
        self._run: Any = None
        self._writer: Writer | None = None
        self._keys = KeyMap(None, name_of)
        self._names: dict[str, str] = {}
        self._checkpoint: dict[str, Any] = {}
        self._config: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._definitions: dict[str, str] = {}
        self._status = "running"
        self._count = 0
        """Rows of the run."""
        self._step = 0

    @property
    def tracker(self) -> Any:
        """Trackio's run object."""
        return self._run

    @property
    def url(self) -> str | None:
        if self._run is None:
            return None
        return str(self._run.url or SQLiteStorage.get_project_db_path(self._run.project))

    # The run

    def restore(self, checkpoint: dict[str, Any]) -> None:
        self._checkpoint = checkpoint
        self._count = checkpoint.get("count", 0)
        if (state := self._state_dir()) is not None:
            self._keys = KeyMap(state / "keys.json", name_of)

    def start(self) -> None:
        if self._run is not None:
            return
        # In a context of its own: Trackio would finish the run that was started before this one.
        run = contextvars.Context().run(trackio.init, **self._arguments())
        is_ours = self.run_info.run_id and self._kwargs.get("resume", "never") == "never"
        if is_ours:
            # So that a restart goes on with this run: Trackio would look for its name, which another one may have too.
            run.id = self.run_info.run_id
        writer: Writer = StoreWriter(run) if can_write_directly(run) else QueueWriter(run)
        if is_ours or self._checkpoint:
            writer.cut(self._checkpoint.get("position", 0))
        try:
            writer.probe()
        except ConnectionError:
            # Its thread would go on looking for the server beside that of the next try.
            run._stop_flag.set()  # noqa: SLF001  `finish` waits for up to half a minute
            raise
        self._run, self._writer = run, writer
        self._store_config()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._check_started()
        self._config = {f"logged/{key}" if key.startswith("_") else key: value for key, value in flat_config(values).values.items()}
        self._store_config()

    def summarise(self, values: Mapping[str, Any]) -> None:
        self._check_started()
        self._summary = {f"summary/{key}": value for key, value in flat_config(values).values.items()}
        self._store_config()

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        """Keep it in the configuration, as ``metric/<pattern>``: Trackio has nothing that acts on it."""
        self._check_started()
        said = {"axis": axis, "summary": summary, "goal": goal}
        self._definitions[f"metric/{pattern}"] = ", ".join(f"{name}={text}" for name, text in said.items() if text) or "shown"
        self._store_config()

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        self._check_started()
        directory = self._media_dir()
        path = write_config(directory / "accelbus-run.json", facts)
        artifact = trackio.Artifact(data_types.safe_name(f"{self._run.name}-record"), type="run-record")
        artifact.add_file(path)
        self._run.log_artifact(artifact)

    def flush(self) -> None:
        self._check_started()
        self._opened.flush()
        shutil.rmtree(self._media_dir(), ignore_errors=True)

    def checkpoint(self) -> dict[str, Any]:
        return {"position": self._opened.position(), "count": self._count}

    def finish(self, status: str | None = None) -> None:
        self._status = status or "finished"
        self._store_config()
        self.flush()
        self._run.finish()
        # What went through Trackio's own thread ends with it.
        self.flush()

    # What is logged

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(self._step if step is None else step, values, time.time_ns())])

    def log_batch(self, rows: Sequence[Row]) -> None:
        writer = self._opened
        values = [self._checked(row.values) for row in rows]
        entries = [
            Entry(row.step, row.time_ns, each, self._count + index) for index, (row, each) in enumerate(zip(rows, values, strict=True))
        ]
        writer.write(entries)
        self._count += len(entries)
        if rows:
            self._step = rows[-1].step

    def log_image(self, key: str, media: Media, step: int) -> None:
        self._log_data_type(key, media, step)

    def log_figure(self, key: str, media: Media, step: int) -> None:
        self._log_data_type(key, media, step)

    def log_histogram(self, key: str, media: Media, step: int) -> None:
        self._log_data_type(key, media, step)

    def log_table(self, key: str, media: Media, step: int) -> None:
        self._log_data_type(key, media, step)

    def log_html(self, key: str, media: Media, step: int) -> None:
        self._log_data_type(key, media, step)

    def log_audio(self, key: str, media: Media, step: int) -> None:
        self._log_data_type(key, media, step)

    def log_video(self, key: str, media: Media, step: int) -> None:
        self._log_data_type(key, media, step)

    def log_text(self, key: str, text: str, step: int) -> None:
        self._log_value(key, trackio.Markdown(text), step, time.time_ns())

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        self._check_started()
        aliases = [data_types.safe_name(str(alias)) for alias in media.meta["aliases"]]
        self._run.log_artifact(data_types.artifact(media), aliases=aliases)

    def alert(self, title: str, text: str, level: str) -> None:
        self._check_started()
        levels = {"info": trackio.AlertLevel.INFO, "warning": trackio.AlertLevel.WARN, "error": trackio.AlertLevel.ERROR}
        self._run.alert(title, text or None, level=levels.get(level, trackio.AlertLevel.INFO), step=self._step)

    def _log_data_type(self, key: str, media: Media, step: int) -> None:
        self._check_started()
        value = data_types.data_type(key, media, self._media_dir())
        if value is None:
            self._log_as_file(key, media, step)
        else:
            self._log_value(key, value, step, media.time_ns)

    def _log_value(self, key: str, value: Any, step: int, time_ns: int) -> None:
        writer = self._opened
        if isinstance(writer, StoreWriter):
            value = data_types.stored(value, self._run.project, self._run.name, step)
        writer.write([Entry(step, time_ns, {self._name(key): value}, self._count)])
        self._count += 1

    def _checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return *values* under Trackio's names and as it can store them.

        Raises:
            TypeError: a value that nobody can store.
        """
        checked: dict[str, Any] = {}
        for key, value in values.items():
            if isinstance(value, bool):
                # Trackio draws no curve of booleans.
                value = int(value)  # noqa: PLW2901  the same value in another form
            if isinstance(value, str):
                value = {"_type": "trackio.markdown", "_value": value} if value in _READ_AS_NUMBERS else value  # noqa: PLW2901  the same
            elif not isinstance(value, int | float | list | None):
                raise TypeError(f"{key!r}: expected a number, text or a list, got {type(value).__name__}")
            if value is not None:
                checked[self._name(key)] = value
        return checked

    # Helpers

    def _arguments(self) -> dict[str, Any]:
        info = self.run_info
        known = inspect.signature(trackio.init).parameters
        ours = {
            "project": _project_name(self._project),
            # It becomes part of paths.
            "name": re.sub(r"[/\\\0]|^\.+$", "-", info.name) or None,
            "group": info.group or None,
            **{name: value for name, value in _OURS.items() if name in known},
        }
        return {**ours, **self._kwargs}

    def _store_config(self) -> None:
        run, info = self._run, self.run_info
        ours = {"accelbus/status": self._status, "accelbus/tags": ", ".join(info.tags), "accelbus/notes": info.notes}
        internal = {key: value for key, value in run.config.items() if key.startswith("_")}
        given = {key: value for key, value in (self._kwargs.get("config") or {}).items() if not key.startswith("_")}
        self._opened.store_config(
            {
                **given,
                **self._config,
                **self._definitions,
                **self._summary,
                **{key: value for key, value in ours.items() if value},
                **internal,
            }
        )

    def _name(self, key: str) -> str:
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._keys[key]
        return name

    def _check_started(self) -> None:
        if self._run is None:
            raise RuntimeError(f"the run of project {self._project!r} is not open; call start() first")

    @property
    def _opened(self) -> Writer:
        self._check_started()
        assert self._writer is not None
        return self._writer

    def _state_dir(self) -> Path | None:
        return None if self.run_info.state_dir == Path() else self.run_info.state_dir

    def _media_dir(self) -> Path:
        """For files on their way."""
        return (self._state_dir() or Path(tempfile.gettempdir(), f"accelbus-{os.getpid()}")) / "media"


def name_of(key: str) -> str:
    """Return *key* as Trackio keeps it: reserved names, and those it would rename, are moved away."""
    if key in utils.RESERVED_KEYS or key.startswith("__") or not key:
        return f"logged/{key}"
    return key


def _project_name(project: str) -> str:
    """Return *project* as Trackio allows it."""
    try:
        SQLiteStorage.validate_project_name(project)
    except ValueError as error:
        allowed = f"project-{project}-runs"
        logger.warning("%s; using %r", error, allowed)
        return allowed
    return project


def _default_directory(environ: Mapping[str, str]) -> Path:
    home = environ.get("HF_HOME") or Path(
        environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/nonexistent"), ".cache"), "huggingface"
    )
    return Path(home, "trackio")


def _is_writable(directory: Path) -> bool:
    """Whether *directory* can be written, or made."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)


__all__ = ["TrackioTracker"]
