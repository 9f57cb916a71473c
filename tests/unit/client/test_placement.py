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
from accelbus.journal.spool_file import SpoolFile

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


@pytest.mark.parametrize("durability", ["process", "memory"])
@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_no_file_is_left_where_a_spool_could_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, error: BaseException
) -> None:
    """Whatever it was: shared memory is small, and nobody else would remove it."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("accelbus.journal.spool_file.mmap.mmap", fail)
    with pytest.raises(type(error)):
        place(HELLO, durability=durability, tuning=Tuning(spool_dir=str(tmp_path)), wake=Wake())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("capacity", [-4096, 100, (1 << 27) + 4096])
def test_a_ring_of_no_possible_size_is_refused_before_there_is_a_file(tmp_path: Path, capacity: int) -> None:
    """Not after gigabytes were taken."""
    with pytest.raises(ValueError, match="whole pages"):
        SpoolFile(tmp_path / "a.spool", capacity=capacity, description=HELLO)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size, capacity", [(300_000, 73 * 4096), (3 * MIB + 5, 3 * MIB), (128 * MIB, 128 * MIB)])
@pytest.mark.parametrize("where", ["spool_dir", "disk"])
def test_rings_have_whole_pages_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, size: int, capacity: int
) -> None:
    """Any size within the bounds works."""
    monkeypatch.setattr("accelbus.client.placement.host.tmpfs_directory", lambda: None)
    monkeypatch.setattr("accelbus.client.placement.host.private_directory", lambda: tmp_path)
    monkeypatch.setattr(
        "accelbus.client.placement.os.statvfs", lambda _: os.statvfs_result((1, 1, 1 << 40, 1 << 40, 1 << 40, 0, 0, 0, 0, 255))
    )
    monkeypatch.setattr("accelbus.journal.spool_file._allocate", os.ftruncate)
    tuning = Tuning(spool_bytes=size, spool_min_bytes=size, spool_dir=str(tmp_path) if where == "spool_dir" else None)
    queue = place(HELLO, durability="process", tuning=tuning, wake=Wake()).queue
    assert isinstance(queue, Spool)
    assert queue.file.capacity == capacity
    queue.close(unlink=True)
