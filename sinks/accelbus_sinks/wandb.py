"""Weights & Biases: one run, on a server or in a directory for ``wandb sync``, with every row that was logged.

Each process that delivers has a session with W&B of its own. On a server, sessions are one run by its id; rows that an earlier session
had only on disk are sent again. Offline, W&B cannot go on with a run: later sessions write below the state directory, and when the run
ends their files become one with the first, which is then what a single session would have written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import wandb
from wandb.sdk.mailbox import MailboxClosedError

from accelbus.media import Media
from accelbus.tracking import GeneralTracker, Row
from accelbus_sinks import _wandb_media as data_types
from accelbus_sinks._config import write_config
from accelbus_sinks._wandb_config import fitted
from accelbus_sinks._wandb_log import Part, history
from accelbus_sinks._wandb_metrics import Metrics
from accelbus_sinks._wandb_parts import Parts, put_aside
from accelbus_sinks._wandb_rows import MediaValue, Waiting, WaitingCall, WaitingRow, checked
from accelbus_sinks._wandb_session import Session
from accelbus_sinks._wandb_settings import CAN_FLUSH, caches, init_arguments, leave_service_of_others, mode_of, root_directory, run_id_of

logger = logging.getLogger(__name__)

EXIT_CODES: Final = {"finished": 0, "failed": 1, "killed": 137, "preempted": 143, "lost": 255}
"""W&B knows a run's end by an exit code: 0 is finished, others are failed; a preempted run is marked as such."""
_SERVICE_IS_GONE: Final = (ConnectionError, MailboxClosedError)
_RESTARTS: Final = 3
"""Of W&B's service without a flush between them; then it is delivery's turn."""
_ALERT_LEVELS: Final = {"info": "INFO", "warning": "WARN", "error": "ERROR"}
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
    # Killed right after `flush`, a run has every row in its file (tests/contract/test_wandb.py); without one, 0 of 300.
    durable_after: Literal["call", "flush", "finish"] = "flush"

    @classmethod
    def environment(cls, state_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
        return caches(state_dir, environ)

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self._project = run_name
        self._kwargs = kwargs
        self._mode = ""
        self._id: str | None = None
        self._session: Session | None = None
        self._parts = Parts(Path())
        self._metrics = Metrics(None)
        self._queue: deque[Waiting] = deque()
        self._handed_over: list[Waiting] = []
        """Since the last flush."""
        self._config: dict[str, Any] = {}
        self._fitted = fitted({})
        self._summary: dict[str, Any] = {}
        self._facts: Mapping[str, Any] = {}
        self._next_step = 0
        self._uses_axis = False
        self._restarts = 0
        self._row = (0, 0)
        """(attempt, step) of the last row."""

    @property
    def tracker(self) -> Any:
        """W&B's run object; offline there is none before the configuration or the first row."""
        return self._session.run if self._session else None

    @property
    def url(self) -> str | None:
        if self._session and self._mode == "online":
            return str(self._session.run.url)
        if self._parts.parts:
            return str(self._parts.parts[0].path.parent)
        if self._session and self._session.path:
            return str(self._session.path.parent)
        root = root_directory(self.run_info, self._kwargs, os.environ)
        return str(root / "wandb") if root and self._mode == "offline" else None

    # The run

    def restore(self, checkpoint: dict[str, Any]) -> None:
        state = self._state_dir()
        self._parts = Parts(state or Path("/"))
        self._metrics = Metrics(state / "keys.json" if state else None)
        self._next_step = checkpoint.get("next_step", 0)
        self._uses_axis = checkpoint.get("uses_axis", False)
        self._metrics.extremes = checkpoint.get("extremes", {})
        if checkpoint:
            self._parts.restore(checkpoint.get("parts", []))
        else:
            self._put_old_sessions_aside()

    def start(self) -> None:
        leave_service_of_others()
        self._mode = mode_of(self._kwargs)
        if not CAN_FLUSH:
            self.durable_after = "finish"
        if self._mode == "online":
            # So that a missing key or server is found now. Offline nothing can be missing, and the configuration, which comes next,
            # can be part of ``init``.
            self._opened()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._config, self._fitted = values, fitted(values)
        if self._session is None:
            self._opened()
        else:
            self._call(self._send_config)

    def resolved_config(self) -> dict[str, Any] | None:
        """Return what a sweep chose, or the server has: what differs from the configuration that was stored."""
        stored = self._fitted.values
        resolved = self._opened().run.config.as_dict()
        return {key: value for key, value in resolved.items() if key != "_wandb" and (key not in stored or stored[key] != value)}

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        self._metrics.define(pattern, axis, summary, goal)

    def summarise(self, values: Mapping[str, Any]) -> None:
        self._summary = {self._name(key): value for key, value in values.items()}
        self._call(lambda run: run.summary.update(self._summary))

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._call(self._send_facts)

    def finish(self, status: str | None = None) -> None:
        self.flush()
        session = self._opened()
        try:
            if self._parts.parts and self._metrics.extremes:
                # W&B has only seen this session's values.
                session.run.summary.update({name: dict(extreme) for name, extreme in self._metrics.extremes.items()})
            if status == "preempted":
                session.run.mark_preempting()
            session.finish(EXIT_CODES.get(status or "finished", 1))
        except _SERVICE_IS_GONE as error:
            self._start_service_again(error)
            self.finish(status)
            return
        self._session = None
        if session.path:
            self._parts.add(Part(session.path))
        self._next_step = session.next_step
        if self._mode == "offline":
            self._parts.join_all()
            if state := self._state_dir():
                shutil.rmtree(state / "sessions", ignore_errors=True)

    # What is logged

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        attempt, last = self._row
        self.log_batch([Row(last if step is None else step, values, time.time_ns(), attempt)])

    def log_batch(self, rows: Sequence[Row]) -> None:
        self._check_started()
        names, introduce = self._metrics.names, self._metrics.introduce
        waiting = [checked(row, names, introduce) for row in rows]
        # The rows before these: until now media and values could join them, since W&B has only one row for a step.
        self._hand_over(but=waiting[0].place if waiting else None)
        for row in waiting:
            last = self._queue[-1] if self._queue else None
            if isinstance(last, WaitingRow) and last.place == row.place:
                last.join(row)
            else:
                self._queue.append(row)
            self._row = row.place

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
        self._check_started()
        self._row_at(step).values[self._name(key)] = text

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        self._call(lambda run: _upload(run, media, is_online=self._mode == "online"))

    def alert(self, title: str, text: str, level: str) -> None:
        # W&B takes 0 for its default of a minute in which it sends no other alert of that title.
        self._call(lambda run: run.alert(title[:63] or "alert", text, level=_ALERT_LEVELS.get(level, "INFO"), wait_duration=0.001))

    def log_console(self, lines: Sequence[str]) -> None:
        self._call(lambda run: run.write_logs("\n".join(lines)))

    def flush(self) -> None:
        self._check_started()
        self._hand_over()
        if self._session is None:
            return
        try:
            self._session.flush()
        except _SERVICE_IS_GONE as error:
            self._start_service_again(error)
            self.flush()
            return
        self._handed_over.clear()
        self._restarts = 0
        if state := self._state_dir():
            shutil.rmtree(state / "media", ignore_errors=True)

    def checkpoint(self) -> dict[str, Any]:
        session = self._session
        current = Part(session.path, session.durable_size) if session and session.path else None
        return {
            "parts": self._parts.saved(current),
            "next_step": session.durable_next_step if session else self._next_step,
            "uses_axis": session.uses_axis if session else self._uses_axis,
            "extremes": self._metrics.extremes,
        }

    # Handing over

    def _hand_over(self, *, but: tuple[int, int] | None = None) -> None:
        """Give W&B everything that waits, but a row at the end for which there is more."""
        while self._queue:
            last = self._queue[-1]
            if len(self._queue) == 1 and isinstance(last, WaitingRow) and last.place == but:
                return
            session = self._opened()
            try:
                for name in self._metrics.take_changes():
                    session.define_as(name, self._metrics.options[name])
                waiting = self._queue[0]
                waiting.send(session)
                if isinstance(waiting, WaitingRow) and (stale := self._metrics.note(waiting.place, waiting.values)):
                    session.run.summary.update(stale)
                    session.touch()
            except _SERVICE_IS_GONE as error:
                self._start_service_again(error)
                continue
            self._handed_over.append(self._queue.popleft())

    def _call(self, function: Callable[[Any], Any]) -> None:
        """Do *function* with the run object, behind what waits."""
        self._check_started()
        self._queue.append(WaitingCall(function))
        self._hand_over()

    def _log_data_type(self, key: str, media: Media, step: int) -> None:
        self._check_started()
        directory = (self._state_dir() or Path(os.environ.get("TMPDIR", "/tmp"))) / "media"  # noqa: S108  without a run there is no better place
        make = data_types.maker(key, media, directory)
        if make is None:
            self._log_as_file(key, media, step)
        else:
            self._row_at(step).media[self._name(key)] = MediaValue(make)

    def _row_at(self, step: int) -> WaitingRow:
        """Return the waiting row of *step*, of the newest attempt; a new one if it has been handed over already."""
        for waiting in reversed(self._queue):
            if isinstance(waiting, WaitingRow) and waiting.place[1] == step:
                return waiting
        row = WaitingRow((self._row[0], step), time.time_ns(), {})
        self._queue.append(row)
        return row

    def _name(self, key: str) -> str:
        return self._metrics.names.get(key) or self._metrics.introduce(key)

    # Sessions

    def _opened(self) -> Session:
        """Return the session; there is a new one if there is none."""
        self._check_started()
        if self._session is None:
            self._session = session = self._new_session()
            self._id = session.run.id
            if self._mode == "online":
                self._send_what_was_not_uploaded(session)
            self._metrics.take_changes()
            for name, options in self._metrics.options.items():
                session.define_as(name, options)
            if self._summary:
                session.run.summary.update(self._summary)
            if self._facts:
                self._send_facts(session.run)
            if self._fitted.is_cut:
                self._save(session.run, "accelbus-config.json", self._config)
        return self._session

    def _new_session(self) -> Session:
        arguments = self._arguments()
        before = self._directories(arguments)
        try:
            return Session(arguments, next_step=self._next_step, uses_axis=self._uses_axis)
        except Exception:
            # It may be tried for hours, and each time W&B leaves a directory.
            for directory in self._directories(arguments) - before:
                shutil.rmtree(directory, ignore_errors=True)
            raise

    def _directories(self, arguments: Mapping[str, Any]) -> set[Path]:
        """Return the directories of sessions of this run."""
        if "dir" not in arguments or not arguments["id"]:
            return set()
        return set(Path(arguments["dir"]).glob(f"*wandb/*run-*-{arguments['id']}*"))

    def _arguments(self) -> dict[str, Any]:
        arguments = init_arguments(self._project, self.run_info, self._kwargs, os.environ)
        arguments["config"] = {**(self._kwargs.get("config") or {}), **self._fitted.values}
        arguments["id"] = self._id or run_id_of(self.run_info, self._kwargs, os.environ)
        root = root_directory(self.run_info, self._kwargs, os.environ)
        if self._mode == "offline":
            arguments.pop("resume", None)
            if self._parts.parts and (state := self._state_dir()):
                root = state / "sessions"
        elif self._parts.parts or not {"resume", "resume_from", "fork_from"} & arguments.keys():
            arguments = {name: value for name, value in arguments.items() if name not in {"resume_from", "fork_from"}}
            arguments["resume"] = "allow"
        if root:
            root.mkdir(parents=True, exist_ok=True)
            arguments["dir"] = str(root)
        return arguments

    def _send_what_was_not_uploaded(self, session: Session) -> None:
        """Log what earlier sessions had on disk and the server does not have."""
        wanted = session.first_step
        for part in self._parts.parts:
            for own, values in history(part):
                if own >= wanted:
                    session.relog(own, values)
                    wanted = own + 1

    def _start_service_again(self, error: Exception) -> None:
        """W&B's service has died: begin a new session, and hand over again what is not on disk.

        Raises:
            Exception: *error*, when that has been tried too often.
        """
        self._restarts += 1
        session, self._session = self._session, None
        if session:
            if session.path:
                self._parts.add(Part(session.path, session.durable_size))
            self._next_step, self._uses_axis = session.durable_next_step, session.uses_axis
        with contextlib.suppress(Exception):  # it cannot end in order
            wandb.teardown()
        self._queue.extendleft(reversed(self._handed_over))
        self._handed_over.clear()
        if self._restarts > _RESTARTS:
            self._restarts = 0
            raise error
        logger.warning("W&B's service is gone (%s); starting it again", type(error).__name__)

    def _put_old_sessions_aside(self) -> None:
        """Everything is delivered again: files of sessions before the first cursor must not count."""
        run_id = run_id_of(self.run_info, {}, {})
        root = root_directory(self.run_info, self._kwargs, os.environ)
        if not run_id or not root or run_id != run_id_of(self.run_info, self._kwargs, os.environ):
            return  # nobody says that they are ours
        for path in sorted(root.glob(f"*wandb/offline-run-*-{run_id}*/run-{run_id}.wandb")):
            put_aside(path)
        if state := self._state_dir():
            shutil.rmtree(state / "sessions", ignore_errors=True)

    # Parts of a run that are files

    def _send_config(self, run: Any) -> None:
        run.config.update(self._fitted.values, allow_val_change=True)
        if self._fitted.is_cut:
            self._save(run, "accelbus-config.json", self._config)

    def _send_facts(self, run: Any) -> None:
        self._save(run, "accelbus-run.json", self._facts)

    def _save(self, run: Any, name: str, content: Mapping[str, Any]) -> None:
        """Make *content* a file of the run."""
        if run.disabled:
            return
        path = write_config(Path(run.dir) / name, content)
        run.save(str(path), base_path=run.dir, policy="now", glob=False)

    def _state_dir(self) -> Path | None:
        return None if self.run_info.state_dir == Path() else self.run_info.state_dir

    def _is_started(self) -> bool:
        return bool(self._mode)

    def _check_started(self) -> None:
        if not self._is_started():
            raise RuntimeError(f"the run of project {self._project!r} is not open; call start() first")


def _upload(run: Any, media: Media, *, is_online: bool) -> None:
    logged = run.log_artifact(data_types.artifact(media), aliases=list(media.meta["aliases"]))
    if is_online:
        # W&B keeps no record of it on disk: it is durable when it is on the server.
        logged.wait(timeout=_UPLOAD_SECONDS)
