"""One worker process per sink on this host, by a lock that the kernel lets go when its holder dies.

Ownership says who may deliver; it cannot stop a worker whose owner was killed from being in the middle of a tracker's call. Two
processes in one tracker's files would ruin them, so a worker takes this lock before it touches the tracker, and ends who holds it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Final

POLL_INTERVAL: Final = 0.02
_UNSUPPORTED: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


def exclude_others(directory: Path, *, patience: float, timeout: float) -> int:
    """Take the lock of the sink in *directory* and return the descriptor that holds it until this process ends.

    Another holder gets *patience* seconds to leave (it does when its owner is gone or was fenced) and is killed then, if it is a
    worker on this host.

    Raises:
        TimeoutError: the lock was not to be had within *timeout* seconds.
    """
    path = directory / "worker.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    began = time.monotonic()
    while not _lock(descriptor):
        waited = time.monotonic() - began
        if waited > timeout:
            os.close(descriptor)
            raise TimeoutError(f"{path} is held by another process, probably on another host")
        if waited > patience:
            _end(path, directory.parent.parent)
        time.sleep(POLL_INTERVAL)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _lock(descriptor: int) -> bool:
    # A record lock, not flock: children of a tracker inherit the latter and would keep it.
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return True
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _end(path: Path, run_dir: Path) -> None:
    """Kill the holder named in *path*, if it is a worker of this run: pids are reused."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_bytes())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        is_worker = b"accelbus.delivery.worker" in command and os.fsencode(os.path.abspath(run_dir)) in command
        if is_worker and pid != os.getpid() and os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)


__all__ = ["exclude_others"]
