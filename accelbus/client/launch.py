"""Find this node's bus process, and start one when there is none.

Whichever rank first takes the start lock starts it; the others wait. The bus process takes the bus lock before it binds, so two
that start at the same instant end as one. Both locks are record locks: they go with their process, however it ends.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from accelbus import host
from accelbus.config import Tuning
from accelbus.recordlock import is_locked, try_lock
from accelbus.rundir import RunDir

BUS_LOCK = "bus.lock"
START_LOCK = "start.lock"
SOCKET = "bus.sock"


def node_directory(run_dir: RunDir, tuning: Tuning) -> Path:
    """Return this node's private directory of the run: sockets, locks. Made if needed.

    Raises:
        OSError: no directory that is ours can be made.
    """
    base = Path(tuning.socket_dir).absolute() if tuning.socket_dir else host.private_directory()
    host.make_private(base)
    directory = base / hashlib.blake2b(os.fsencode(run_dir.path.absolute()), digest_size=8).hexdigest()
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


class BusLauncher:
    """Starts the bus process of one run on this node."""

    def __init__(self, run_dir: RunDir, directory: Path) -> None:
        self._run_dir = run_dir
        self._directory = directory
        self._start_lock: int | None = None
        self._process: _Detached | None = None
        self.starts = 0

    @property
    def endpoint(self) -> str:
        return f"ipc://{self._directory / SOCKET}"

    def ensure(self) -> None:
        """Start the bus process unless one runs or somebody is starting one. Returns at once.

        Raises:
            OSError: the process cannot be started (no memory, no more processes); try again later.
        """
        if self.is_starting:
            return
        self._directory.mkdir(mode=0o700, exist_ok=True)  # the last bus process that left has removed it
        if self._start_lock is None:
            self._start_lock = try_lock(self._directory / START_LOCK)
            if self._start_lock is None:
                return
        if is_locked(self._directory / BUS_LOCK):
            return
        self._process = self._spawn()
        self.starts += 1

    @property
    def is_starting(self) -> bool:
        """This process has started one that has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_expected(self) -> bool:
        """A bus process runs, or some rank is starting one."""
        return (
            self.is_starting
            or (self._start_lock is None and is_locked(self._directory / START_LOCK))
            or is_locked(self._directory / BUS_LOCK)
        )

    def settled(self) -> None:
        """A bus process answered: let others start the next one."""
        if self._start_lock is not None:
            os.close(self._start_lock)
            self._start_lock = None

    def _spawn(self) -> _Detached:
        run_path = self._run_dir.path.absolute()
        command = [sys.executable, "-P", "-m", "accelbus.aggregator", str(run_path), "--node-dir", str(self._directory)]
        with open(self._run_dir.logs / f"bus-{host.name()}.log", "ab") as log:
            return _Detached(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", env=_environment())


class _Detached(subprocess.Popen):  # type: ignore[type-arg]  # of bytes; not subscriptable as a base
    """A process that outlives this one on purpose, about which the standard class would warn."""

    def __del__(self) -> None:
        super().__del__(_warn=_say_nothing)  # type: ignore[call-arg]  # it has had this parameter since there was the warning


def _say_nothing(*arguments: object, **keywords: object) -> None:
    """Stand in for `warnings.warn`."""


def _environment() -> dict[str, str]:
    """The rank's environment, with accelbus importable wherever this one came from."""
    package = str(Path(__file__).resolve().parents[2])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package not in paths:
        paths.append(package)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
