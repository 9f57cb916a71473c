"""Where spools go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from accelbus import host
from accelbus.client.placement import place
from accelbus.client.pump import Wake
from accelbus.config import MIB, Tuning
from accelbus.control import Hello
from accelbus.journal.spool import Spool

HELLO = Hello(
    producer=bytes(16), run_id="run", run_dir="/nowhere/run", rank=0, world_size=2, local_rank=0, local_world_size=2, host=host.name(), pid=1,
    role="trainer", launch=b"L" * 16, launcher="", base_seq=1, last_seq=0,
)  # fmt: skip
IS_LOCKED = """
import fcntl, os, sys
try:
    fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("locked")
"""


def placed(directory: Path, number: int, **changes: object) -> Spool:
    """Return the ring of one more producer in *directory*."""
    hello = msgspec.structs.replace(HELLO, producer=number.to_bytes(16, "big"), **changes)
    found = place(hello, durability="process", tuning=Tuning(spool_dir=str(directory)), wake=Wake())
    assert isinstance(found.queue, Spool)
    return found.queue


def is_locked(spool: Spool) -> bool:
    """Whether another process finds the spool's producer alive."""
    return subprocess.run([sys.executable, "-c", IS_LOCKED, str(spool.file.path)], capture_output=True, check=True).stdout == b"locked\n"


def test_looking_at_other_spools_leaves_the_locks_of_this_process_alone(tmp_path: Path) -> None:
    """A record lock goes with any descriptor of its file: a second producer in a process must not take the first for dead."""
    first = placed(tmp_path, 1)
    second = placed(tmp_path, 2)
    assert is_locked(first)
    assert is_locked(second)
    first.close(unlink=True)
    assert is_locked(second)
    second.close(unlink=True)


@pytest.mark.parametrize("launch, capacity", [(b"L" * 16, 4 * MIB), (b"M" * 16, 2 * MIB)])
def test_only_rings_of_this_launch_count_as_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: bytes, capacity: int) -> None:
    """All rings of a launch share a quarter of what was free before the first; those of others are what is not free."""
    free = [16 * MIB]

    class Free:
        f_frsize = 1

        @property
        def f_bavail(self) -> int:
            return free[0]

    monkeypatch.setattr("accelbus.client.placement.os.statvfs", lambda _: Free())
    first = placed(tmp_path, 1, local_world_size=1)
    assert first.file.capacity == 4 * MIB
    free[0] -= first.file.path.stat().st_blocks * 512
    first.close(unlink=False)
    second = placed(tmp_path, 2, launch=launch, local_world_size=1)
    assert second.file.capacity == capacity
    second.close(unlink=True)


def test_an_unfinished_spool_takes_room_as_long_as_its_producer_may_be_making_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After that it is removed by the next one that looks for room."""
    monkeypatch.setattr(
        "accelbus.client.placement.os.statvfs", lambda _: os.statvfs_result((4096, 4096, 4096, 4096, 4096, 0, 0, 0, 0, 255))
    )
    made = tmp_path / f"{99:032x}.spool"
    made.write_bytes(bytes(16 * MIB))
    young = placed(tmp_path, 1)
    assert made.exists()
    os.utime(made, (0, 0))
    old = placed(tmp_path, 2)
    assert not made.exists()
    assert young.file.capacity > old.file.capacity
    for spool in (young, old):
        spool.close(unlink=True)
