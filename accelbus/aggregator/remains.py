"""Spools: found on this node, watched for the death of their producer, salvaged."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from accelbus import host
from accelbus.config import Tuning
from accelbus.control import Hello
from accelbus.errors import SpoolError
from accelbus.journal.salvage import Remains, open_spool, producer_is_gone, read_description, salvage
from accelbus.journal.spool_places import remove_abandoned

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """A spool file and what its producer said about itself."""

    path: Path
    hello: Hello
    descriptor: int
    gone: bool
    """Its process has ended."""
    is_ending: bool
    """It has said that nothing follows."""


class SpoolWatch:
    """Descriptors of the spools of live producers. Kept open, so that unlinking a spool loses nothing."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._descriptors: dict[bytes, tuple[int, Path]] = {}
        self._hopeless: set[bytes] = set()
        """Producers whose spools cannot be opened."""
        self._without_lock: set[bytes] = set()
        """Producers on whose file system there are no record locks."""
        self._looked_into: set[Path] = set()

    def find_new(self, directories: list[Path]) -> list[Hello]:
        """Return what the producers of spools say of themselves that were not there when this was called before.

        Blocking: lists the directories.
        """
        paths = {path for directory in directories for path in _listed(directory)}
        self._looked_into &= paths
        found = []
        for path in sorted(paths - self._looked_into):
            try:
                found.append(_describe(path))
            except SpoolError as error:
                if error.reason == "unfinished":
                    remove_abandoned(path)
                    continue
                _log.warning("%s is left alone: %s", path, error)
            except OSError as error:
                _log.debug("%s is not there any more, or not ours: %s", path, error)
            self._looked_into.add(path)
        return found

    def watch(self, producer: bytes, path: str | None) -> bool:
        """Open the spool at *path*; False when it cannot be salvaged."""
        if producer in self._descriptors:
            return True
        if path is None or producer in self._hopeless:
            return False
        try:
            self._descriptors[producer] = (_open_spool_of(producer, path), Path(path))
        except (OSError, SpoolError, ValueError) as error:
            self._hopeless.add(producer)
            _log.warning("the spool %r cannot be opened (%s): what its rank has not sent when it is killed is lost", path, error)
            return False
        return True

    def proves_life(self, producer: bytes) -> bool:
        """Whether its record lock tells if *producer* lives, so that its silence says nothing."""
        return producer in self._descriptors and producer not in self._without_lock

    @property
    def is_empty(self) -> bool:
        """Nobody is watched."""
        return not self._descriptors

    def gone(self) -> list[bytes]:
        """Return the watched producers whose processes have ended."""
        return [producer for producer in self._descriptors if self.is_gone(producer)]

    def is_gone(self, producer: bytes) -> bool:
        """Whether the record lock of a watched producer could be taken; where there are no such locks, whether its pid is unused."""
        descriptor, path = self._descriptors[producer]
        try:
            return producer_is_gone(descriptor)
        except OSError as error:
            if producer not in self._without_lock:
                self._without_lock.add(producer)
                _log.warning("no record lock on %s (%s): whether its rank lives is told by its pid, and by its silence", path, error)
        try:
            # A spool is on the node of its producer.
            return not host.process_exists(read_description(descriptor).pid)
        except (OSError, SpoolError):
            return False

    def remains(self, producer: bytes) -> Remains | None:
        """Read what *producer* left; None when its spool is not readable.

        Blocking: reads the whole ring.
        """
        descriptor, path = self._descriptors[producer]
        try:
            return salvage(descriptor, max_events=self._tuning.overload_frame_events, max_bytes=self._tuning.frame_bytes)
        except (SpoolError, OSError) as error:
            _log.warning("the spool %s cannot be read: %s", path, error)
            return None

    def drop(self, producer: bytes, *, unlink: bool) -> None:
        """Stop watching; with *unlink* everything in the spool is safe elsewhere."""
        entry = self._descriptors.pop(producer, None)
        if entry is None:
            return
        descriptor, path = entry
        if unlink:
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(descriptor)


def _open_spool_of(producer: bytes, path: str) -> int:
    """Return a descriptor of *path* if it is what the producer wrote: it will be removed when it is needed no more."""
    descriptor = open_spool(path)
    try:
        found = read_description(descriptor).producer
        if found != producer:
            raise SpoolError("stranger", f"it belongs to producer {found.hex()}, not to {producer.hex()}")
    except (OSError, SpoolError):
        os.close(descriptor)
        raise
    return descriptor


def _listed(directory: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(directory) if entry.name.endswith(".spool")]
    except OSError:
        return []


def _describe(path: Path) -> Hello:
    descriptor = open_spool(path)
    try:
        hello = read_description(descriptor)
    finally:
        os.close(descriptor)
    hello.spool = str(path)
    return hello


def find_spools(directories: list[Path], tuning: Tuning) -> Iterator[Found]:
    """Yield every readable spool in *directories*; whoever takes one closes its descriptor."""
    for path in sorted(path for directory in directories if directory.is_dir() for path in directory.glob("*.spool")):
        try:
            yield look_into(path, tuning)
        except (SpoolError, OSError) as error:
            _log.debug("%s is not a spool yet, or no more: %s", path, error)


def look_into(path: Path, tuning: Tuning) -> Found:
    """Return the spool at *path*; the caller closes its descriptor.

    Raises:
        OSError: it cannot be opened, or is not ours.
        SpoolError: it is no spool, or none yet.
    """
    descriptor = open_spool(path)
    try:
        # Reading comes first: it fails for a spool that is just being made, and whose producer must find its lock free.
        about = salvage(descriptor, max_events=tuning.overload_frame_events, max_bytes=tuning.frame_bytes)
        return Found(path, about.description, descriptor, producer_is_gone(descriptor), bool(about.status))
    except (SpoolError, OSError):
        os.close(descriptor)
        raise
