"""Which processes of this node were launched together, where no launcher says so.

A shell, ``mpirun`` or ``srun`` may start the same ranks twice with the same environment: a launch is then told from the next by who
came before. Each process takes the place of its rank in the first launch where that place is free; a place that is taken means that
this is a later launch. The places are a small file in a private directory of this node, one per group of indistinguishable launches.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from accelbus import host
from accelbus.digest import digest
from accelbus.errors import ConfigurationError

_log = logging.getLogger(__name__)

_LOCK_WAIT: Final = 2.0
"""Seconds; holders keep the lock for microseconds, so a longer wait means that one is stopped."""
_KEPT: Final = 64
"""Launches remembered per group: more than can overlap."""

Member: TypeAlias = tuple[int, int]
"""A process: its id and its start time."""


class Cohort(NamedTuple):
    """One launch of a group."""

    ordinal: int
    """How many launches came before: the same on every node, if every node took part in all of them."""
    nonce: str
    """Unlike any other launch, ever; only this node's processes can know it. Empty when the file cannot be used."""


class _Launch(msgspec.Struct):
    nonce: str
    places: dict[str, Member]


class _Group(msgspec.Struct):
    launches: list[_Launch] = []
    forgotten: int = 0


def join(
    key: tuple[str, ...], place: str, member: Member, *, gathered_within: float | None = None, directory: Path | None = None
) -> Cohort:
    """Take *place* for *member* and return the launch it belongs to; the same member always gets the same answer.

    Waits at most two seconds for other processes. When the file cannot be used, everybody is in the first launch, and that is logged.

    Args:
        key: what the launches have in common.
        place: unique within a launch, usually the rank.
        member: who takes it.
        gathered_within: seconds. A launch that lost a member takes only processes that were started so close to another member. For
            ranks started by hand: a launch that failed half-way must not swallow a rank of the next one, and every one after it.
        directory: where the file is; a private directory of this node when not given.
    """
    try:
        directory = directory or host.private_directory() / "launches"
        directory.mkdir(mode=0o700, exist_ok=True)
        with _locked(directory / f"{digest(msgspec.json.encode(key), 12).hex()}.json") as descriptor:
            group = _read(descriptor)
            cohort = _find(group, place, member, gathered_within)
            _write(descriptor, group)
            return cohort
    except (OSError, ConfigurationError) as error:
        _log.warning("cannot tell this launch from earlier ones of %s (%s); if there were any, pass run_id=", "/".join(key), error)
        return Cohort(0, "")


def _find(group: _Group, place: str, member: Member, gathered_within: float | None) -> Cohort:
    for number, launch in enumerate(group.launches):
        if member in launch.places.values():
            return Cohort(group.forgotten + number, launch.nonce)
    for number, launch in enumerate(group.launches):
        if place not in launch.places and not _is_over(launch, member, gathered_within):
            launch.places[place] = member
            return Cohort(group.forgotten + number, launch.nonce)
    group.launches.append(_Launch(uuid.uuid4().hex, {place: member}))
    cohort = Cohort(group.forgotten + len(group.launches) - 1, group.launches[-1].nonce)
    while len(group.launches) > _KEPT:
        del group.launches[0]
        group.forgotten += 1
    return cohort


def _is_over(launch: _Launch, newcomer: Member, gathered_within: float | None) -> bool:
    members = launch.places.values()
    if gathered_within is None or all(host.process_start_time(pid) == started for pid, started in members):
        return False
    return all(host.seconds_between(started, newcomer[1]) > gathered_within for _, started in members)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_WAIT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> _Group:
    size = os.fstat(descriptor).st_size
    if not size:
        return _Group()
    try:
        return msgspec.json.decode(os.pread(descriptor, size, 0), type=_Group)
    except msgspec.MsgspecError as error:
        _log.warning("a registry of launches cannot be read (%s); it starts anew", error)
        return _Group()


def _write(descriptor: int, group: _Group) -> None:
    # In place: its readers hold the lock, and after a crash of the machine the boot id makes other keys.
    data = msgspec.json.encode(group)
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))
