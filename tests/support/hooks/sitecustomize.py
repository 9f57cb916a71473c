"""A disk that fails or hangs, for processes of a job: imported by Python itself where this directory is on ``PYTHONPATH``.

``SYNC_FAULTS`` says what ``os.fdatasync`` does in processes whose command line contains ``SYNC_FAULTS_IN``:

- a number: fail so many times, and forget what the file got since its last good sync, as Linux may
- a path: wait until the file is there
"""

from __future__ import annotations

import errno
import os
import sys
import time

_fdatasync = os.fdatasync
_safe_size: dict[tuple[int, int], int] = {}
_failures: list[int] = []


def _fail_sometimes(descriptor: int) -> None:
    about = os.fstat(descriptor)
    file = (about.st_dev, about.st_ino)
    if len(_failures) < int(os.environ["SYNC_FAULTS"]):
        _failures.append(descriptor)
        os.ftruncate(descriptor, _safe_size.get(file, 0))
        raise OSError(errno.EIO, "a fault that a test injected")
    _fdatasync(descriptor)
    _safe_size[file] = about.st_size


def _wait(descriptor: int) -> None:
    deadline = time.monotonic() + 60
    while not os.path.exists(os.environ["SYNC_FAULTS"]) and time.monotonic() < deadline:
        time.sleep(0.005)
    _fdatasync(descriptor)


if "SYNC_FAULTS" in os.environ and any(os.environ["SYNC_FAULTS_IN"] in part for part in sys.orig_argv):
    os.fdatasync = _fail_sometimes if os.environ["SYNC_FAULTS"].isdigit() else _wait
