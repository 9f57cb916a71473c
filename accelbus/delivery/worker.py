"""The process that feeds one tracker: ``python -P -m accelbus.delivery.worker RUN_DIR SINK``.

It follows the journal from the sink's cursor, lets the view merge the ranks, hands rows to the tracker, and moves the cursor when
the tracker has made them durable. It may be killed at any moment: the next one goes on from the cursor.

Exit codes: 0, what there was to do is done or it was told to leave (the last status says which); `FENCED`, a newer owner delivers;
`RESTART`, a fresh process should try again after a while; anything else, it died.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from accelbus.config import Tuning
from accelbus.delivery.channel import Channel, WorkerSpec, claim_pipes
from accelbus.delivery.cursor import Cursor, read_cursor, write_cursor
from accelbus.delivery.deadletters import DeadLetters
from accelbus.delivery.exclusion import exclude_others
from accelbus.delivery.feeder import Feeder, back_off, describe, is_news
from accelbus.delivery.ledger import Ledger
from accelbus.delivery.ownership import is_newest
from accelbus.delivery.session import Session
from accelbus.delivery.source import Batch, Source
from accelbus.delivery.status import SinkStatus, State
from accelbus.errors import CursorError
from accelbus.rundir import RunDir

logger = logging.getLogger(__name__)

FENCED: Final = 3
RESTART: Final = 75
_FIRST_READ: Final = 64
"""Items of the first read; adapted to how long they take to deliver."""
_SMALLEST_READ: Final = 16
_IDLE_INTERVALS: Final = 10
_SHOWN_EVERY: Final = 0.25
"""Seconds between two updates of the counts in the status while busy."""


class _LeaveError(Exception):
    """End this process with an exit code."""

    def __init__(self, code: int, state: State) -> None:
        super().__init__(code, state)
        self.code = code
        self.state = state


class Worker:
    """One run of the worker process."""

    def __init__(self, run_dir: RunDir, sink: str, spec: WorkerSpec, channel: Channel) -> None:
        self._directory = run_dir.sink(sink)
        self._spec = spec
        self._channel = channel
        self._status = channel.status
        self._tuning = Tuning(**spec.tuning)
        self._cursor = self._read_cursor()
        self._status.url, self._status.dead_letters = self._cursor.url, self._cursor.dead_letters
        self._ledger = Ledger(self._cursor.ranks)
        self._letters = DeadLetters(self._directory, self._cursor.dead_letter_bytes)
        self._session = Session(sink, run_dir, spec.record, channel=channel, ledger=self._ledger, letters=self._letters)
        self._session.names_rows = spec.one_by_one
        self._source = Source(run_dir, self._cursor, tuning=self._tuning)
        self._feeder: Feeder | None = None
        self._failures = 0
        """Of start, flush or finish, in a row."""
        self._calls_failed = 0
        self._config_failures = 0
        """In a row; after some the configuration is left as it is until it changes."""
        self._limit = _SMALLEST_READ if spec.one_by_one else _FIRST_READ
        self._config_is_stored = self._cursor.config_is_stored
        self._saved_at = time.monotonic()
        self._shown_at = 0.0
        self._began_ns = time.time_ns()
        self._oldest_unsaved_ns = 0
        self._owes = False
        """Rows or configuration were read that are not behind the cursor."""
        self._has_read = False
        """Anything was, if only the time."""

    def run(self) -> int:
        """Deliver until there is no reason to go on; return the exit code."""
        self._show()
        try:
            if self._cursor.finished_as is None or not self._sleeps_on(self._cursor.finished_as):
                self._start_tracker()
                self._deliver()
        except _LeaveError as leave:
            self._status.state = leave.state
            self._show()
            return leave.code
        return 0

    def _read_cursor(self) -> Cursor:
        try:
            return read_cursor(self._directory) or Cursor()
        except CursorError as error:
            logger.error("%s; delivering everything again from the beginning", error)  # noqa: TRY400  the message says it all
            self._status.cursor_resets += 1
            return Cursor()

    def _sleeps_on(self, finished_as: str) -> bool:
        """Look, for a tracker that was finished, whether there is anything for it; the first thing wakes it."""
        while True:
            batch = self._source.read(self._limit)
            if batch.rows or batch.config_changed:
                self._first_batch = batch
                return False
            if not batch.items:
                break
        closed_as = self._source.closed_as
        if closed_as != finished_as and not (closed_as is None and self._spec.once):
            return False
        self._status.run_status = finished_as
        self._show("finished" if closed_as is not None else "up_to_date")
        return True

    _first_batch: Batch | None = None

    # Starting

    def _start_tracker(self) -> None:
        self._status.state = "starting"
        while True:
            try:
                self._session.start(self._cursor.checkpoint)
            except Exception as error:  # noqa: BLE001  isolation: whatever a tracker raises is retried, counted and reported
                self._failed("start", error)
            else:
                break
        self._failures = 0
        self._cursor.finished_as = None
        self._show("running")
        self._config_is_stored = self._config_is_stored and not self._source.config.values
        largest = self._tuning.call_rows if self._session.takes_batches else 1
        self._feeder = Feeder(
            self._session,
            tuning=self._tuning,
            monotonic=time.monotonic,
            deaths=self._spec.deaths,
            one_by_one=self._spec.one_by_one,
            largest_call=largest,
        )
        if self._first_batch is not None:
            self._take(self._first_batch)

    def _failed(self, what: str, error: Exception) -> None:
        """Wait before *what* is repeated, or leave for a fresh process."""
        self._failures += 1
        self._calls_failed += 1
        self._status.last_error = describe(error)
        logger.warning("%s: %s (failure %d)", what, self._status.last_error, self._failures, exc_info=self._failures == 1)
        self._show("retrying")
        if self._failures >= self._tuning.restart_after_failures:
            raise _LeaveError(RESTART, "retrying")
        self._channel.enter("idle")
        self._pause(back_off(self._failures, self._tuning))

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._channel.wait(left)
            if self._channel.is_stopping:
                raise _LeaveError(0, "stopped")

    # The loop

    def _deliver(self) -> None:
        while True:
            batch = self._read() if self._feeds.wants_rows else None
            began = time.monotonic()
            wait = self._feeds.work(should_pause=self._should_pause)
            self._show()
            if self._channel.is_stopping:
                self._save_if_settled()
                raise _LeaveError(0, "stopped")
            if batch is not None and batch.items and self._feeds.is_settled:
                self._adapt(time.monotonic() - began)
            if self._save_is_due():
                self._save()
            if batch is not None and (not batch.items or self._is_beyond(batch)):
                self._at_end()
                self._channel.wait(min(wait or self._tuning.poll_interval, self._tuning.poll_interval))
            elif wait:
                self._channel.wait(min(wait, self._tuning.poll_interval) if self._feeds.wants_rows else wait)

    def _is_beyond(self, batch: Batch) -> bool:
        """Whether a worker that delivers what is there has read more than was there: a busy run never comes to an end."""
        return self._spec.once and batch.oldest_ns > self._began_ns

    @property
    def _feeds(self) -> Feeder:
        assert self._feeder is not None
        return self._feeder

    def _should_pause(self) -> bool:
        if time.monotonic() - self._shown_at > _SHOWN_EVERY:
            self._show()
        return self._channel.is_stopping

    def _read(self) -> Batch:
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
        """Put what was read on its way."""
        self._ledger.queue(batch.rows)
        self._feeds.add(batch.rows)
        self._has_read = self._has_read or batch.items > 0
        if batch.rows or batch.config_changed:
            self._owes = True
            self._oldest_unsaved_ns = self._oldest_unsaved_ns or batch.oldest_ns
        self._config_is_stored = self._config_is_stored and not batch.config_changed
        if not self._config_is_stored:
            self._store_config()

    def _store_config(self) -> None:
        """Give the tracker the whole configuration. Rows do not wait for it: a failure is repeated with the next saves."""
        try:
            self._session.store_config(self._source.config.values)
        except Exception as error:  # noqa: BLE001  isolation: whatever a tracker raises is retried, counted and reported
            self._calls_failed += 1
            self._config_failures += 1
            self._status.last_error = describe(error)
            if is_news(self._config_failures):
                logger.warning("configuration: %s (failure %d)", self._status.last_error, self._config_failures)
            self._config_is_stored = self._config_failures % self._tuning.failures_of_last_row == 0
            self._owes = self._owes or not self._config_is_stored
        else:
            self._config_is_stored = True
            self._config_failures = 0

    def _adapt(self, seconds: float) -> None:
        """Read as much at once as can be delivered between two cursors."""
        if seconds > self._tuning.cursor_interval:
            self._limit = max(_SMALLEST_READ, self._limit // 2)
        elif seconds < self._tuning.cursor_interval / 4 and not self._session.names_rows:
            self._limit = min(self._tuning.read_events, self._limit * 2)

    def _at_end(self) -> None:
        """The journal is read to its end: finish, or say that nothing is owed."""
        if self._source.closed_as is not None or self._spec.once:
            self._finish()
        if self._feeds.is_settled and self._save_to_catch_up():
            self._status.caught_up_ns = time.time_ns()
            self._status.drained = self._drain_seen
            self._show("up_to_date")
        self._drain_seen = max(self._channel.drain_wanted, self._spec.drain)

    _drain_seen: int = 0
    """Drain command that was known before the journal was last read to its end."""

    def _save_to_catch_up(self) -> bool:
        """Return whether nothing is owed, saving early if a drain waits for it."""
        if self._owes and self._drain_seen > self._status.drained:
            self._save()
        return not self._owes

    # Saving

    def _save_is_due(self) -> bool:
        if not self._has_read or not self._feeds.is_settled:
            return False
        # While rows come only now and then, each is durable at once; time alone moves the cursor less often.
        interval = self._tuning.cursor_interval if self._owes else _IDLE_INTERVALS * self._tuning.cursor_interval
        return time.monotonic() - self._saved_at >= interval

    def _save_if_settled(self) -> None:
        if self._has_read and self._feeds.is_settled:
            self._save()

    def _save(self) -> None:
        """Make everything durable, then move the cursor. Leaves if somebody else owns the sink."""
        if not self._config_is_stored:
            self._store_config()
        if self._session.durable_after == "finish":
            # Nothing is durable before the end: a crash feeds everything again.
            self._saved_at = time.monotonic()
            self._owes = self._has_read = False
            return
        self._cursor.checkpoint = self._repeat("flush", self._session.flush)
        self._ledger.settle()
        self._write_cursor()

    def _repeat(self, what: str, call: Callable[[], Any]) -> Any:
        """Return what *call* returns, repeating it while it fails."""
        while True:
            try:
                result = call()
            except Exception as error:  # noqa: BLE001  isolation: whatever a tracker raises is retried, counted and reported
                self._failed(what, error)
            else:
                self._failures = 0
                return result

    def _write_cursor(self) -> None:
        self._source.save_to(self._cursor)
        cursor = self._cursor
        cursor.generation = self._spec.generation
        cursor.written_ns = time.time_ns()
        cursor.ranks = self._ledger.settled()
        cursor.config_is_stored = self._config_is_stored
        cursor.dead_letters = self._status.dead_letters
        cursor.dead_letter_bytes = self._letters.size
        cursor.url = self._status.url
        if not is_newest(self._directory, self._spec.generation):
            raise _LeaveError(FENCED, "fenced")
        self._saved_at = time.monotonic()
        try:
            self._letters.sync()
            write_cursor(self._directory, cursor)
        except OSError as error:
            self._status.last_error = describe(error)
            logger.error("the cursor cannot be written: %s; trying again", self._status.last_error)  # noqa: TRY400
            return
        self._has_read = False
        self._owes = not self._config_is_stored
        self._oldest_unsaved_ns = 0
        self._session.names_rows = self._feeds.one_by_one = False

    # Finishing

    def _finish(self) -> None:
        """Deliver what is held back, close the tracker and leave."""
        self._take(self._source.finish())
        closed_as = self._source.closed_as
        if closed_as is None and not self._spec.once:
            # Somebody joined in what was held back.
            return
        while not self._feeds.is_settled:
            wait = self._feeds.work(should_pause=self._should_pause, is_last=True)
            self._show()
            self._pause(min(wait, self._tuning.poll_interval) if wait else 0.0)
            if self._channel.is_stopping:
                raise _LeaveError(0, "stopped")
        self._save()
        self._show()
        self._repeat("finish", lambda: self._session.finish(closed_as))
        self._ledger.settle()
        self._cursor.finished_as = closed_as or ""
        self._status.run_status = closed_as or ""
        self._status.caught_up_ns = time.time_ns()
        self._has_read = True
        while self._has_read:
            self._write_cursor()
            if self._has_read:
                self._pause(self._tuning.cursor_interval)
        raise _LeaveError(0, "finished" if closed_as is not None else "up_to_date")

    # Showing

    def _show(self, state: State | None = None) -> None:
        """Update the status; a new state is reported at once."""
        status, feeder = self._status, self._feeder
        self._shown_at = time.monotonic()
        status.ranks = self._ledger.balance(self._source.view)
        status.journal = self._source.journal_counts()
        status.lag_seconds = round(max(0.0, (time.time_ns() - self._oldest_unsaved_ns) / 1e9), 3) if self._oldest_unsaved_ns else 0.0
        if feeder is not None:
            status.retries = feeder.retries + self._calls_failed
            status.failing_rows = feeder.failing
            status.last_error = feeder.last_error if feeder.is_retrying else status.last_error
            if state is None:
                state = "blocked" if feeder.is_blocked else "retrying" if feeder.is_retrying else "running" if self._owes else status.state
        if state is not None and state != status.state:
            status.state = state
            self._channel.push()


def main(arguments: list[str]) -> int:
    """Run as a process; returns the exit code."""
    directory, sink = arguments
    commands, reports = claim_pipes()
    run_dir = RunDir(Path(directory))
    status = SinkStatus(sink=sink, pid=os.getpid())
    channel = Channel(commands, reports, status)
    spec = channel.read_spec()
    tuning = Tuning(**spec.tuning)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _settle_process(tuning)
    status.generation = spec.generation
    channel.open(interval=tuning.status_interval / 2)
    channel.enter("start")
    run_dir.sink(sink).mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        exclude_others(run_dir.sink(sink), patience=tuning.exclusion_patience, timeout=tuning.start_deadline / 2)
    except TimeoutError as error:
        status.last_error = describe(error)
        status.state, status.leaving = "retrying", RESTART
        channel.push_now()
        return RESTART
    status.leaving = Worker(run_dir, sink, spec, channel).run()
    # What a tracker leaves to the end of the interpreter has a deadline too.
    channel.enter("finish")
    channel.push_now()
    return status.leaving


def _stay(number: int, _: object) -> None:
    logger.info("signal %d is left to the supervisor", number)


def _settle_process(tuning: Tuning) -> None:
    """Undo what the training process or its launcher left behind: signals, core binding; give way to training."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # A batch system that ends a job signals every process in it; the supervisor decides when this one leaves. Handlers and not
    # SIG_IGN, which a tracker's own processes would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stay)
    if hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        except OSError as error:
            logger.debug("core binding stays: %s", error)
    os.nice(tuning.worker_nice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
