"""Where the producers of this user put their spools on this node, and which run a spool is of."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from accelbus import host
from accelbus.config import Tuning
from accelbus.control import Hello
from accelbus.errors import ConfigurationError


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


__all__ = ["is_of_run", "spool_directories", "spool_files"]
