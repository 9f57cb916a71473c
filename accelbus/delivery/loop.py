"""The life of a worker: read, hand over, save, until the run is closed."""

from __future__ import annotations

import logging
import time
from typing import Final

from accelbus.config import Tuning
from accelbus.delivery.channel import Channel, WorkerSpec
from accelbus.delivery.cursor import Cursor, read_cursor
from accelbus.delivery.deadletters import DeadLetters
from accelbus.delivery.feeder import Feeder, describe
from accelbus.delivery.ledger import Ledger
from accelbus.delivery.repeating import DONE, LeaveError, Repeater
from accelbus.delivery.saving import Saver
from accelbus.delivery.session import Session
from accelbus.delivery.source import Batch, Source
from accelbus.delivery.status import SinkStatus, State
from accelbus.errors import CursorError
from accelbus.rundir import RunDir

logger = logging.getLogger(__name__)

_FIRST_READ: Final = 64
"""Items of the first read; adapted to how long they take to deliver."""
_SMALLEST_READ: Final = 16
_SHOWN_EVERY: Final = 0.25
"""Seconds between two updates of the counts in the status while busy."""


class Loop:
    """Deliver one sink from its cursor on.

    Args:
        run_dir: of the run.
        sink: name of the tracker.
        spec: what the supervisor wants.
        channel: to and from the supervisor.
    """

    def __init__(self, run_dir: RunDir, sink: str, spec: WorkerSpec, channel: Channel) -> None:
        self._spec = spec
        self._channel = channel
        self._status = channel.status
        self._tuning = tuning = Tuning(**spec.tuning)
        cursor = self._read_cursor(run_dir, sink)
        self._status.url, self._status.dead_letters = cursor.url, cursor.dead_letters
        self._ledger = Ledger(cursor.ranks)
        letters = DeadLetters(run_dir.sink(sink), cursor.dead_letter_bytes)
        self._session = Session(sink, run_dir, spec.record, channel=channel, ledger=self._ledger, letters=letters)
        self._session.names_rows = spec.one_by_one
        self._source = Source(run_dir, cursor, tuning=tuning)
        self._feeder = Feeder(self._session, tuning=tuning, monotonic=time.monotonic, deaths=spec.deaths, one_by_one=spec.one_by_one)
        self._repeater = Repeater(channel, tuning, lambda: self._show("retrying"))
        self._saver = Saver(
            run_dir,
            cursor,
            spec,
            tuning=tuning,
            status=self._status,
            source=self._source,
            session=self._session,
            ledger=self._ledger,
            letters=letters,
            repeater=self._repeater,
        )
        self._limit = _SMALLEST_READ if spec.one_by_one else _FIRST_READ
        self._shown_at = 0.0
        self._began_ns = time.time_ns()
        self._drain_seen = 0
        """Drain command that was known before the journal was last read to its end."""

    def run(self) -> int:
        """Deliver until there is no reason to go on; return the exit code."""
        self._show()
        try:
            if not self._sleeps_on():
                self._start()
                while True:
                    self._turn()
        except LeaveError as leave:
            self._show(leave.state)
            return leave.code
        return DONE

    def _read_cursor(self, run_dir: RunDir, sink: str) -> Cursor:
        try:
            return read_cursor(run_dir.sink(sink)) or Cursor()
        except CursorError as error:
            logger.error("%s; delivering everything again from the beginning", error)  # noqa: TRY400  the message says it all
            self._status.cursor_resets += 1
            return Cursor()

    # Starting

    def _sleeps_on(self) -> bool:
        """Whether the tracker was finished and there is nothing more for it; the first thing wakes it."""
        finished_as = self._saver.cursor.finished_as
        if finished_as is None:
            return False
        while self._read().items:
            if self._saver.owes:
                return False
        closed_as = self._source.closed_as
        if closed_as != finished_as and not (closed_as is None and self._spec.once):
            return False
        self._status.run_status = finished_as
        self._show("finished" if closed_as is not None else "up_to_date")
        return True

    def _start(self) -> None:
        self._show("starting")
        self._repeater.call("start", lambda: self._session.start(self._saver.cursor.checkpoint))
        self._saver.cursor.finished_as = None
        self._feeder.largest_call = self._tuning.call_rows if self._session.takes_batches else 1
        self._show("running")

    # The loop

    def _turn(self) -> None:
        """Read, hand over, save, wait."""
        batch = self._read() if self._feeder.wants_rows else None
        self._saver.store_config()
        began = time.monotonic()
        wait = self._feeder.work(should_pause=self._should_pause)
        self._show()
        if self._feeder.is_settled:
            if batch is not None and batch.items:
                self._adapt(time.monotonic() - began)
            if self._saver.is_due() or (self._channel.is_stopping and self._saver.has_read):
                self._save()
        if self._channel.is_stopping:
            raise LeaveError(DONE, "stopped")
        if batch is not None and (not batch.items or self._is_beyond(batch)):
            self._at_end()
            wait = min(wait, self._tuning.poll_interval) or self._tuning.poll_interval
        if wait:
            self._channel.wait(min(wait, self._tuning.poll_interval) if self._feeder.wants_rows else wait)

    def _read(self) -> Batch:
        """Read some items and put what they lead to on its way."""
        self._channel.enter("read")
        try:
            batch = self._source.read(self._limit)
        except OSError as error:
            self._status.last_error = describe(error)
            logger.warning("the journal cannot be read: %s", self._status.last_error)
            batch = Batch(0, [], config_changed=False, oldest_ns=0)
        self._channel.enter("idle")
        self._take(batch)
        return batch

    def _take(self, batch: Batch) -> None:
        self._ledger.queue(batch.rows)
        self._feeder.add(batch.rows)
        self._saver.take_note(batch)

    def _should_pause(self) -> bool:
        if time.monotonic() - self._shown_at > _SHOWN_EVERY:
            self._show()
        return self._channel.is_stopping

    def _adapt(self, seconds: float) -> None:
        """Read as much at once as can be delivered between two cursors."""
        if seconds > self._tuning.cursor_interval:
            self._limit = max(_SMALLEST_READ, self._limit // 2)
        elif seconds < self._tuning.cursor_interval / 4 and not self._feeder.one_by_one:
            self._limit = min(self._tuning.read_events, self._limit * 2)

    def _is_beyond(self, batch: Batch) -> bool:
        """Whether a worker that delivers what is there has read more than was there: a busy run never comes to an end."""
        return self._spec.once and batch.oldest_ns > self._began_ns

    def _save(self) -> None:
        self._saver.save()
        if self._session.durable_after != "finish":
            # Whatever ended the worker before this one is behind the cursor.
            self._session.names_rows = self._feeder.one_by_one = False

    # The end of the journal, and of the run

    def _at_end(self) -> None:
        """The journal is read to its end: finish, or say that nothing is owed."""
        if self._source.closed_as is not None or self._spec.once:
            self._finish()
        if self._feeder.is_settled:
            if self._saver.owes and self._drain_seen > self._status.drained:
                self._save()
            if not self._saver.owes:
                self._status.caught_up_ns = time.time_ns()
                self._status.drained = self._drain_seen
                self._show("up_to_date")
        self._drain_seen = max(self._channel.drain_wanted, self._spec.drain)

    def _finish(self) -> None:
        """Deliver what is held back, close the tracker and leave."""
        self._take(self._source.finish())
        closed_as = self._source.closed_as
        if closed_as is None and not self._spec.once:
            # Somebody joined in what was held back.
            return
        while not self._feeder.is_settled:
            wait = self._feeder.work(should_pause=self._should_pause, is_last=True)
            self._show()
            self._repeater.pause(wait)
        self._save()
        self._show()
        self._repeater.call("finish", lambda: self._session.finish(closed_as))
        self._saver.write_finished(closed_as)
        self._status.run_status = closed_as or ""
        self._status.caught_up_ns = time.time_ns()
        raise LeaveError(DONE, "finished" if closed_as is not None else "up_to_date")

    def _show(self, state: State | None = None) -> None:
        """Update the status; a new state is reported at once."""
        status, feeder = self._status, self._feeder
        self._shown_at = time.monotonic()
        status.ranks = self._ledger.balance(self._source.view)
        status.journal = self._source.journal_counts()
        status.lag_seconds = self._saver.lag_seconds
        status.retries = feeder.retries + self._repeater.failures
        status.failing_rows = feeder.failing
        status.last_error = feeder.last_error if feeder.is_retrying else status.last_error
        state = state or self._state(status)
        if state != status.state:
            status.state = state
            self._channel.push()

    def _state(self, status: SinkStatus) -> State:
        if self._feeder.is_blocked:
            return "blocked"
        if self._feeder.is_retrying:
            return "retrying"
        return "running" if self._saver.owes and self._session.is_started else status.state


__all__ = ["Loop"]
