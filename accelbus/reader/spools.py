"""Spools of a run on this node, looked at and left as they are."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

from accelbus.config import Tuning
from accelbus.control import Hello
from accelbus.errors import SpoolError
from accelbus.journal.intervals import Range
from accelbus.journal.salvage import Remains, open_spool, producer_is_gone, salvage
from accelbus.journal.spool_file import HEADER_BYTES
from accelbus.journal.spool_places import is_of_run, spool_files

_log = logging.getLogger(__name__)


class SpoolView(NamedTuple):
    """What one spool says."""

    path: Path
    hello: Hello
    is_alive: bool | None
    """Whether its producer holds the lock; None when the file system has no record locks."""
    last_seq: int
    released_seq: int
    """Up to here it needs nothing any more: the rest of the run has it."""
    held: list[Range]
    """Sequence numbers that a salvage would bring into the journal."""
    dropped: dict[str, int]
    status: str


def look_at_spools(run_path: Path, *, tuning: Tuning) -> list[SpoolView]:
    """Return what the spools of the run in *run_path* say that lie on this node and belong to this user.

    Changes nothing, and is safe in the producer's own process too. Blocking: reads every ring once.
    """
    views = []
    for path in spool_files(run_path, tuning):
        try:
            view = _look_at(path, tuning)
        except (OSError, SpoolError) as error:
            _log.debug("%s is not looked at: %s", path, error)
            continue
        if is_of_run(view.hello, run_path):
            views.append(view)
    return views


def _look_at(path: Path, tuning: Tuning) -> SpoolView:
    own = _own_descriptor(path)
    if own is not None:
        return _view(path, own, _read(own, tuning), is_alive=True)
    descriptor = open_spool(path)
    try:
        # Reading comes first: it fails for a spool that is just being made, whose producer has yet to take its lock.
        remains = _read(descriptor, tuning)
        return _view(path, descriptor, remains, is_alive=_is_locked(descriptor))
    finally:
        os.close(descriptor)


def _read(descriptor: int, tuning: Tuning) -> Remains:
    return salvage(descriptor, max_events=tuning.overload_frame_events, max_bytes=tuning.frame_bytes)


def _is_locked(descriptor: int) -> bool | None:
    try:
        return not producer_is_gone(descriptor)
    except OSError:
        return None


def _own_descriptor(path: Path) -> int | None:
    """Return this process's open descriptor of *path* if there is one.

    Closing a second descriptor of a file drops the record locks that a process holds on it, so a producer that looks at its own
    spool must not open it again: everybody would take it for dead.
    """
    wanted = os.stat(path)
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError, ValueError):
            found = os.fstat(int(name))
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return int(name)
    return None


def _view(path: Path, descriptor: int, remains: Remains, *, is_alive: bool | None) -> SpoolView:
    held = [(batch.first_seq, batch.last_seq) for batch in remains.batches]
    return SpoolView(
        path, remains.description, is_alive, remains.last_seq, _released(descriptor, remains), held, remains.dropped, remains.status
    )


def _released(descriptor: int, remains: Remains) -> int:
    if os.fstat(descriptor).st_size == HEADER_BYTES:
        # Without a ring the file has counters only; what is in the process's memory does not show.
        return 0
    return remains.batches[0].first_seq - 1 if remains.batches else remains.last_seq


__all__ = ["SpoolView", "look_at_spools"]
