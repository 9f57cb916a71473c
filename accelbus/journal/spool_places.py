"""Where the producers of this user put their spools on this node, which run a spool is of, and which is nobody's."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from accelbus import host
from accelbus.config import Tuning
from accelbus.control import Hello
from accelbus.errors import ConfigurationError, SpoolError
from accelbus.journal.salvage import open_spool, producer_is_gone, read_description
from accelbus.journal.spool_file import is_open_here

_ABANDONED_AGE: Final = 60.0
"""Seconds. A producer locks its file right after it has made it; only before that can it be mistaken for one that is gone."""
_NAME: Final = re.compile(r"[0-9a-f]{32}\.spool")
"""What producers call their files."""


def spool_directories(tuning: Tuning) -> list[Path]:
    """Return the directories in which spools may lie; not each of them need exist."""
    places = [Path(tuning.spool_dir)] if tuning.spool_dir else []
    tmpfs = host.tmpfs_directory()
    if tmpfs is not None:
        places.append(tmpfs)
    # Without a private directory nobody could put a spool there either.
    with contextlib.suppress(ConfigurationError):
        places.append(host.private_directory() / "spool")
    return places


def spool_files(run_path: Path, tuning: Tuning) -> list[Path]:
    """Return the spool files on this node, of the run in *run_path* or others.

    A job may use a directory that this process does not know of; its bus process wrote down where its own spools are.
    """
    places = [path for directory in spool_directories(tuning) for path in _listed(directory)]
    return list(dict.fromkeys([*places, *_recorded(run_path / f"producers-{host.name()}.json")]))


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.glob("*.spool"))
    except OSError:
        return []


class _Producer(msgspec.Struct):
    spool: str | None = None


class _Producers(msgspec.Struct):
    members: list[_Producer] = []


def _recorded(path: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        kept = msgspec.json.decode(path.read_bytes(), type=_Producers)
        yield from (Path(member.spool) for member in kept.members if member.spool and os.path.exists(member.spool))


def is_of_run(hello: Hello, run_path: Path) -> bool:
    """Whether the producer that said *hello* logged to the run in *run_path*, also after the directory was moved."""
    with contextlib.suppress(OSError):
        return os.path.samefile(hello.run_dir, run_path)
    return hello.run_id == run_path.resolve().name


def remove_abandoned(path: Path, *, min_age: float = _ABANDONED_AGE) -> bool:
    """Remove the file at *path* if its producer was killed while it made it: it has no header, and says nothing. Whether it did.

    For whoever finds a file that is no spool yet (`SpoolError` with the reason ``unfinished``). Anything else is left alone, also what
    is younger than *min_age* seconds, what has another name or owner, and what this process has made itself.
    """
    try:
        about = path.lstat()
        if not _NAME.fullmatch(path.name) or is_open_here(about) or time.time() - about.st_mtime < min_age:
            return False
        descriptor = open_spool(path)
    except OSError:
        return False
    try:
        if not _is_unfinished(descriptor) or not producer_is_gone(descriptor) or not os.path.samestat(about, os.fstat(descriptor)):
            return False
        # The lock is held: a producer that had not come to locking it finds that out, and makes another one.
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_unfinished(descriptor: int) -> bool:
    try:
        read_description(descriptor)
    except SpoolError as error:
        return error.reason == "unfinished"
    return False


__all__ = ["is_of_run", "remove_abandoned", "spool_directories", "spool_files"]
