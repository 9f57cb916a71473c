"""Weights & Biases: one run, on a server or in a directory for ``wandb sync``, with every row that was logged.

Each process that delivers has a session with W&B of its own. On a server, sessions are one run by its id; rows that an earlier session
had only on disk are sent again. Offline, W&B cannot go on with a run: later sessions write below the state directory, and when the run
ends their files become one with the first, which is then what a single session would have written.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from accelbus.media import Media
from accelbus.tracking import GeneralTracker, RefusedRow, Row
from accelbus_sinks import _wandb_media as data_types
from accelbus_sinks._config import shorten
from accelbus_sinks._wandb_metrics import BEST
from accelbus_sinks._wandb_outbox import Outbox
from accelbus_sinks._wandb_rows import MediaValue, checked
from accelbus_sinks._wandb_settings import CAN_FLUSH, caches, leave_service_of_others, mode_of

EXIT_CODES: Final = {"finished": 0, "failed": 1, "killed": 137, "preempted": 143, "lost": 255}
"""W&B knows a run's end by an exit code: 0 is finished, others are failed; a preempted run is marked as such."""
_ALERT_LEVELS: Final = {"info": "INFO", "warning": "WARN", "error": "ERROR"}
_TITLE_CHARACTERS: Final = 63
_TEXT_CHARACTERS: Final = 250_000
"""W&B's limit is 1 MB for a value, and a character has up to 4 bytes."""
_UPLOAD_SECONDS: Final = 540.0
"""For an artifact; delivery waits 600 s for media."""


class WandBTracker(GeneralTracker):
    """Log to W&B: rows under W&B's own step where it is free, and under the metric ``accelbus/step`` always.

    Args:
        run_name: W&B's project.
        kwargs: of ``wandb.init``; they come before what the run says of itself.
    """

    name = "wandb"
    requires_logging_directory = False
    log_keywords = ()
    # Killed right after `flush`, a run has every row in its file (tests/contract/test_wandb.py); without one, 0 of 300.
    durable_after: Literal["call", "flush", "finish"] = "flush"

    @classmethod
    def environment(cls, state_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
        return caches(state_dir, environ)

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self._project = run_name
        self._kwargs = kwargs
        self._restored: Outbox | None = None
        self._started: Outbox | None = None
        self._place = (0, 0)
        """(attempt, step) of the last row."""

    @property
    def tracker(self) -> Any:
        """W&B's run object; offline there is none before the configuration or the first row."""
        return self._started.session.run if self._started and self._started.session else None

    @property
    def url(self) -> str | None:
        outbox = self._started
        if outbox is None:
            return None
        if outbox.session and not outbox.is_offline:
            return outbox.session.run.url or None
        if outbox.parts.parts:
            return str(outbox.parts.parts[0].path.parent)
        if outbox.session and outbox.session.path:
            return str(outbox.session.path.parent)
        return str(outbox.root / "wandb") if outbox.root and outbox.is_offline else None

    # The run

    def restore(self, checkpoint: dict[str, Any]) -> None:
        self._restored = Outbox(self._project, self.run_info, self._kwargs)
        self._restored.restore(checkpoint)

    def start(self) -> None:
        leave_service_of_others()
        outbox = self._restored or Outbox(self._project, self.run_info, self._kwargs)
        mode = mode_of(self._kwargs)
        outbox.is_offline = mode == "offline"
        if not CAN_FLUSH:
            self.durable_after = "finish"
        if mode == "online":
            # So that a missing key or server is found now. Offline nothing can be missing, and the configuration, which comes next,
            # can be part of ``init``.
            outbox.opened()
        self._restored = self._started = outbox

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._outbox.store_config(values)

    def resolved_config(self) -> dict[str, Any] | None:
        """Return what a sweep chose, or the server has: what differs from the configuration that was stored."""
        stored = self._outbox.stored_config
        resolved = self._outbox.opened().run.config.as_dict()
        return {key: value for key, value in resolved.items() if key != "_wandb" and (key not in stored or stored[key] != value)}

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        if summary == "best" and goal not in BEST:
            self.notice(
                f"define_metric({pattern!r}, summary='best'): goal says neither 'maximize' nor 'minimize'; the summary is the last value"
            )
        self._outbox.metrics.define(pattern, axis, summary, goal)

    def summarise(self, values: Mapping[str, Any]) -> None:
        summary = self._outbox.summary = {self._name(key): value for key, value in values.items()}
        self._outbox.call(lambda run: run.summary.update(summary))

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        self._outbox.facts = facts
        self._outbox.call(self._outbox.send_facts)

    def flush(self) -> None:
        self._outbox.flush()
        self._remove_media()

    def refused_rows(self) -> list[RefusedRow]:
        return self._outbox.refused_rows()

    def checkpoint(self) -> dict[str, Any]:
        return self._outbox.checkpoint()

    def finish(self, status: str | None = None) -> None:
        self._outbox.finish(EXIT_CODES.get(status or "finished", 1), is_preempted=status == "preempted")
        self._remove_media()

    # What is logged

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        attempt, last = self._place
        self.log_batch([Row(last if step is None else step, values, time.time_ns(), attempt)])

    def log_batch(self, rows: Sequence[Row]) -> None:
        outbox = self._outbox
        outbox.make_room()
        waiting = [checked(row, outbox.metrics.names, outbox.metrics.introduce) for row in rows]
        for row in waiting:
            for name, value in row.values.items():
                if isinstance(value, str) and len(value) > _TEXT_CHARACTERS:
                    row.values[name] = self._shortened(name, value, row.place[1])
        for row in waiting:
            outbox.put(row)
            self._place = row.place

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
        self._outbox.row_at((self._place[0], step), time.time_ns()).values[self._name(key)] = self._shortened(self._name(key), text, step)

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        is_offline = self._outbox.is_offline
        self._outbox.call(lambda run: _upload(run, media, wait=not is_offline))

    def alert(self, title: str, text: str, level: str) -> None:
        title = title[:_TITLE_CHARACTERS] or "alert"
        # W&B takes 0 for its default, a minute in which it sends no other alert of that title.
        self._outbox.call(lambda run: run.alert(title, text, level=_ALERT_LEVELS.get(level, "INFO"), wait_duration=0.001))

    def log_console(self, lines: Sequence[str]) -> None:
        self._outbox.call(lambda run: run.write_logs("\n".join(lines)))

    def _log_data_type(self, key: str, media: Media, step: int) -> None:
        outbox = self._outbox
        make = data_types.maker(key, media, self._media_dir)
        if make is None:
            self._log_as_file(key, media, step)
        else:
            outbox.row_at((self._place[0], step), media.time_ns).media[self._name(key)] = MediaValue(make)

    def _shortened(self, name: str, text: str, step: int) -> str:
        """Return *text* as W&B takes it; the whole is a file of the run where that is less."""
        if len(text) <= _TEXT_CHARACTERS:
            return text
        file = f"accelbus-texts/{quote(name, safe='')}-{step}.txt"
        self._outbox.save(file, text.encode("utf-8", "backslashreplace"))
        self.notice(f"{name!r}: text beyond {_TEXT_CHARACTERS:,} characters is cut in W&B; the whole is among the run's files, {file}")
        return shorten(text, _TEXT_CHARACTERS)

    def _name(self, key: str) -> str:
        metrics = self._outbox.metrics
        return metrics.names.get(key) or metrics.introduce(key)

    @property
    def _outbox(self) -> Outbox:
        if self._started is None:
            raise RuntimeError(f"the run of project {self._project!r} is not open; call start() first")
        return self._started

    @property
    def _media_dir(self) -> Path:
        """For files on their way."""
        return (self._outbox.state_dir or Path(tempfile.gettempdir(), f"accelbus-{os.getpid()}")) / "media"

    def _remove_media(self) -> None:
        """W&B has copies of the files on their way."""
        shutil.rmtree(self._media_dir, ignore_errors=True)


def _upload(run: Any, media: Media, *, wait: bool) -> None:
    logged = run.log_artifact(data_types.artifact(media), aliases=list(media.meta["aliases"]))
    if wait:
        # W&B keeps no record of it on disk: it is durable when it is on the server.
        logged.wait(timeout=_UPLOAD_SECONDS)


__all__ = ["EXIT_CODES", "WandBTracker"]
