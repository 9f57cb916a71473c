"""Aim: a repository of files, or a server of Aim's.

A value is in the repository when the call returns: a process that is killed loses nothing. Its run goes on in the next process, and
points that come again replace themselves. Aim's server shows a run while it is written; other readers see it when it is closed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from aim import Run

from accelbus.media import Media
from accelbus.tracking import GeneralTracker, Row
from accelbus_sinks import _aim_media
from accelbus_sinks._aim_open import index, open_repo, open_run
from accelbus_sinks._aim_series import Series
from accelbus_sinks._aim_values import plain, system_params
from accelbus_sinks._places import from_job_directory
from accelbus_sinks._run_names import name_of

ARGUMENTS: Final = frozenset(
    {"repo", "run_hash", "experiment", "system_tracking_interval", "capture_terminal_logs", "log_system_params", "artifacts_uri"}
)


class AimTracker(GeneralTracker):
    """Log to the repository in *logging_dir*.

    Args:
        run_name: name of the experiment, and of the run if the user gave it none.
        logging_dir: made when missing. Under delivery it is the run's own; runs that are to be compared need a common *repo*.
        kwargs: of ``aim.Run``: ``repo`` (a directory, or ``aim://host:port``, instead of *logging_dir*), ``run_hash``, ``experiment``,
            ``system_tracking_interval``, ``capture_terminal_logs``, ``log_system_params``; what Aim captures by itself is off. And
            ``artifacts_uri``: where files go, ``file:///…`` or ``s3://…``, by default ``artifacts`` in *logging_dir*.

    Raises:
        TypeError: an argument that is not known.
    """

    name = "aim"
    requires_logging_directory = True
    log_keywords = ("context", "epoch")
    durable_after: Literal["call", "flush", "finish"] = "call"
    """Aim's storage writes its log before ``track`` returns. Executed: of 3,000 points all were there after a SIGKILL behind the last.
    With a server of Aim's: ``flush``."""

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str] | None = ".", **kwargs: Any) -> None:
        super().__init__()
        if unknown := kwargs.keys() - ARGUMENTS:
            raise TypeError(f"AimTracker: unexpected argument {min(unknown)!r} (known: {', '.join(sorted(ARGUMENTS))})")
        self._run_name = run_name
        self._logging_dir = os.fspath(logging_dir or ".")
        self._arguments = kwargs
        self._run: Run | None = None
        self._series: Series | None = None
        self._checkpoint: dict[str, Any] = {}
        self._lines = 0
        self._definitions: dict[str, Any] = {}
        self._last = Row(0, {}, 0)

    @property
    def tracker(self) -> Run | None:
        """Aim's run."""
        return self._run

    @property
    def url(self) -> str | None:
        if self._run is None:
            return None
        repo = self._run.repo
        return f"{'aim://' if repo.is_remote_repo else ''}{repo.root_path}#/runs/{self._run.hash}"

    # Opening and closing

    def restore(self, checkpoint: dict[str, Any]) -> None:
        self._checkpoint = checkpoint

    def start(self) -> None:
        arguments = dict(self._arguments)
        place = arguments.pop("repo", None)
        artifacts_uri = arguments.pop("artifacts_uri", None)
        is_ours = place is None and self.run_info.run_id != ""
        repo = open_repo(place or self._logging_dir, os.environ, self.run_info, is_ours=is_ours)
        run = open_run(repo, self.run_info, {"experiment": self._run_name, **arguments})
        self.durable_after = "flush" if repo.is_remote_repo else "call"
        self._describe(run)
        if run.artifacts_uri is None and (artifacts_uri or not repo.is_remote_repo):
            run.set_artifacts_uri(artifacts_uri or f"file://{self._artifacts()}")
        state_dir = self.run_info.state_dir
        self._series = Series(run, None if state_dir == Path() else state_dir / "names.jsonl")
        self._lines = self._checkpoint.get("lines", 0)
        self._definitions = run.get("definitions", {})
        self._run = run

    def _artifacts(self) -> Path:
        return from_job_directory(self._logging_dir, os.environ, self.run_info).absolute() / "artifacts"

    def flush(self) -> None:
        repo = self._opened().repo
        if repo.is_remote_repo:
            # Its client sends from a queue; files are written at once.
            repo._client.get_queue().wait_for_finish()  # noqa: SLF001  Aim waits for it only when a run is closed

    def checkpoint(self) -> dict[str, Any]:
        if self._run is not None:
            self._checkpoint = {"hash": self._run.hash, "lines": self._lines}
        return self._checkpoint

    def finish(self, status: str | None = None) -> None:
        run = self._opened()
        self.checkpoint()
        status = status or "finished"
        run["accelbus"] = {"run_id": self.run_info.run_id, "status": status}
        if status == "finished":
            # What has not said so is taken for failed by Aim's watcher.
            run.report_successful_finish(block=True)
        repo, run_hash = run.repo, run.hash
        run.close()
        self._run = self._series = None
        index(repo, run_hash)

    def _describe(self, run: Run) -> None:
        info = self.run_info
        run.name = name_of(info, self._run_name)
        if info.notes:
            run.description = info.notes
        for tag in {*info.tags, *filter(None, [info.group])} - set(run.tags):
            run.add_tag(tag)
        run["accelbus"] = {"run_id": info.run_id, "status": "running"}

    # What is logged

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._opened()["hparams"] = plain(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(self._last.step if step is None else step, dict(values), time.time_ns(), log_kwargs=kwargs)])

    def log_batch(self, rows: Sequence[Row]) -> None:
        series = self._opened_series()
        # Everything is looked at before anything is stored: a value that cannot be stored refuses the batch as a whole.
        for row, points in [(row, series.points(row)) for row in rows]:
            series.add(row, points)
        if rows:
            self._last = rows[-1]

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        # Aim has no place that acts on it; a person, or a query, finds it among the parameters.
        self._definitions[pattern] = {"axis": axis, "summary": summary, "goal": goal}
        self._opened()["definitions"] = plain(self._definitions)

    def summarise(self, values: Mapping[str, Any]) -> None:
        self._opened()["summary"] = plain(values)

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        run = self._opened()
        run["__system_params"] = plain(system_params(facts))
        run["run_record"] = plain({name: value for name, value in facts.items() if name not in {"packages", "environment"}})

    def log_console(self, lines: Sequence[str]) -> None:
        self._opened_series().print([_aim_media.console_line(line) for line in lines], self._lines, time.time_ns())
        self._lines += len(lines)

    # Media

    def log_image(self, key: str, media: Media, step: int) -> None:
        self._put(media, key, _aim_media.image(media), step)

    def log_figure(self, key: str, media: Media, step: int) -> None:
        if media.format != "plotly":
            self._put(media, key, _aim_media.image(media), step, kind="image")
        elif (figure := _aim_media.figure(media)) is not None:
            self._put(media, key, figure, step)
        else:
            self._log_as_file(key, media, step)

    def log_histogram(self, key: str, media: Media, step: int) -> None:
        if (distribution := _aim_media.distribution(media)) is not None:
            self._put(media, key, distribution, step)
        else:
            self._log_as_file(key, media, step)

    def log_audio(self, key: str, media: Media, step: int) -> None:
        if (audio := _aim_media.audio(media, self.run_info.state_dir / "media")) is not None:
            self._put(media, key, audio, step)
        else:
            self._log_as_file(key, media, step)

    def log_video(self, key: str, media: Media, step: int) -> None:
        if (animation := _aim_media.animation(media, self.run_info.state_dir / "media")) is not None:
            self._put(media, key, animation, step, kind="image")
        else:
            self._log_as_file(key, media, step)

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        run = self._opened()
        if run.artifacts_uri is None:  # of a server of Aim's, and nobody said where files go
            super().log_artifact(key, media, step)
            return
        name = _aim_media.store_file(run, media, step)
        known = {"path": name, **{field: media.meta[field] for field in ("type", "aliases", "metadata") if media.meta.get(field)}}
        run["files"] = plain({**run.get("files", {}), str(media.meta["name"]): known})

    def alert(self, title: str, text: str, level: str) -> None:
        run = self._opened()
        tell = {"error": run.log_error, "warning": run.log_warning}.get(level, run.log_info)
        tell(f"{title}: {text}" if text else title)

    def _put(self, media: Media, key: str, value: Any, step: int, *, kind: str = "") -> None:
        self._opened_series().put(kind or media.kind, key, value, step, media.time_ns)

    def _opened(self) -> Run:
        if self._run is None:
            raise RuntimeError("Aim's run is not open; call start() first")
        return self._run

    def _opened_series(self) -> Series:
        self._opened()
        assert self._series is not None
        return self._series
