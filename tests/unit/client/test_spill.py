"""Events that go to the run directory without a bus process."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from accelbus.client.pump import Spill
from accelbus.config import Tuning
from accelbus.journal.merge import JournalReader
from accelbus.journal.segments import JournalWriter
from tests.support.journals import events_frame, everything, seqs, uuid


def test_a_disk_that_does_not_sync_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second the same events are tried again, in a training process, perhaps for hours."""
    writers: list[JournalWriter] = []

    def make() -> JournalWriter:
        writers.append(JournalWriter(tmp_path / "spill", tuning=Tuning()))
        return writers[-1]

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    spill = Spill(make, max_bytes=10_000)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        for _ in range(50):
            with pytest.raises(OSError, match="broken"):
                spill.write([events_frame(uuid(1), 1, 5)])
    assert len(writers) == 1
    assert writers[0].unsynced_bytes < 2 * len(events_frame(uuid(1), 1, 5))
    assert spill.written == 0
    spill.write([events_frame(uuid(1), 1, 5)])
    assert spill.written > 0
    spill.close()
    assert seqs(everything(JournalReader(tmp_path, tuning=Tuning()))) == [1, 2, 3, 4, 5]
