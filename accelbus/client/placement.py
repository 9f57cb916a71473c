"""Where a producer's spool goes: tmpfs if it fits, else a disk, else memory."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from accelbus import host
from accelbus.client.pump import Wake
from accelbus.config import MIB, Tuning
from accelbus.control import Hello
from accelbus.errors import ConfigurationError, SpoolError
from accelbus.journal.memory_queue import MemoryQueue
from accelbus.journal.salvage import open_spool, read_description
from accelbus.journal.spool import Spool
from accelbus.journal.spool_file import PAGE, SpoolFile, is_open_here
from accelbus.journal.spool_places import remove_abandoned

_log = logging.getLogger(__name__)
_SHARE = 4
"""All rings of the node together take at most a quarter of what is free: data loaders live there too."""
_LOOKS = 10
"""Tries to see free room and spools of one instant, while other ranks are making theirs."""


class Placed(NamedTuple):
    """A queue and what it lies on."""

    queue: Spool | MemoryQueue
    where: str
    """tmpfs, disk, memory"""


def place(hello: Hello, *, durability: str, tuning: Tuning, wake: Wake) -> Placed:
    """Return the queue of a new producer. Never fails: memory is the last resort, and said so."""
    name = f"{hello.producer.hex()}.spool"
    if durability == "memory":
        return _in_memory(hello, name, tuning, wake)
    for where, directory, capacity in _candidates(hello, tuning):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = SpoolFile(directory / name, capacity=capacity, description=_placed(hello, directory / name, where))
        except OSError as error:
            _log.info("no spool in %s: %s", directory, error)
            continue
        if where == "disk" and tuning.spool_dir is None:
            _log.warning(
                "the spool of rank %d is on disk (%s): no tmpfs with room for it; log() may take longer under disk load",
                hello.rank,
                directory,
            )
        return Placed(Spool(file, largest=largest_event(tuning), wake=wake.set), where)
    _log.warning("no room for a spool of rank %d anywhere: what a SIGKILL finds in memory is lost", hello.rank)
    return _in_memory(hello, name, tuning, wake)


def named_from_anywhere(tuning: Tuning) -> Tuning:
    """Return *tuning* with absolute paths: the script may go elsewhere, and the bus process stands elsewhere from the start.

    Raises:
        ConfigurationError: a relative path, and a working directory that is gone.
    """
    try:
        places = {name: os.path.abspath(place) for name in ("spool_dir", "socket_dir") if (place := getattr(tuning, name)) is not None}
    except OSError as error:
        raise ConfigurationError(
            f"ACCELBUS_SPOOL_DIR={tuning.spool_dir!r}, ACCELBUS_SOCKET_DIR={tuning.socket_dir!r}: expected absolute paths "
            f"where the working directory is gone ({error.strerror or error})"
        ) from error
    return msgspec.structs.replace(tuning, **places)


def largest_event(tuning: Tuning) -> int:
    """Return the bytes above which an event is not taken as it is: it would not fit into a frame with others, or into any."""
    return max(tuning.event_bytes, tuning.frame_bytes // 2)


def _candidates(hello: Hello, tuning: Tuning) -> list[tuple[str, Path, int]]:
    if tuning.spool_dir is not None:
        directory = Path(tuning.spool_dir)
        where = "tmpfs" if host.is_in_memory(directory) else "disk"
        smallest = _whole(min(tuning.spool_bytes, tuning.spool_min_bytes))
        return [(where, directory, capacity) for capacity in (_fitting(directory, hello, tuning), smallest) if capacity]
    candidates = []
    tmpfs = host.tmpfs_directory()
    if tmpfs is not None and (capacity := _fitting(tmpfs, hello, tuning)):
        candidates.append(("tmpfs", tmpfs, capacity))
    candidates.append(("disk", host.private_directory() / "spool", _whole(tuning.spool_bytes)))
    return candidates


def _fitting(directory: Path, hello: Hello, tuning: Tuning) -> int:
    """Return the ring size with which all local ranks fit into their share of *directory*, 0 when even the smallest does not."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        share = _room(directory, hello.launch) // _SHARE
    except OSError:
        return 0
    each = min(tuning.spool_bytes, share // max(hello.local_world_size, 1))
    return _whole(each) if each >= min(tuning.spool_min_bytes, tuning.spool_bytes) else 0


def _whole(size: int) -> int:
    """Return the ring of at most *size* bytes: whole MiB, or whole pages where it is smaller."""
    unit = MIB if size >= MIB else PAGE
    return size // unit * unit


def _room(directory: Path, launch: bytes) -> int:
    """Return the bytes that are free in *directory*, or taken by spools of this launch: their share must not shrink ours."""
    placed = _taken_by(launch, directory)
    for _ in range(_LOOKS):
        free = os.statvfs(directory)
        before, placed = placed, _taken_by(launch, directory)
        if before == placed:
            break
    return free.f_bavail * free.f_frsize + placed


def _taken_by(launch: bytes, directory: Path) -> int:
    return sum(_bytes_if_of(launch, path) for path in directory.glob("*.spool"))


def _bytes_if_of(launch: bytes, path: Path) -> int:
    """Return what the spool at *path* takes if it is, or may become, one of this launch; those of other runs are no room for ours."""
    try:
        about = path.lstat()
        if is_open_here(about):
            return about.st_blocks * 512
        descriptor = open_spool(path)
    except OSError:
        return 0
    try:
        return about.st_blocks * 512 if read_description(descriptor).launch == launch else 0
    except SpoolError as error:
        if error.reason != "unfinished":
            return 0
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return 0 if remove_abandoned(path) else about.st_blocks * 512


def _in_memory(hello: Hello, name: str, tuning: Tuning, wake: Wake) -> Placed:
    file = None
    for directory in (Path(tuning.spool_dir) if tuning.spool_dir else host.tmpfs_directory(), host.private_directory() / "spool"):
        if directory is None:
            continue
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = SpoolFile(directory / name, capacity=0, description=_placed(hello, directory / name, "memory"))
            break
        except OSError as error:
            _log.info("no file that proves this producer alive in %s: %s", directory, error)
    return Placed(MemoryQueue(file, max_bytes=tuning.memory_bytes, largest=largest_event(tuning), wake=wake.set), "memory")


def _placed(hello: Hello, path: Path, where: str) -> Hello:
    return msgspec.structs.replace(hello, spool=str(path), spool_kind=where, record=None)
