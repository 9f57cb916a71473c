"""Whether the process that started this one is the same rank already.

A rank may start programs and workers with its own environment: an evaluation script, a data loader's worker under ``spawn`` that runs
the main module again. Such a process finds itself to be that rank. Taken at its word it would replace the rank that trains.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from accelbus import host
from accelbus.control import Hello
from accelbus.errors import SpoolError
from accelbus.events import TRAINER
from accelbus.journal.salvage import open_spool, producer_is_gone, read_description
from accelbus.journal.spool_places import is_of_run

_MOST_ANCESTORS = 64


def ancestor_in_place_of(rank: int, run_path: Path) -> int | None:
    """Return the process id of an ancestor that is trainer *rank* of the run in *run_path*, None when there is none.

    None also where ancestors cannot be looked at (no Linux, another user's).
    """
    for pid in _ancestors():
        for spool in _spools_of(pid):
            if (spool.pid, spool.rank, spool.role) == (pid, rank, TRAINER) and is_of_run(spool, run_path):
                return pid
    return None


def _ancestors() -> Iterator[int]:
    pid: int | None = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        if pid is None or pid <= 1:
            return
        yield pid
        pid = host.parent_of(pid)


def _spools_of(pid: int) -> Iterator[Hello]:
    """Yield what the spools say that *pid* holds open. None of them is this process's own: opening that would end its lock."""
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        try:
            path = os.readlink(f"{directory}/{name}")
            if path.endswith(".spool") and (hello := _live_producer(path)) is not None:
                yield hello
        except (OSError, SpoolError):
            continue


def _live_producer(path: str) -> Hello | None:
    descriptor = open_spool(path)
    try:
        return None if producer_is_gone(descriptor) else read_description(descriptor)
    finally:
        os.close(descriptor)


__all__ = ["ancestor_in_place_of"]
