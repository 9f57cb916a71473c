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

    def __init__(self, journal: Path, *, ack_after_sync: bool, tuning: Tuning) -> None:
        self.incarnation = uuid.uuid4().bytes
        self._tuning = tuning
        self._ack_after_sync = ack_after_sync
        self._writer = JournalWriter(journal / f"bus-{host.name()}-{self.incarnation.hex()[:12]}", tuning=tuning)
        self._records: list[bytes] = []
        self._written: list[bytes] = []
        self._record_seq = 1
        self._appending = anyio.Lock()
        self._syncing = anyio.Lock()
        self._failed_at: float | None = None
        self.appended_at = time.monotonic()
        self.events_at = float("-inf")
        self.disk_errors = 0
        self.events = 0

    @property
    def is_failing(self) -> bool:
        """The disk refused the last write or sync."""
        return self._failed_at is not None

    def record(self, event: Record) -> None:
        """Add what the bus process knows; written with the next `append`, or by `append` with nothing."""
        self._records.append(_encode(event))

    async def append(self, frames: list[bytes], events: int = 0) -> bool:
        """Write *frames* and the records so far; True when they may be acked.

        False: the disk refuses, or a sync that must come first failed. Whoever sent the frames still has them and sends them
        again.
        """
        async with self._appending:
            if self._failed_at is not None and time.monotonic() - self._failed_at < self._tuning.disk_retry_interval:
                return False
            everything = [*self._take_records(), *frames]
            if not everything:
                return True
            try:
                mark = await anyio.to_thread.run_sync(self._writer.append, everything)
            except OSError as error:
                self._give_back_records(len(everything) - len(frames))
                self._fail("written", error)
                return False
            self._written = []
        self._recover()
        self.appended_at = time.monotonic()
        if events:
            self.events += events
            self.events_at = self.appended_at
        if self._ack_after_sync or self._writer.unsynced_bytes > self._tuning.unsynced_bytes:
            return await self.sync() and self._writer.synced_mark >= mark
        return True

    async def sync(self) -> bool:
        """Make everything written so far durable; False when the disk refused. Concurrent callers share one sync."""
        wanted = self._writer.mark
        async with self._syncing:
            if self._writer.synced_mark >= wanted:
                return True
            try:
                await anyio.to_thread.run_sync(self._writer.sync)
            except OSError as error:
                self._fail("synced", error)
                return False
            self._recover()
            return True

    async def keep_synced(self) -> None:
        """Sync at the interval that ``durability="process"`` promises."""
        while True:
            await anyio.sleep(self._tuning.sync_interval)
            if self._writer.synced_mark < self._writer.mark or self.is_failing:
                await self.sync()

    async def keep_time(self) -> None:
        """Write ticks while a view may be waiting for time to pass; every row carries the time, so traffic needs none."""
        tuning = self._tuning
        while True:
            await anyio.sleep(tuning.tick_interval)
            now = time.monotonic()
            waiting = now - self.events_at < tuning.late_after + 4 * tuning.tick_interval
            if waiting and now - self.appended_at >= tuning.tick_interval * 0.9:
                self.record(Tick(time.time_ns()))
                await self.append([])

    def close(self) -> None:
        self._writer.close()

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
        if self._failed_at is None:
            _log.error("the journal cannot be %s (%s); events stay with their ranks until it works again", verb, error)
        self._failed_at = time.monotonic()
        self.disk_errors += 1

    def _recover(self) -> None:
        if self._failed_at is not None:
            _log.warning("the journal works again")
            self._failed_at = None
