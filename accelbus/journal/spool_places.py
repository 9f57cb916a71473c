"""Where the producers of this user put their spools on this node, and which run a spool is of."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

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


def is_of_run(hello: Hello, run_path: Path) -> bool:
    """Whether the producer that said *hello* logged to the run in *run_path*, also after the directory was moved."""
    with contextlib.suppress(OSError):
        return os.path.samefile(hello.run_dir, run_path)
    return hello.run_id == run_path.resolve().name


__all__ = ["is_of_run", "spool_directories"]
