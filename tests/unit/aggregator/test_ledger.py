"""The journal as the bus process writes it, over disks that fail."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from accelbus.aggregator.ledger import Ledger
from accelbus.config import Tuning
from accelbus.events import RunClosed
from accelbus.journal.merge import JournalReader
from tests.support.journals import events_frame, everything, seqs, uuid

TUNING = Tuning(disk_retry_interval=0.0)
PRODUCER = uuid(1)


class Disk:
    """Refuses what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = self.loses_syncs = False
        self._writev, self._fdatasync = os.writev, os.fdatasync
        monkeypatch.setattr(os, "writev", self._write)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _write(self, *arguments: object) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "full")
        return self._writev(*arguments)  # type: ignore[arg-type]

    def _sync(self, descriptor: int) -> None:
        if self.loses_syncs:
            raise OSError(errno.EIO, "broken")
        self._fdatasync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path, tuning=TUNING)
    made.ack_after_sync = False
    return made


def stored(tmp_path: Path) -> list[int]:
    """Sequence numbers of the producer in the journal."""
    return seqs(everything(JournalReader(tmp_path, tuning=TUNING)), PRODUCER)


async def test_until_somebody_says_otherwise_an_ack_waits_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    """The settings may come later than the first events, and may promise more."""
    ledger = Ledger(tmp_path, tuning=TUNING)
    disk.loses_syncs = True
    assert not await ledger.append([events_frame(PRODUCER, 1, 3)], 3)
    disk.loses_syncs = False
    assert await ledger.append([events_frame(PRODUCER, 1, 3)], 3)
    assert ledger.statistics()["events"] == 3
    assert ledger.statistics()["unsynced_bytes"] == 0


async def test_a_full_disk_is_said_once_and_records_are_kept_in_order(
    tmp_path: Path, ledger: Ledger, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """A sync of what was written before says nothing about room: it is no recovery."""
    caplog.set_level(logging.INFO)
    assert await ledger.append([events_frame(PRODUCER, 1, 3)], 3)
    disk.is_full = True
    for status in ("failed", "killed", "lost"):
        ledger.record(RunClosed(1, status))
        assert not await ledger.append([events_frame(PRODUCER, 4, 6)], 3)
        assert await ledger.sync()
        assert ledger.is_failing
    disk.is_full = False
    assert await ledger.append([events_frame(PRODUCER, 4, 6)], 3)
    assert await ledger.sync()
    assert not ledger.is_failing
    assert [record.message.split(" (")[0] for record in caplog.records] == ["the journal cannot be written", "the journal works again"]
    items = everything(JournalReader(tmp_path, tuning=TUNING))
    assert [item.event.status for item in items if isinstance(item.event, RunClosed)] == ["failed", "killed", "lost"]
    assert seqs(items, PRODUCER) == [1, 2, 3, 4, 5, 6]


async def test_while_syncs_fail_nothing_is_added_to_what_memory_has_to_keep(tmp_path: Path, ledger: Ledger, disk: Disk) -> None:
    """Ranks send again and again; each try must not cost memory, and everything is written once more in the end."""
    assert await ledger.append([events_frame(PRODUCER, 1, 3)], 3)
    disk.loses_syncs = True
    assert not await ledger.sync()
    before = ledger.statistics()["unsynced_bytes"]
    for _ in range(100):
        assert not await ledger.append([events_frame(PRODUCER, 4, 6)], 3)
    assert ledger.statistics()["unsynced_bytes"] == before
    disk.loses_syncs = False
    assert await ledger.append([events_frame(PRODUCER, 4, 6)], 3)
    assert await ledger.sync()
    assert not ledger.is_failing
    assert stored(tmp_path) == [1, 2, 3, 4, 5, 6]


async def test_more_than_memory_may_keep_is_synced_before_it_is_acked(tmp_path: Path, disk: Disk) -> None:
    """With ``durability="process"`` too: what is acked and not yet durable has a bound."""
    ledger = Ledger(tmp_path, tuning=Tuning(disk_retry_interval=0.0, unsynced_bytes=500))
    ledger.ack_after_sync = False
    disk.loses_syncs = True
    seq = 1
    while await ledger.append([events_frame(PRODUCER, seq, seq)], 1):
        seq += 1
        assert seq < 100
    assert ledger.statistics()["unsynced_bytes"] < 1000
    disk.loses_syncs = False
    assert await ledger.append([events_frame(PRODUCER, seq, seq)], 1)
    assert stored(tmp_path) == list(range(1, seq + 1))


async def test_closing_over_a_broken_disk_says_what_may_be_missing(ledger: Ledger, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    """The last chance of the bus process; it leaves all the same."""
    assert await ledger.append([events_frame(PRODUCER, 1, 3)], 3)
    disk.loses_syncs = True
    ledger.close()
    assert "the last 1 rows of the journal may not be on disk" in caplog.text
