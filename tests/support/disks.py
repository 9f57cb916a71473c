"""Disks without room, and disks that fail."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

MIB = 1024 * 1024
HOOKS = Path(__file__).with_name("hooks")


class Disk(Protocol):
    """Can be made full, and have room again."""

    def fill(self) -> None: ...
    def clear(self) -> None: ...


@contextmanager
def small_disk(at: Path, size: int) -> Iterator[Disk]:
    """Mount a disk of *size* bytes *at* a new directory; skips the test where nobody may mount anything."""
    at.mkdir(parents=True, mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(at)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode:
        pytest.skip(f"no mounting here ({done.stderr.strip()}); limits of the file size stand in for it")
    try:
        yield _Ballast(at / "ballast")
    finally:
        subprocess.run(["umount", "--lazy", str(at)], timeout=10, check=True)


class _Ballast:
    """A file that takes all the room there is."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self) -> None:
        with open(self._path, "ab", buffering=0) as file:
            for size in (MIB, 4096):
                while _writes(file.write, bytes(size)):
                    pass

    def clear(self) -> None:
        self._path.unlink()


class Limits:
    """Without mounting: the processes may write to no file, until they may again."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids

    def fill(self) -> None:
        self._set(0)

    def clear(self) -> None:
        self._set(resource.RLIM_INFINITY)

    def _set(self, limit: int) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def sync_faults(process: str, faults: int | Path) -> dict[str, str]:
    """Return the environment in which syncs of *process* fail so many times, or wait for a file; see the hook."""
    paths = [str(HOOKS), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SYNC_FAULTS": str(faults), "SYNC_FAULTS_IN": process}


def _writes(write: Callable[[bytes], int | None], data: bytes) -> bool:
    try:
        return write(data) == len(data)
    except OSError:
        return False
