"""The journal as the bus process writes it: append, sync, and what may be acked when."""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from accelbus import frame, host
from accelbus.config import Tuning
from accelbus.events import Record, Tick
from accelbus.journal.segments import JournalWriter

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode


class Ledger:
    """One writer's part of a run's journal. Trouble with the disk is said once, training never notices, and it goes on when it can."""

    def __init__(self, journal: Path, *, tuning: Tuning) -> None:
        self.incarnation = uuid.uuid4().bytes
        self.ack_after_sync = True
        """An ack promises a durable event; the usual ack promises one that is written, and durable half a second later."""
        self._tuning = tuning
        name = f"bus-{host.name()}-{self.incarnation.hex()[:12]}"
        self._writer = JournalWriter(journal / name, tuning=tuning, local=not host.is_on_network(journal))
        self._records: list[bytes] = []
        self._written: list[bytes] = []
        self._record_seq = 1
        self._appending = anyio.Lock()
        self._syncing = anyio.Lock()
        self._is_failing = self._append_failed = self._sync_failed = False
        self._retry_at = float("-inf")
        self.appended_at = time.monotonic()
        self.events_at = float("-inf")
        self.disk_errors = 0
        self.events = 0

    @property
    def is_failing(self) -> bool:
        """The disk refused a write or sync, and nothing was made durable since."""
        return self._is_failing

    def record(self, event: Record) -> None:
        """Add what the bus process knows; written with the next `append`, or by `append` with nothing."""
        self._records.append(_encode(event))

    def expect_events(self) -> None:
        """Somebody has written events that do not come through here: views may be waiting for time to pass."""
        self.events_at = time.monotonic()

    async def append(self, frames: list[bytes], events: int = 0) -> bool:
        """Write *frames* and the records so far; True when they may be acked.

        False: the disk refuses, or a sync that must come first failed. Whoever sent the frames still has them and sends them
        again.
        """
        async with self._appending:
            if time.monotonic() < self._retry_at or not await self._has_room():
                return False
            everything = [*self._take_records(), *frames]
            if not everything:
                return True
            try:
                mark = await anyio.to_thread.run_sync(self._writer.append, everything)
            except OSError as error:
                self._give_back_records(len(everything) - len(frames))
                self._append_failed = True
                self._fail("written", error)
                return False
            self._append_failed = False
            self._written = []
        self.appended_at = time.monotonic()
        if frames and (self.ack_after_sync or self._is_full) and not (await self.sync() and self._writer.synced_mark >= mark):
            return False
        if events:
            self.events += events
            self.events_at = self.appended_at
        return True

    @property
    def _is_full(self) -> bool:
        return self._writer.unsynced_bytes > self._tuning.unsynced_bytes

    async def _has_room(self) -> bool:
        """What is written and not durable is kept in memory: while the disk does not confirm, nothing is added to it."""
        return not (self._sync_failed or self._is_full) or await self.sync()

    async def sync(self) -> bool:
        """Make everything written so far durable; False when the disk refused. Concurrent callers share one sync."""
        wanted = self._writer.mark
        async with self._syncing:
            if self._writer.synced_mark >= wanted:
                return True
            try:
                await anyio.to_thread.run_sync(self._writer.sync)
            except OSError as error:
                self._sync_failed = True
                self._fail("synced", error)
                return False
            self._sync_failed = False
            self._recover()
            return True

    async def keep_synced(self) -> None:
        """Sync at the interval that ``durability="process"`` promises."""
        while True:
            await anyio.sleep(self._tuning.sync_interval)
            if self._writer.synced_mark < self._writer.mark and time.monotonic() >= self._retry_at:
                await self.sync()

    async def keep_time(self) -> None:
        """Write ticks while a view may be waiting for time to pass; every row carries the time, so traffic needs none."""
        tuning = self._tuning
        while True:
            await anyio.sleep(tuning.tick_interval)
            now = time.monotonic()
            if self._is_failing:
                continue
            quiet = now - self.events_at
            # Open points wait for late_after, gaps in a sequence for gap_hold: those are rare and may be told the time less often.
            due = tuning.tick_interval if quiet < tuning.late_after + 4 * tuning.tick_interval else tuning.gap_hold / 5
            if quiet < 2 * tuning.gap_hold and now - self.appended_at >= due * 0.9:
                self.record(Tick(time.time_ns()))
                await self.append([])

    def close(self) -> None:
        """Sync and close; what the disk refuses even now is said."""
        try:
            self._writer.close()
        except OSError as error:
            owed = self._writer.mark - self._writer.synced_mark
            _log.error("the last %d rows of the journal may not be on disk (%s)", owed, error)

    def statistics(self) -> dict[str, int]:
        return {"events": self.events, "disk_errors": self.disk_errors, "unsynced_bytes": self._writer.unsynced_bytes}

    def _take_records(self) -> list[bytes]:
        self._written = self._records
        self._records = []
        if not self._written:
            return []
        body = frame.join_events(self._written, len(self._written))
        packed = frame.pack(frame.RECORDS, body, producer=self.incarnation, first_seq=self._record_seq, count=len(self._written))
        self._record_seq += len(self._written)
        return [packed]

    def _give_back_records(self, frames: int) -> None:
        if frames:
            self._record_seq -= len(self._written)
            self._records = self._written + self._records
        self._written = []

    def _fail(self, verb: str, error: OSError) -> None:
        if not self._is_failing:
            _log.error("the journal cannot be %s (%s); events stay with their ranks until it works again", verb, error)
        self._is_failing = True
        self._retry_at = time.monotonic() + self._tuning.disk_retry_interval
        self.disk_errors += 1

    def _recover(self) -> None:
        # A sync says nothing about room for more.
        if self._is_failing and not self._append_failed:
            _log.warning("the journal works again")
            self._is_failing = False
