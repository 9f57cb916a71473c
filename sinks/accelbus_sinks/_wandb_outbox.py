"""The way to W&B over sessions: what waits is handed over in order, and again where a session did not make it durable."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import wandb
from wandb.sdk.mailbox import MailboxClosedError

from accelbus.durable import write_atomically
from accelbus.tracking import RefusedRow, RunInfo
from accelbus_sinks._wandb_files import as_json, fitted, record_files
from accelbus_sinks._wandb_log import Part, history
from accelbus_sinks._wandb_metrics import Metrics
from accelbus_sinks._wandb_parts import Parts, put_aside
from accelbus_sinks._wandb_rows import Waiting, WaitingCall, WaitingRow
from accelbus_sinks._wandb_session import Session
from accelbus_sinks._wandb_settings import init_arguments, root_directory, run_id_of
from accelbus_sinks._wandb_together import together

logger = logging.getLogger(__name__)

_SERVICE_IS_GONE: Final = (ConnectionError, MailboxClosedError)
_Result = TypeVar("_Result")

MOST_ROWS: Final = 4096
FEWEST_ROWS: Final = 2048
"""When more than the one wait, all but the other are handed over without waiting for a flush."""
_ROWS_TOGETHER: Final = 128
"""In one hand-over: W&B's service works on them while the next ones are encoded."""
_FAILURES_OF_A_ROW: Final = 3
_RESTARTS: Final = 3
"""Of W&B's service without a flush between them; then it is delivery's turn."""


class Outbox:
    """Everything on its way to one run of W&B.

    Args:
        project: W&B's.
        info: the run.
        arguments: of ``wandb.init``, as the user gave them.
    """

    def __init__(self, project: str, info: RunInfo, arguments: Mapping[str, Any]) -> None:
        self._project = project
        self._info = info
        self._kwargs = arguments
        self.state_dir = None if info.state_dir == Path() else info.state_dir
        self.root = root_directory(info, arguments, os.environ)
        self.is_offline = False
        self.session: Session | None = None
        self.parts = Parts(self.state_dir or Path("/"))
        self.metrics = Metrics(self.state_dir / "keys.json" if self.state_dir else None)
        self.summary: dict[str, Any] = {}
        self.facts: Mapping[str, Any] = {}
        self._config: Mapping[str, Any] = {}
        self._fitted = fitted({})
        self._waiting: deque[WaitingRow] = deque()
        self._handed_over: list[Waiting] = []
        """Since the last flush."""
        self._again: deque[Waiting] = deque()
        """Handed over to a service that has died since."""
        self._id: str | None = None
        self._next_step = 0
        self._uses_axis = False
        self._restarts = 0
        self._refused: list[RefusedRow] = []

    # State

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go back to what `checkpoint` returned; {}: to nothing."""
        self._next_step = checkpoint.get("next_step", 0)
        self._uses_axis = checkpoint.get("uses_axis", False)
        self.metrics.extremes = checkpoint.get("extremes", {})
        if checkpoint:
            self.parts.restore(checkpoint.get("parts", []))
        else:
            self._put_old_sessions_aside()

    def checkpoint(self) -> dict[str, Any]:
        session = self.session
        current = Part(session.path, session.durable_size) if session and session.path else None
        return {
            "parts": self.parts.saved(current),
            "next_step": session.durable_next_step if session else self._next_step,
            "uses_axis": session.uses_axis if session else self._uses_axis,
            "extremes": self.metrics.extremes,
        }

    @property
    def stored_config(self) -> Mapping[str, Any]:
        """The configuration as W&B was given it."""
        return self._fitted.values

    # Handing over

    def put(self, row: WaitingRow) -> None:
        """Add *row*, or its values to the row that came last if that is of the same step.

        It waits for a flush: W&B has one row for a step, and what else belongs to it may still come.
        """
        last = self._waiting[-1] if self._waiting else None
        if last and last.place == row.place:
            last.join(row)
        else:
            self._waiting.append(row)

    def row_at(self, place: tuple[int, int], time_ns: int) -> WaitingRow:
        """Return the row that waits for the step of *place*; a new one if it has been handed over already."""
        for waiting in reversed(self._waiting):
            if waiting.place[1] == place[1]:
                return waiting
        row = WaitingRow(place, time_ns, {})
        self._waiting.append(row)
        return row

    def make_room(self) -> None:
        """Hand over the older ones of many rows. Called before a batch is taken, so that a failure refuses the batch as a whole."""
        if len(self._waiting) > MOST_ROWS:
            self._reliably(lambda: self._hand_over(len(self._waiting) - FEWEST_ROWS))

    def call(self, function: Callable[[Any], Any]) -> None:
        """Do *function* with the run object now. Raises whatever it raises, and then it is not done again."""
        call = WaitingCall(function)
        self._reliably(lambda: call.send(self.opened()))
        self._handed_over.append(call)

    def save(self, name: str, content: bytes) -> None:
        """Make *content* the file *name* of the run."""
        self.call(lambda run: _save(run, name, content))

    def flush(self) -> None:
        """Hand over everything and wait until W&B has it on disk."""
        self._reliably(self._flush)
        self._handed_over.clear()
        self._restarts = 0

    def finish(self, exit_code: int, *, is_preempted: bool) -> None:
        """End the run; offline, its sessions become one file."""
        self.flush()
        session = self._reliably(lambda: self._finish(exit_code, is_preempted=is_preempted))
        self.session = None
        if session.path:
            self.parts.add(Part(session.path))
        self._next_step, self._uses_axis = session.next_step, session.uses_axis
        if self.is_offline:
            self.parts.join_all()
            if self.state_dir:
                shutil.rmtree(self.state_dir / "sessions", ignore_errors=True)

    def _flush(self) -> None:
        self._hand_over(len(self._waiting))
        if self.session:
            self.session.flush()

    def _finish(self, exit_code: int, *, is_preempted: bool) -> Session:
        self._flush()
        session = self.opened()
        if self.parts.parts and self.metrics.extremes:
            # W&B has only seen this session's values.
            session.run.summary.update({name: dict(extreme) for name, extreme in self.metrics.extremes.items()})
        if is_preempted:
            session.run.mark_preempting()
        session.finish(exit_code)
        return session

    def _hand_over(self, count: int) -> None:
        """Give W&B what was to be given again, and the first *count* rows that wait."""
        while self._again:
            self._again[0].send(self.opened())
            self._handed_over.append(self._again.popleft())
        while count > 0:
            session = self.opened()
            with together(session.run):
                for _ in range(min(count, _ROWS_TOGETHER)):
                    self._hand_over_row(session)
            count -= _ROWS_TOGETHER

    def _hand_over_row(self, session: Session) -> None:
        row = self._waiting[0]
        for name in self.metrics.take_changes():
            session.define_as(name, self.metrics.options[name])
        if self._sent(row, session) and (stale := self.metrics.note(row.place, row.values)):
            session.run.summary.update(stale)
            session.touch()
        self._handed_over.append(self._waiting.popleft())

    def _sent(self, row: WaitingRow, session: Session) -> bool:
        """Hand over *row*; False: W&B refuses it again and again, and no row behind it may wait for that."""
        try:
            row.send(session)
        except (OSError, MailboxClosedError):
            raise
        except Exception as error:
            row.failures += 1
            if row.failures < _FAILURES_OF_A_ROW:
                raise
            self._refuse(row, f"W&B does not take it ({type(error).__name__}: {error})", row.keys)
            return False
        return True

    def _refuse(self, row: WaitingRow, reason: str, names: Iterable[str]) -> None:
        attempt, step = row.place
        # Named, since delivery may have had several rows and media for this one.
        keys = tuple(self.metrics.key_of(name) for name in names)
        self._refused.append(RefusedRow(attempt, step, reason, keys))

    def refused_rows(self) -> list[RefusedRow]:
        """Return what W&B has refused since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def _reliably(self, function: Callable[[], _Result]) -> _Result:
        """Return what *function* returns; when W&B's service dies, start it again and repeat.

        Raises:
            Exception: what *function* raises, also when the service keeps dying.
        """
        while True:
            try:
                return function()
            except _SERVICE_IS_GONE as error:
                self._leave_session()
                self._restarts += 1
                if self._restarts > _RESTARTS:
                    self._restarts = 0
                    raise
                logger.warning("W&B's service is gone (%s); starting it again", type(error).__name__)

    # Sessions

    def opened(self) -> Session:
        """Return the session; a new one if there is none."""
        return self._reliably(self._open)

    def _open(self) -> Session:
        if self.session is None:
            self.session = session = self._new_session()
            self._id = session.run.id
            if not self.is_offline:
                self._send_what_was_not_uploaded(session)
            self.metrics.take_changes()
            for name, options in self.metrics.options.items():
                session.define_as(name, options)
            if self.summary:
                session.run.summary.update(self.summary)
            if self.facts:
                self.send_facts(session.run)
            self._save_full_config(session.run)
        return self.session

    def store_config(self, config: Mapping[str, Any]) -> None:
        """Make *config* the run's configuration: part of ``init`` if that is still to come."""
        self._config, self._fitted = config, fitted(config)
        if self.session is None:
            self.opened()
        else:
            self.call(self._send_config)

    def send_facts(self, run: Any) -> None:
        """Make the run record files of the run, where W&B looks for such things and as a whole."""
        for name, content in record_files(self.facts).items():
            _save(run, name, content)

    def _send_config(self, run: Any) -> None:
        run.config.update(self._fitted.values, allow_val_change=True)
        self._save_full_config(run)

    def _save_full_config(self, run: Any) -> None:
        if self._fitted.is_cut:
            _save(run, "accelbus-config.json", as_json(self._config))

    def _new_session(self) -> Session:
        arguments = self._arguments()
        before = _directories(arguments)
        try:
            return Session(arguments, next_step=self._next_step, uses_axis=self._uses_axis)
        except Exception:
            # It may be tried for hours, and each time W&B leaves a directory.
            for directory in _directories(arguments) - before:
                shutil.rmtree(directory, ignore_errors=True)
            raise

    def _arguments(self) -> dict[str, Any]:
        arguments = init_arguments(self._project, self._info, self._kwargs, os.environ)
        arguments["config"] = {**(self._kwargs.get("config") or {}), **self._fitted.values}
        arguments["id"] = self._id or run_id_of(self._info, self._kwargs, os.environ)
        root = self.root
        if self.is_offline:
            arguments.pop("resume", None)
            if self.parts.parts and self.state_dir:
                root = self.state_dir / "sessions"
        elif self.parts.parts or not {"resume", "resume_from", "fork_from"} & arguments.keys():
            arguments = {name: value for name, value in arguments.items() if name not in {"resume_from", "fork_from"}}
            arguments["resume"] = "allow"
        if root:
            root.mkdir(parents=True, exist_ok=True)
            arguments["dir"] = str(root)
        return arguments

    def _send_what_was_not_uploaded(self, session: Session) -> None:
        """Log what earlier sessions had on disk and the server does not have."""
        wanted = session.first_step
        for part in self.parts.parts:
            for own, values in history(part):
                if own >= wanted:
                    session.relog(own, values)
                    wanted = own + 1

    def _leave_session(self) -> None:
        """W&B's service has died: what is not on disk is to be given again."""
        session, self.session = self.session, None
        if session:
            if session.path:
                self.parts.add(Part(session.path, session.durable_size))
            self._next_step, self._uses_axis = session.durable_next_step, session.uses_axis
        with contextlib.suppress(Exception):  # it cannot end in order
            wandb.teardown()
        self._again.extendleft(reversed(self._handed_over))
        self._handed_over.clear()

    def _put_old_sessions_aside(self) -> None:
        """Everything is delivered again: files of sessions before the first cursor must not count."""
        run_id = run_id_of(self._info, {}, {})
        if not run_id or not self.root or run_id != run_id_of(self._info, self._kwargs, os.environ):
            return  # nobody says that they are ours
        for path in sorted(self.root.glob(f"*wandb/offline-run-*-{run_id}*/run-{run_id}.wandb")):
            put_aside(path)
        if self.state_dir:
            shutil.rmtree(self.state_dir / "sessions", ignore_errors=True)


def _directories(arguments: Mapping[str, Any]) -> set[Path]:
    """Return the directories of sessions of the run that *arguments* start."""
    if "dir" not in arguments or not arguments["id"]:
        return set()
    return set(Path(arguments["dir"]).glob(f"*wandb/*run-*-{arguments['id']}*"))


def _save(run: Any, name: str, content: bytes) -> None:
    """Make *content* a file of the run."""
    if not run.disabled:
        path = Path(run.dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, mode=0o644)
        run.save(str(path), base_path=run.dir, policy="now", glob=False)


__all__ = ["Outbox"]
