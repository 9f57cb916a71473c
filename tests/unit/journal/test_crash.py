"""Real processes: a writer that is killed while a reader follows it."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec

from accelbus.config import Tuning
from accelbus.journal.merge import JournalReader, ReaderState
from tests.support.journals import metrics, segments, uuid

WRITER = """
import sys, time
from pathlib import Path
from accelbus.config import Tuning
from accelbus.journal.segments import JournalWriter
from tests.support.journals import events_frame, uuid

directory, first = Path(sys.argv[1]), int(sys.argv[2])
with JournalWriter(directory, tuning=Tuning(segment_bytes=10_000)) as writer:
    for seq in range(first, 10**9, 3):
        mark = writer.append([events_frame(uuid(1), seq, seq + 1), events_frame(uuid(1), seq, seq + 2)])
        if mark % 1000 == 0:
            writer.sync()
        if mark % 20 == 0:
            time.sleep(0.002)  # a reader that starts anew all the while is no match for a writer without a pause
        print(seq + 2, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_returned_from(tmp_path):
    """SIGKILL twice in the middle of writing: every append that returned is read, once and in order, by a reader that is
    restarted from its state all the while.
    """
    tuning = Tuning(torn_hold=0)
    journal, acked = tmp_path / "journal", 0
    reader, found = JournalReader(journal, tuning=tuning), []
    deadline = time.monotonic() + 60
    for incarnation in range(2):
        command = [sys.executable, "-c", WRITER, str(journal / f"bus-{incarnation}"), str(acked + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            goal = int(process.stdout.readline()) + 700
            while len(found) < goal and time.monotonic() < deadline:
                found += reader.read(100)
                reader = JournalReader(
                    journal, msgspec.msgpack.decode(msgspec.msgpack.encode(reader.state()), type=ReaderState), tuning=tuning
                )
            process.kill()
            acked = int(process.stdout.read().splitlines()[-1])
        assert len(segments(journal / f"bus-{incarnation}")) > 2
    while items := reader.read(1000):
        found += items
    found += reader.finish()

    assert [item.seq for item in found] == list(range(1, len(found) + 1))
    assert len(found) >= acked > 1300
    assert all(item.event == metrics(uuid(1), item.seq) for item in found)
