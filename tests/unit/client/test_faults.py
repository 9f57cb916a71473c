"""Counters of what was not kept."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelbus.client.faults import Faults
from accelbus.journal.spool_file import SpoolFile
from tests.unit.client.test_placement import HELLO

THREADS, CALLS = 6, 4000


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    """Threads change after a few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_switches")
def test_every_count_of_every_thread_is_kept_while_the_file_is_let_go(tmp_path: Path) -> None:
    """A run is finished by one thread while others log: their calls are counted in the file, or in memory, never in neither."""
    faults = Faults(strict=False)
    file = SpoolFile(tmp_path / "a.spool", capacity=0, description=HELLO)
    faults.keep_in(file)

    def work() -> None:
        for _ in range(CALLS):
            faults.count_silently("closed")

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    while faults.dropped().get("closed", 0) < CALLS:
        pass
    faults.keep_in(None)
    file.close(unlink=True)
    for thread in threads:
        thread.join()
    assert faults.dropped() == {"closed": THREADS * CALLS}


def test_counts_survive_the_file_and_not_a_fork(tmp_path: Path) -> None:
    """After the end they are what they were; a child begins with its own."""
    faults = Faults(strict=False)
    faults.keep_in(None)
    faults.count_silently("full")
    file = SpoolFile(tmp_path / "a.spool", capacity=0, description=HELLO)
    faults.keep_in(file)
    faults.count_silently("full")
    file.count_dropped("blocked")
    assert file.dropped() == {"full": 1, "blocked": 1}
    assert faults.dropped() == {"full": 2, "blocked": 1}
    faults.keep_in(None)
    file.close(unlink=True)
    faults.keep_in(None)
    faults.count_silently("closed")
    assert faults.dropped() == {"full": 2, "blocked": 1, "closed": 1}
    faults.forget_file()
    assert faults.dropped() == {}
