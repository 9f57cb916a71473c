"""Locks that go with their process, however it ends, on files that may be removed at any time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """Lock the file at *path*, made if needed, and return a descriptor that holds the lock; None when another process has it.

    The lock is a POSIX record lock: a fork does not inherit it, and closing any descriptor of the file in this process ends it.

    Raises:
        OSError: the file cannot be made or opened.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        # Whoever had the lock before may have removed the file; a lock on a file without a name excludes nobody.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock on *path*. Takes it for an instant to find out."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
