"""Make what was delivered durable, then move the cursor over it."""

from __future__ import annotations

import logging
import time
from typing import Any

from accelbus.config import Tuning
from accelbus.delivery.channel import WorkerSpec
from accelbus.delivery.cursor import Cursor, write_cursor
from accelbus.delivery.deadletters import DeadLetters
from accelbus.delivery.feeder import describe
from accelbus.delivery.ledger import Ledger, owed_media
from accelbus.delivery.mediaqueue import MediaQueue
from accelbus.delivery.ownership import is_newest
from accelbus.delivery.repeating import FENCED, LeaveError, Repeater
from accelbus.delivery.session import Session
from accelbus.delivery.source import Batch, Source
from accelbus.delivery.statements import AT_ONCE, KINDS, Teller
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
        source, session, media, ledger, letters: what a cursor is about.
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
        media: MediaQueue,
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
        self._media = media
        self._ledger = ledger
        self._letters = letters
        self._repeater = repeater
        self.cursor = cursor
        # Nothing is known to a fresh tracker object: it is told everything again.
        deadly = [kind for kind in KINDS if spec.deaths.get(kind, 0) >= tuning.retries_alone]
        self._teller = Teller(
            source.statements,
            session.tell,
            session.give_up_statement,
            session.notice,
            known=(),
            deadly=deadly,
            tuning=tuning,
            status=status,
        )
        self._saved_at = time.monotonic()
        self._oldest_ns = 0
        self.owes = False
        """Something was read that is not behind the cursor, or the tracker is to be told something."""
        self.has_read = False
        """Anything was, if only the time."""

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest row that was read and is not behind the cursor."""
        return round(max(0.0, (time.time_ns() - self._oldest_ns) / 1e9), 3) if self._oldest_ns else 0.0

    @property
    def has_told_all(self) -> bool:
        """Whether the tracker was told all that ranks said about the run, or what was refused was left out."""
        return not self._teller.owes

    @property
    def has_told_config(self) -> bool:
        """Whether the tracker was told the configuration, or refused it."""
        return self._teller.has_told("config")

    def take_note(self, batch: Batch) -> None:
        """*batch* was read."""
        self.has_read = self.has_read or batch.items > 0
        if batch.rows or batch.media or batch.left_out or batch.changed:
            self.owes = True
            self._oldest_ns = self._oldest_ns or batch.oldest_ns
        self._teller.note(batch.changed)

    def intend(self) -> None:
        """Leave a cursor at the very beginning, before the tracker is started for the first time.

        A worker that is killed in that start may have made the tracker's run: the next one knows by the cursor that it may be there.

        Raises:
            LeaveError: somebody else owns the sink.
        """
        self._check_owner()
        try:
            write_cursor(self._directory, Cursor(generation=self._generation, written_ns=time.time_ns()))
        except OSError as error:
            # Delivery does not wait for room, see `write`; without this the next worker may know less.
            logger.warning("the cursor cannot be written before the start: %s", describe(error))

    def begin_again(self) -> None:
        """Forget how far delivery had come: the next worker feeds everything.

        Raises:
            LeaveError: somebody else owns the sink.
        """
        self._check_owner()
        write_cursor(self._directory, Cursor(generation=self._generation, written_ns=time.time_ns()))

    def started(self) -> None:
        """There is a fresh tracker object, which knows nothing."""
        self.owes = self.owes or self._teller.owes

    def took_media(self) -> None:
        """Media were taken, or given up, that the cursor still lists."""
        self.owes = self.has_read = True

    def is_due(self) -> bool:
        """Whether it is time to save, once every row was taken."""
        if not self.has_read and not self.owes:
            return False
        if self._media.waiting_bytes > self._tuning.media_cursor_bytes:
            return False
        # While rows come only now and then, each is durable at once; time alone moves the cursor less often.
        interval = self._tuning.cursor_interval if self.owes else _IDLE_INTERVALS * self._tuning.cursor_interval
        return time.monotonic() - self._saved_at >= interval

    def tell_config_again(self) -> None:
        """Tell the tracker the configuration, also an empty one."""
        self._teller.note({"config"})

    def tell_at_once(self) -> None:
        """Tell the tracker what rows should not come before. What fails is tried again later, rows do not wait."""
        self._teller.tell(AT_ONCE)

    def tell(self) -> None:
        """Tell the tracker all that it can be told now."""
        self._teller.tell()

    def save(self) -> None:
        """Flush the tracker and move the cursor. Every row read so far must have been taken or given up; media that were not are
        written into it.

        Raises:
            LeaveError: somebody else owns the sink, or the flush kept failing.
        """
        self._teller.tell()
        if self._session.durable_after == "finish":
            # Nothing is durable before the end: a crash feeds everything again.
            self._repeater.call("flush", self._session.settle_refusals)
            self._saved_at = time.monotonic()
            self.owes = self.has_read = False
            return
        self.cursor.checkpoint = self._repeater.call("flush", self._session.flush)
        self._ledger.settle()
        self.write()

    def write_finished(self, status: str | None, checkpoint: dict[str, Any]) -> None:
        """The tracker was finished, which left *checkpoint*: everything it took is durable."""
        self.cursor.checkpoint = checkpoint
        self._ledger.settle()
        self.cursor.finished_as = status or ""
        while not self.write():
            self._repeater.pause(self._tuning.cursor_interval)

    def pass_over(self) -> None:
        """The tracker was finished, and nothing that was read since is for it: move the cursor over that, or it would be owed for ever."""
        while self.has_read and not self.write():
            self._repeater.pause(self._tuning.cursor_interval)

    def write(self) -> bool:
        """Write the cursor; return whether it could be written.

        Raises:
            LeaveError: somebody else owns the sink.
        """
        self._fill_cursor()
        self._check_owner()
        self._saved_at = time.monotonic()
        try:
            self._letters.sync()
            write_cursor(self._directory, self.cursor)
        except OSError as error:
            self._status.last_error = describe(error)
            logger.error("the cursor cannot be written: %s; trying again", self._status.last_error)  # noqa: TRY400
            return False
        self.has_read = False
        self.owes = self._teller.owes
        self._oldest_ns = 0
        return True

    def _check_owner(self) -> None:
        if not is_newest(self._directory, self._generation):
            raise LeaveError(FENCED, "fenced")

    def _fill_cursor(self) -> None:
        cursor = self.cursor
        self._source.save_to(cursor)
        cursor.generation = self._generation
        cursor.written_ns = time.time_ns()
        cursor.ranks = self._ledger.settled()
        cursor.config_is_stored = self.has_told_all
        cursor.media = owed_media(self._media.owed())
        cursor.dead_letters = self._status.dead_letters
        cursor.dead_letter_bytes = self._letters.size
        cursor.url = self._status.url


__all__ = ["Saver"]
