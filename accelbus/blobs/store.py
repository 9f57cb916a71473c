"""Write files for one producer, within bounds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from accelbus.blobs.copying import remove, size_of, take
from accelbus.blobs.reference import EXTENSION, UNFINISHED, Reference
from accelbus.blobs.settling import Settler, Work

_MOST_OPEN: Final = 64
"""Files that stay open until they are synced, where closing waits; beyond that closing waits all the same."""
_UNCLAIMED_LOOKS: Final = 3000
"""Looks of the settler, about five minutes, after which a file that no event names is removed: the call that wrote it has failed."""


class BlobStore:
    """The blobs one producer writes. Not for readers.

    A file is with the system, and outlives the process, when a call returns; that it outlives the machine is seen to on another thread,
    and `safe_seq` says for which events it is. A file that an event names is claimed, or, when the event was not kept, discarded; a call
    that fails between the two leaves a file that is removed later.

    Args:
        directory: of the run's large values; made when there is the first one.
        owner: beginning of all names.
        quota: bytes that all files together may take.
        backlog: bytes that may wait for the disk; beyond that files are refused, so that nobody has to wait.
        last_seq: returns the sequence of the producer's newest event.
        must_sync: `safe_seq` is asked for; if not, syncing is a courtesy.
        keeps_open: tells whether closing a file in a directory waits for a server; asked once.
        on_lost: called with what became of a file, when it may not outlive the machine, or a copy failed.
    """

    def __init__(
        self,
        directory: Path,
        owner: str,
        *,
        quota: int,
        backlog: int = 1 << 62,
        last_seq: Callable[[], int] | None = None,
        must_sync: bool = True,
        keeps_open: Callable[[Path], bool] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._directory = directory
        self._owner = owner
        self._pid = os.getpid()
        self._quota = quota
        self._backlog = backlog
        self.last_seq = last_seq or (lambda: 0)
        self._asks_to_keep_open = keeps_open
        self._keeps_open: bool | None = None
        self._on_lost = on_lost
        self._written = 0
        self._accounts = threading.RLock()
        """Held for an addition; a signal handler may come back while its own thread holds it."""
        self._numbers = count(1)
        """Any thread may log: two of them never get one name."""
        self.unclaimed: dict[str, tuple[int, int]] = {}
        """{name of a file that no event names yet: (bytes, look at which it was first seen)}"""
        self._busy = 0
        """Calls that are reading or writing now."""
        self._looks = 0
        self._settler = Settler(self._failed, self._look, must_sync=must_sync)

    def write(self, encoded: bytes) -> msgspec.msgpack.Ext:
        """Keep the *encoded* value and return what stands for it in an event, which the caller has or will have.

        Raises:
            OSError: the disk, or the quota, is full, or the disk does not keep up.
        """
        reference = self.keep(encoded)
        self.claim([reference.name])
        return msgspec.msgpack.Ext(EXTENSION, msgspec.msgpack.encode(reference))

    def keep(self, data: bytes) -> Reference:
        """Write *data* to a file of its own; see `write`."""
        self._reserve(len(data))
        name = self._next_name()
        path = self._directory / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stays_open = bool(self._keeps_open) and self._settler.count < _MOST_OPEN
        try:
            self._busy += 1
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            # Half a file is of no use to anybody, and takes the room that is missing.
            self._free(len(data))
            path.unlink(missing_ok=True)
            stays_open = False
            raise
        finally:
            self._busy -= 1
            if not stays_open:
                os.close(descriptor)
        self._is_there(Work(path, len(data), self.last_seq(), descriptor if stays_open else -1))
        return Reference(name, len(data), google_crc32c.value(data))

    def adopt(self, path: Path) -> Reference:
        """Keep the file or directory at *path* as it is now; the original may be deleted right away.

        Raises:
            OSError: it cannot be read, the disk is full, or the quota is.
        """
        size = size_of(path)
        self._reserve(size, counts_as_backlog=False)
        name = self._next_name()
        target = self._directory / name
        try:
            self._busy += 1
            later = take(path, target)
            if later:
                target.with_name(name + UNFINISHED).touch(0o600)
        except OSError:
            self._free(size)
            remove(target)
            raise
        finally:
            self._busy -= 1
        self._is_there(Work(target, size, self.last_seq(), later=later))
        return Reference(name, size)

    # What becomes of a file

    def claim(self, names: Iterable[str]) -> None:
        """An event names these files."""
        for name in names:
            self.unclaimed.pop(name, None)

    def discard(self, names: Iterable[str]) -> None:
        """The event that named these files was not kept."""
        for name in names if os.getpid() == self._pid else ():
            if name.startswith(self._owner) and os.path.basename(name) == name:
                self.unclaimed.pop(name, None)
                path = self._directory / name
                size = size_of(path) if path.exists() else 0
                remove(path)
                self._free(size)

    @property
    def safe_seq(self) -> int | None:
        """Events up to this one name no file that is not durable; None: no event does."""
        return min((work.mark for work in self._settler.waiting), default=None)

    def settle(self, timeout: float, *, copies: float = 0.0) -> bool:
        """Remove what no event names, wait until the rest is as durable as it has to be, and return whether it is.

        Args:
            timeout: seconds for what is written.
            copies: seconds for what is being copied from elsewhere.
        """
        if os.getpid() != self._pid:
            return True
        if not self._busy:
            self.discard(list(self.unclaimed))
        return self._settler.wait(timeout, copies=copies)

    def _reserve(self, size: int, *, counts_as_backlog: bool = True) -> None:
        if os.getpid() != self._pid:
            # The names are the parent's.
            raise OSError("the run belongs to another process")
        with self._accounts:
            if self._written + size > self._quota:
                raise OSError(f"the quota of {self._quota} bytes for large values is used up")
            if counts_as_backlog and size + self._settler.waiting_bytes > self._backlog:
                raise OSError(f"{self._backlog} bytes of large values wait for the disk already")
            self._written += size
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if self._keeps_open is None:
            self._keeps_open = self._asks_to_keep_open is not None and self._asks_to_keep_open(self._directory)

    def _free(self, size: int) -> None:
        with self._accounts:
            self._written -= size

    def _is_there(self, work: Work) -> None:
        self.unclaimed[work.path.name] = work.size, self._looks
        with self._accounts:
            self._settler.add(work)

    def _look(self) -> bool:
        """Remove what has been unclaimed for long; return whether there is more to look at."""
        if not self._busy:
            self._looks += 1
        for name, (_, seen) in list(self.unclaimed.items()):
            if self._looks - seen > _UNCLAIMED_LOOKS:
                self.discard([name])
        return bool(self.unclaimed)

    def _failed(self, path: Path, error: OSError) -> None:
        if self._on_lost is not None:
            what = "could not be copied" if not path.exists() else "is written, but not known to be on disk"
            self._on_lost(f"{path.name} {what}: {error}")

    def _next_name(self) -> str:
        return f"{self._owner}-{next(self._numbers)}"


__all__ = ["BlobStore"]
