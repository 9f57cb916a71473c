"""MLflow, through `MlflowClient` and its batches; the fluent interface and its active run are not touched.

A call returns when the server, or the database, has committed. What comes again after a crash is stored once: rows have the
timestamps they had (`_mlflow_points`), and the run is found again by its tag ``accelbus.run_id``.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.utils import mlflow_tags

from accelbus.media import Media
from accelbus.tracking import GeneralTracker, Row, RunInfo
from accelbus_sinks._config import spelled_out
from accelbus_sinks._mlflow_media import artifact_tag
from accelbus_sinks._mlflow_places import absolute_uri, make_database, remember, run_address, tracking_uri
from accelbus_sinks._mlflow_run import OURS, OpenRun
from accelbus_sinks._mlflow_start import Start

logger = logging.getLogger(__name__)

STATUSES: Final = {"finished": "FINISHED", "failed": "FAILED"}
"""MLflow's words; a run that ended otherwise was ended from outside: KILLED."""


class MLflowTracker(GeneralTracker):
    """Log to the MLflow of ``MLFLOW_TRACKING_URI``, by default the database ``mlflow.db`` in the job's directory.

    The variables ``MLFLOW_EXPERIMENT_NAME``, ``MLFLOW_RUN_ID``, ``MLFLOW_TAGS`` and ``MLFLOW_NESTED_RUN`` beat the arguments.

    Args:
        experiment_name: made when missing, restored when deleted.
        logging_dir: where an experiment that is made now keeps its artifacts: a directory, or a URI.
        run_id: go on with this run of MLflow's.
        tags: of the run: a mapping, or JSON.
        nested_run: the run is a child of the one that the tag ``mlflow.parentRunId`` names.
        run_name: of a new run.
        description: of the run.

    Raises:
        ValueError: the tags are no mapping.
    """

    name = "mlflow"
    requires_logging_directory = False
    log_keywords = ("model_id", "synchronous")

    @classmethod
    def environment(cls, state_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
        wanted = {
            # MLflow retries for minutes. Delivery has a deadline for each call, and retries itself.
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "GIT_PYTHON_REFRESH": "quiet",
        }
        missing = {name: value for name, value in wanted.items() if name not in environ}
        return missing | {"MLFLOW_TRACKING_URI": tracking_uri(environ, state_dir)}

    def __init__(
        self,
        experiment_name: str | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | str | None = None,
        nested_run: bool | None = False,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__()
        arguments = {
            "experiment_name": experiment_name, "logging_dir": logging_dir, "run_id": run_id, "tags": tags, "nested_run": nested_run,
            "run_name": run_name, "description": description,
        }  # fmt: skip
        self._start = Start(arguments, os.environ)
        self._uri = ""
        self._checkpoint: dict[str, Any] = {}
        self._run: OpenRun | None = None
        self._last = Row(0, {}, 0)

    @property
    def tracker(self) -> Run | None:
        """MLflow's run, as it was at `start`."""
        return self._run.run if self._run else None

    @property
    def url(self) -> str | None:
        run = self.tracker
        return run_address(self._uri, run.info.experiment_id, run.info.run_id) if run else None

    # Opening and closing

    def restore(self, checkpoint: dict[str, Any]) -> None:
        self._checkpoint = checkpoint

    def start(self) -> None:
        # What the environment says is meant from the directory in it. MLflow's default is absolute in a process of its own; beside
        # training, where the user may go elsewhere, it is not.
        is_said = "MLFLOW_TRACKING_URI" in os.environ
        uri = absolute_uri(mlflow.get_tracking_uri(), os.environ, RunInfo() if is_said else self.run_info)
        make_database(uri)
        client = MlflowClient(uri)
        self._uri = uri
        opened = self._start.open(client, self.run_info, self._checkpoint.get("run_id"))
        state_dir = self.run_info.state_dir
        if state_dir == Path():  # not under delivery: nothing is resumed
            state_dir = Path(tempfile.mkdtemp(prefix="accelbus-mlflow-"))
        remember(uri, state_dir)
        run = OpenRun(client, opened, state_dir, self._checkpoint)
        run.notice = self.notice
        run.set_tags(self._start.run_tags(self.run_info))
        self._run = run

    def flush(self) -> None:
        self._opened().flush()

    def checkpoint(self) -> dict[str, Any]:
        if self._run is not None:
            self._checkpoint = self._run.position()
        return self._checkpoint

    def finish(self, status: str | None = None) -> None:
        run = self._opened()
        status = status or "finished"
        run.set_tags({"accelbus.status": status})
        run.close(STATUSES.get(status, "KILLED"))
        self._checkpoint = run.position()
        self._run = None

    # What is logged

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._opened().store_config(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(self._last.step if step is None else step, dict(values), time.time_ns(), log_kwargs=kwargs)])

    def log_batch(self, rows: Sequence[Row]) -> None:
        self._opened().log(rows)
        if rows:
            self._last = rows[-1]

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        # MLflow has no place that acts on it; a person finds it among the tags.
        said = {"axis": axis, "summary": summary, "goal": goal}
        self._opened().set_tags({f"metric/{pattern}": ", ".join(f"{name}={value}" for name, value in said.items() if value)})

    def summarise(self, values: Mapping[str, Any]) -> None:
        self._opened().summarise(values)

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        run = self._opened()
        run.set_tags({name: value for name, value in _system_tags(facts).items() if value not in {None, ""}})
        run.artifacts.put_bytes(json.dumps(spelled_out(facts), indent=2, default=str).encode(), f"{OURS}/run.json")
        if packages := facts.get("packages"):
            lines = "".join(f"{name}=={version}\n" for name, version in packages.items())
            run.artifacts.put_bytes(lines.encode(), f"{OURS}/requirements.txt")
        if patch := facts.get("patch"):
            run.artifacts.put_bytes(str(patch).encode("utf-8", "backslashreplace"), f"{OURS}/changes.patch")

    def log_console(self, lines: Sequence[str]) -> None:
        self._opened().console.append(line.encode("utf-8", "backslashreplace") + b"\n" for line in lines)

    # Media

    def log_image(self, key: str, media: Media, step: int) -> None:
        try:
            self._opened().artifacts.image(key, media, step)
        except ValueError:  # no picture in it, or one that MLflow cannot shrink
            self._log_as_file(key, media, step)
        self._log_caption(key, media, step)

    def log_figure(self, key: str, media: Media, step: int) -> None:
        self._opened().artifacts.figure(key, media, step)
        self._log_caption(key, media, step)

    def log_table(self, key: str, media: Media, step: int) -> None:
        self._opened().artifacts.table(key, media, step)

    def log_histogram(self, key: str, media: Media, step: int) -> None:
        self._opened().artifacts.histogram(key, media, step)

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        run = self._opened()
        place = run.artifacts.artifact(media, step)
        run.set_tags({f"file/{media.meta['name']}": artifact_tag(media, place)})

    def alert(self, title: str, text: str, level: str) -> None:
        said = f"{level}: {text}" if text else level
        run = self._opened()
        run.set_tags({f"alert/{title}": said})
        run.add_text(self._now(), f"alert/{title}", said)

    def _log_caption(self, key: str, media: Media, step: int) -> None:
        if media.caption:
            self._opened().add_text(self._now()._replace(step=step), f"{key}/caption", media.caption)

    def _now(self) -> Row:
        """Return where the run is: at its newest row, if there is one."""
        return self._last if self._last.time_ns else self._last._replace(time_ns=time.time_ns())

    def _opened(self) -> OpenRun:
        if self._run is None:
            raise RuntimeError("MLflow's run is not open; call start() first")
        return self._run


def _system_tags(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what MLflow has tags of its own for, and what a person looks for."""
    git = facts.get("git") or {}
    argv = facts.get("argv") or [""]
    return {
        mlflow_tags.MLFLOW_SOURCE_NAME: argv[0],
        mlflow_tags.MLFLOW_GIT_COMMIT: git.get("commit"),
        mlflow_tags.MLFLOW_GIT_BRANCH: git.get("branch"),
        mlflow_tags.MLFLOW_GIT_REPO_URL: git.get("remote"),
        "accelbus.command": facts.get("command"),
        "accelbus.directory": facts.get("cwd"),
        "accelbus.host": facts.get("host"),
        "accelbus.python": facts.get("python"),
    }
