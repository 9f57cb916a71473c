"""Make what was delivered durable, then move the cursor over it."""

from __future__ import annotations

import logging
import time

from accelbus.config import Tuning
from accelbus.delivery.channel import WorkerSpec
from accelbus.delivery.cursor import Cursor, write_cursor
from accelbus.delivery.deadletters import DeadLetters
from accelbus.delivery.feeder import describe, is_news
from accelbus.delivery.ledger import Ledger
from accelbus.delivery.ownership import is_newest
from accelbus.delivery.repeating import FENCED, LeaveError, Repeater
from accelbus.delivery.session import CONFIG, Session
from accelbus.delivery.source import Batch, Source
from accelbus.delivery.status import SinkStatus
from accelbus.rundir import RunDir

logger = logging.getLogger(__name__)

_IDLE_INTERVALS = 10


class Saver:
    """The cursor of one sink, and what has been read since it was written.

    Args:
        run_dir: of the run.
        cursor: the one that was read, or a new one; it is kept up to date.
        spec: whose generation counts.
        tuning: intervals.
        status: to be filled.
        source, session, ledger, letters: what a cursor is about.
        repeater: for the tracker's flush.
    """

    def __init__(
        self,
        run_dir: RunDir,
        cursor: Cursor,
        spec: WorkerSpec,
        *,
        tuning: Tuning,
        status: SinkStatus,
        source: Source,
        session: Session,
        ledger: Ledger,
        letters: DeadLetters,
        repeater: Repeater,
    ) -> None:
        self._directory = run_dir.sink(status.sink)
        self._generation = spec.generation
        self._tuning = tuning
        self._status = status
        self._source = source
        self._session = session
        self._ledger = ledger
        self._letters = letters
        self._repeater = repeater
        self.cursor = cursor
        # A fresh tracker object is given the configuration again.
        self._config_is_stored = cursor.config_is_stored and not cursor.config.values
        self._config_is_deadly = spec.deaths.get(CONFIG, 0) >= tuning.retries_alone
        self._config_failures = 0
        self._saved_at = time.monotonic()
        self._oldest_ns = 0
        self.owes = False
        """Rows or configuration were read that are not behind the cursor."""
        self.has_read = False
        """Anything was, if only the time."""

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest row that was read and is not behind the cursor."""
        return round(max(0.0, (time.time_ns() - self._oldest_ns) / 1e9), 3) if self._oldest_ns else 0.0

    def take_note(self, batch: Batch) -> None:
        """*batch* was read."""
        self.has_read = self.has_read or batch.items > 0
        if batch.rows or batch.config_changed:
            self.owes = True
            self._oldest_ns = self._oldest_ns or batch.oldest_ns
        self._config_is_stored = self._config_is_stored and not batch.config_changed

    def is_due(self) -> bool:
        """Whether it is time to save, once every row was taken."""
        if not self.has_read and not self.owes:
            return False
        # While rows come only now and then, each is durable at once; time alone moves the cursor less often.
        interval = self._tuning.cursor_interval if self.owes else _IDLE_INTERVALS * self._tuning.cursor_interval
        return time.monotonic() - self._saved_at >= interval

    def store_config(self) -> None:
        """Give the tracker the configuration if it has changed. Rows do not wait for it: a failure is repeated with the next save."""
        if self._config_is_stored:
            return
        if self._config_is_deadly:
            self._config_is_stored = True
            self._status.last_error = "workers died or hung on the configuration; it is left out"
            logger.error("%s", self._status.last_error)
            return
        try:
            self._session.store_config(self._source.config.values)
        except Exception as error:  # noqa: BLE001  isolation: whatever a tracker raises is retried, counted and reported
            self._config_failures += 1
            self._status.last_error = describe(error)
            if is_news(self._config_failures):
                logger.warning("configuration: %s (failure %d)", self._status.last_error, self._config_failures)
            # A configuration that is refused again and again is left as it is until it changes.
            self._config_is_stored = self._config_failures % self._tuning.failures_of_last_row == 0
            self.owes = self.owes or not self._config_is_stored
        else:
            self._config_is_stored = True
            self._config_failures = 0

    def save(self) -> None:
        """Flush the tracker and move the cursor. Every row read so far must have been taken or given up.

        Raises:
            LeaveError: somebody else owns the sink, or the flush kept failing.
        """
        self.store_config()
        if self._session.durable_after == "finish":
            # Nothing is durable before the end: a crash feeds everything again.
            self._saved_at = time.monotonic()
            self.owes = self.has_read = False
            return
        self.cursor.checkpoint = self._repeater.call("flush", self._session.flush)
        self._ledger.settle()
        self.write()

    def write_finished(self, status: str | None) -> None:
        """The tracker was finished: everything it took is durable."""
        self._ledger.settle()
        self.cursor.finished_as = status or ""
        while not self.write():
            self._repeater.pause(self._tuning.cursor_interval)

    def write(self) -> bool:
        """Write the cursor; return whether it could be written.

        Raises:
            LeaveError: somebody else owns the sink.
        """
        self._fill_cursor()
        if not is_newest(self._directory, self._generation):
            raise LeaveError(FENCED, "fenced")
        self._saved_at = time.monotonic()
        try:
            self._letters.sync()
            write_cursor(self._directory, self.cursor)
        except OSError as error:
            self._status.last_error = describe(error)
            logger.error("the cursor cannot be written: %s; trying again", self._status.last_error)  # noqa: TRY400
            return False
        self.has_read = False
        self.owes = not self._config_is_stored
        self._oldest_ns = 0
        return True

    def _fill_cursor(self) -> None:
        cursor = self.cursor
        self._source.save_to(cursor)
        cursor.generation = self._generation
        cursor.written_ns = time.time_ns()
        cursor.ranks = self._ledger.settled()
        cursor.config_is_stored = self._config_is_stored
        cursor.dead_letters = self._status.dead_letters
        cursor.dead_letter_bytes = self._letters.size
        cursor.url = self._status.url


__all__ = ["Saver"]
