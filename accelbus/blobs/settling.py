"""Make written files durable on a thread of its own, which is there while there is something to do and looks a few times a second."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from accelbus.blobs.copying import Later, copy_later, remove
from accelbus.blobs.reference import UNFINISHED
from accelbus.durable import sync_directory

_log = logging.getLogger(__name__)
_INTERVAL: Final = 0.1
"""Seconds between two looks."""
_MANY: Final = 64
_LINGER: Final = 20
"""Looks that find nothing before the thread ends."""


class Work:
    """One file or directory that is not durable yet."""

    __slots__ = ("descriptor", "later", "mark", "path", "size")

    def __init__(self, path: Path, size: int, mark: int, descriptor: int = -1, later: list[Later] | None = None) -> None:
        self.path = path
        self.size = size
        self.mark = mark
        """The producer's last event before the one that will name it."""
        self.descriptor = descriptor
        """Open still, where closing waits for a server."""
        self.later = later or []
        """What is not copied yet."""

    @property
    def is_copy(self) -> bool:
        return bool(self.later)


class Settler:
    """Syncs files in the order in which they were written. `add` may be called from anywhere and waits for nothing.

    Args:
        on_failure: called with a path and an error when a file could not be made durable.
        on_look: called at each look; returns whether the thread is needed although there is nothing to sync.
        must_sync: somebody counts on it. If not, what many files at once have too many of is left to the system, which writes them
            within half a minute, and nobody waits for a sync.
    """

    def __init__(self, on_failure: Callable[[Path, OSError], None], on_look: Callable[[], bool], *, must_sync: bool) -> None:
        self._waiting: deque[Work] = deque()
        self._idle = threading.Lock()
        """Held by the thread, as long as there is one."""
        self._must_sync = must_sync
        self._added_bytes = self._settled_bytes = 0
        self._on_failure = on_failure
        self._on_look = on_look

    def add(self, work: Work) -> None:
        """Take over *work*. One caller at a time."""
        self._added_bytes += 0 if work.is_copy else work.size
        self._waiting.append(work)
        self.wake()

    @property
    def waiting_bytes(self) -> int:
        """What was written and is not durable."""
        return self._added_bytes - self._settled_bytes

    @property
    def count(self) -> int:
        """Files and directories that are not durable."""
        return len(self._waiting)

    def wake(self) -> None:
        """Let there be a thread."""
        # Never a wait: a signal handler may be here while its own thread is.
        if self._idle.acquire(blocking=False):
            threading.Thread(target=self._run, name="accelbus-files", daemon=True).start()

    @property
    def waiting(self) -> list[Work]:
        """What is not durable, a snapshot."""
        while True:
            with contextlib.suppress(RuntimeError):  # it changed meanwhile
                return list(self._waiting)

    def wait(self, timeout: float, *, copies: float) -> bool:
        """Wait until everything is durable, or only copied, if nobody counts on more; return whether it is.

        Args:
            timeout: seconds for syncing.
            copies: seconds for what is being copied.
        """
        began = time.monotonic()
        while waiting := [work for work in self.waiting if self._must_sync or work.is_copy]:
            if time.monotonic() - began > (copies if any(work.is_copy for work in waiting) else timeout):
                return False
            self.wake()
            time.sleep(0.005)
        return True

    def _run(self) -> None:
        looks = 0
        while looks < _LINGER:
            time.sleep(_INTERVAL)
            found = bool(self._waiting)
            while self._waiting:
                # It stays in the queue until it is durable: who looks meanwhile must find it.
                self._settle(self._waiting[0])
                work = self._waiting.popleft()
                self._settled_bytes += 0 if work.is_copy else work.size
            looks = 0 if self._on_look() or found else looks + 1
        self._idle.release()
        if self._waiting:
            self.wake()

    def _settle(self, work: Work) -> None:
        try:
            if work.is_copy:
                self._copy(work)
            elif not self._must_sync and len(self._waiting) > _MANY:
                if work.descriptor >= 0:
                    os.close(work.descriptor)
                return
            if work.descriptor >= 0:
                self._sync(work.descriptor)
            else:
                for path in [work.path, *work.path.rglob("*")] if work.path.is_dir() else [work.path]:
                    if path.is_file():
                        self._sync(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            sync_directory(work.path.parent)
        except FileNotFoundError:
            pass  # it was discarded
        except OSError as error:
            self._on_failure(work.path, error)

    @staticmethod
    def _sync(descriptor: int) -> None:
        # Never a second time: a file system that has failed once says that all is well.
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @staticmethod
    def _copy(work: Work) -> None:
        marker = work.path.with_name(work.path.name + UNFINISHED)
        touched = 0.0

        def tick() -> None:
            nonlocal touched
            if time.monotonic() - touched > 1:
                touched = time.monotonic()
                marker.touch()

        later = deque(work.later)
        try:
            while later:
                copy_later(later.popleft(), tick)
        except OSError:
            # Before the marker: a part must not look like the whole.
            remove(work.path)
            raise
        finally:
            for one in later:
                os.close(one.source)
            marker.unlink(missing_ok=True)


__all__ = ["Settler", "Work"]
