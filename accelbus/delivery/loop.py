"""The life of a worker: read, hand over, save, until the run is closed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from accelbus.config import Tuning
from accelbus.delivery.channel import Channel, WorkerSpec
from accelbus.delivery.cursor import Cursor, read_cursor
from accelbus.delivery.deadletters import DeadLetters
from accelbus.delivery.feeder import Feeder, describe
from accelbus.delivery.ledger import Ledger, media_rows
from accelbus.delivery.making import Maker
from accelbus.delivery.mediaqueue import MediaQueue
from accelbus.delivery.repeating import DONE, RESTART, LeaveError, Repeater
from accelbus.delivery.resolution import Resolution
from accelbus.delivery.saving import Saver
from accelbus.delivery.session import Session
from accelbus.delivery.source import Batch, Source
from accelbus.delivery.status import SinkStatus, State
from accelbus.errors import CursorError, OutputGoneError
from accelbus.rundir import RunDir
from accelbus.tracking import GeneralTracker

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
        maker: of the tracker; not given: one that needs nothing but *spec*.
        on_started: called when the tracker has started.
    """

    def __init__(
        self,
        run_dir: RunDir,
        sink: str,
        spec: WorkerSpec,
        channel: Channel,
        maker: Maker | None = None,
        *,
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        self._spec = spec
        self._on_started = on_started
        self._channel = channel
        self._status = channel.status
        self._tuning = tuning = Tuning(**spec.tuning)
        cursor, self._is_resumed = self._read_cursor(run_dir, sink)
        self._status.url, self._status.dead_letters = cursor.url, cursor.dead_letters
        self._ledger = Ledger(cursor.ranks)
        letters = DeadLetters(run_dir.sink(sink), cursor.dead_letter_bytes)
        maker = maker or Maker(sink, spec.record, carried=spec.carried)
        self._session = Session(sink, run_dir, spec.record, maker, channel=channel, ledger=self._ledger, letters=letters)
        self._session.names_rows = self._session.names_media = spec.one_by_one
        self._source = Source(run_dir, cursor, tuning=tuning, sink=sink, options=spec.record.sink_options.get(sink))
        self._feeder = Feeder(self._session, tuning=tuning, monotonic=time.monotonic, deaths=spec.deaths, one_by_one=spec.one_by_one)
        # Media have a queue, a breaker and a judgement of their own: a store for files may be down while metrics are taken.
        self._media = MediaQueue(self._session, tuning=tuning, deaths=spec.deaths)
        owed = media_rows(cursor.media)
        self._ledger.queue(owed)
        self._media.add(owed)
        self._repeater = Repeater(channel, tuning, lambda: self._show("retrying"))
        self._saver = Saver(
            run_dir,
            cursor,
            spec,
            tuning=tuning,
            status=self._status,
            source=self._source,
            session=self._session,
            media=self._media,
            ledger=self._ledger,
            letters=letters,
            repeater=self._repeater,
        )
        self._resolution = Resolution(
            self._session.resolve_config,
            is_ready=self._is_configured,
            channel=channel,
            tuning=tuning,
            # Who delivers later has nobody that waits for it.
            is_wanted=spec.record.config_from == sink and not spec.once,
        )
        self._limit = _SMALLEST_READ if spec.one_by_one else _FIRST_READ
        self._shown_at = 0.0
        self._began_ns = time.time_ns()
        self._drain_seen = 0
        """Drain command that was known before the journal was last read to its end."""

    @property
    def tracker(self) -> GeneralTracker | None:
        """The tracker, once it has started."""
        return self._session.tracker

    def run(self) -> int:
        """Deliver until there is no reason to go on; return the exit code."""
        self._show()
        try:
            if not self._sleeps_on():
                self._start()
                while True:
                    self._turn()
        except OutputGoneError as gone:
            return self._leave(self._begin_again(gone))
        except LeaveError as leave:
            return self._leave(leave)
        return DONE

    def _begin_again(self, gone: OutputGoneError) -> LeaveError:
        """What was delivered is not there any more: let a fresh process deliver it again."""
        logger.error("%s", gone)
        self._status.last_error = describe(gone)
        self._status.cursor_resets += 1
        try:
            self._saver.begin_again()
        except LeaveError as leave:
            return leave
        except OSError as error:
            self._status.last_error = describe(error)
        return LeaveError(RESTART, "retrying")

    def _leave(self, leave: LeaveError) -> int:
        self._show(leave.state)
        return leave.code

    def _read_cursor(self, run_dir: RunDir, sink: str) -> tuple[Cursor, bool]:
        """Return the cursor, and whether there was one: it is written before the tracker is started for the first time."""
        try:
            cursor = read_cursor(run_dir.sink(sink))
        except CursorError as error:
            logger.error("%s; delivering everything again from the beginning", error)  # noqa: TRY400  the message says it all
            self._status.cursor_resets += 1
            return Cursor(), True
        return cursor or Cursor(), cursor is not None

    # Starting

    def _sleeps_on(self) -> bool:
        """Whether the tracker was finished and there is nothing more for it; the first thing wakes it."""
        finished_as = self._saver.cursor.finished_as
        if finished_as is None or not self._media.is_settled:
            return False
        self._session.check_output(self._saver.cursor.checkpoint)
        while self._read().items:
            if self._saver.owes:
                return False
        closed_as = self._source.closed_as
        if closed_as != finished_as and not (closed_as is None and self._spec.once):
            return False
        # What a gap holds back and what a view holds open would be owed for as long as nobody looks at it.
        self._take(self._source.finish())
        if self._saver.owes or self._source.closed_as != closed_as:
            return False
        self._saver.pass_over()
        self._status.run_status = finished_as
        self._show("finished" if closed_as is not None else "up_to_date")
        return True

    def _start(self) -> None:
        self._show("starting")
        if not self._is_resumed:
            self._saver.intend()
        self._repeater.call("start", self._try_to_start)
        self._saver.cursor.finished_as = None
        self._saver.started()
        self._on_started()
        self._feeder.largest_call = self._tuning.call_rows if self._session.takes_batches else 1
        self._show("running")

    def _try_to_start(self) -> None:
        # A start that failed may have made the tracker's run all the same.
        resumed, self._is_resumed = self._is_resumed, True
        self._session.start(self._saver.cursor.checkpoint, resumed=resumed)

    # The loop

    def _turn(self) -> None:
        """Read, hand over, save, wait."""
        batch = self._read() if self._wants_rows else None
        if batch is not None and batch.items:
            # Before the calls, which may take long, or hang.
            self._show()
        if self._channel.tell_wanted:
            self._channel.tell_wanted = False
            self._saver.tell_config_again()
        self._saver.tell_at_once()
        self._resolution.work()
        began = time.monotonic()
        wait = self._feeder.work(should_pause=self._should_pause)
        self._show()
        if self._feeder.is_settled and batch is not None and batch.items:
            self._adapt(time.monotonic() - began)
        media_wait = self._work_on_media()
        if self._feeder.is_settled and (self._saver.is_due() or (self._channel.is_stopping and self._saver.has_read)):
            self._save()
        if self._channel.is_stopping:
            raise LeaveError(DONE, "stopped")
        if batch is not None and (not batch.items or self._is_beyond(batch)):
            self._at_end()
            wait = min(wait, self._tuning.poll_interval) or self._tuning.poll_interval
        if not self._media.is_settled:
            wait = min(wait, media_wait)
        if wait:
            self._channel.wait(min(wait, self._tuning.poll_interval) if self._wants_rows else wait)

    @property
    def _wants_rows(self) -> bool:
        return self._feeder.wants_rows and self._media.waiting_bytes < self._tuning.media_waiting_bytes

    def _is_configured(self) -> bool:
        """Whether the tracker knows the configuration with which the run was started."""
        record = self._spec.record
        is_read = not record.has_config or self._source.statements.configured_ns >= record.created_ns
        return is_read and self._saver.has_told_config

    def _work_on_media(self, *, is_last: bool = False) -> float:
        """Hand over media for a moment, while no row waits; return the seconds until there may be more to do."""
        if self._media.is_settled or not (self._feeder.is_settled or self._feeder.is_retrying):
            return 0.0
        until = time.monotonic() + self._tuning.media_seconds
        waiting = self._media.waiting
        calls = count()

        def should_pause() -> bool:
            return next(calls) > 0 and (time.monotonic() > until or self._should_pause())

        wait = self._media.work(should_pause=should_pause, is_last=is_last)
        if self._media.waiting != waiting:
            self._saver.took_media()
        self._show()
        return wait

    def _read(self) -> Batch:
        """Read some items and put what they lead to on its way."""
        self._channel.enter("read")
        try:
            batch = self._source.read(self._limit)
        except OSError as error:
            self._status.last_error = describe(error)
            logger.warning("the journal cannot be read: %s", self._status.last_error)
            batch = Batch()
        self._channel.enter("idle")
        self._take(batch)
        return batch

    def _take(self, batch: Batch) -> None:
        self._ledger.queue(batch.rows)
        self._ledger.queue(batch.media)
        self._ledger.leave_out(batch.left_out)
        self._feeder.add(batch.rows)
        self._media.add(batch.media)
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
            # Whatever ended the worker before this one is behind the cursor, unless it is among the media that wait.
            self._session.names_rows = self._feeder.one_by_one = False
            self._session.names_media = self._session.names_media and not self._media.is_settled

    # The end of the journal, and of the run

    def _at_end(self) -> None:
        """The journal is read to its end: finish, or say that nothing is owed."""
        if self._source.closed_as is not None or self._spec.once:
            self._finish()
        if self._feeder.is_settled and self._media.is_settled:
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
        while not (self._feeder.is_settled and self._media.is_settled and self._saver.has_told_all):
            self._work_to_the_end()
        self._save()
        self._show()
        checkpoint = self._repeater.call("finish", lambda: self._session.finish(closed_as))
        self._saver.write_finished(closed_as, checkpoint)
        self._status.run_status = closed_as or ""
        self._status.caught_up_ns = time.time_ns()
        raise LeaveError(DONE, "finished" if closed_as is not None else "up_to_date")

    def _work_to_the_end(self) -> None:
        """Do what can be done now of what is left, then wait; nothing more is read."""
        wait = self._feeder.work(should_pause=self._should_pause, is_last=True)
        media_wait = self._work_on_media(is_last=True)
        self._saver.tell()
        # Only what was said about the run holds up its end: say so.
        self._show("retrying" if self._feeder.is_settled and self._media.is_settled and not self._saver.has_told_all else None)
        if self._feeder.is_settled and (self._saver.is_due() or self._channel.is_stopping):
            self._save()
        waits = [seconds for feeder, seconds in ((self._feeder, wait), (self._media, media_wait)) if not feeder.is_settled]
        if not self._saver.has_told_all:
            waits.append(self._tuning.poll_interval)
        self._repeater.pause(min(waits, default=0.0))

    def _show(self, state: State | None = None) -> None:
        """Update the status; a new state is reported at once."""
        status, feeder = self._status, self._feeder
        self._shown_at = time.monotonic()
        status.ranks = self._ledger.balance(self._source.view)
        status.journal = self._source.journal_counts()
        status.lag_seconds = self._saver.lag_seconds
        status.media_waiting = self._media.waiting
        status.retries = feeder.retries + self._media.retries + self._repeater.failures
        status.failing_rows = feeder.failing
        failing = next((each for each in (feeder, self._media) if each.is_retrying), None)
        status.last_error = failing.last_error if failing is not None else status.last_error
        state = state or self._state(status)
        if state != status.state:
            status.state = state
            self._channel.push()

    def _state(self, status: SinkStatus) -> State:
        if self._feeder.is_blocked:
            return "blocked"
        if self._feeder.is_retrying or self._media.is_retrying:
            return "retrying"
        is_running = (self._saver.owes or not self._media.is_settled) and self._session.is_started
        return "running" if is_running else status.state


__all__ = ["Loop"]
