"""Find this node's bus process, and start one when there is none.

Whichever rank first takes the start lock starts it; the others wait. The bus process takes the bus lock before it binds, so two
that start at the same instant end as one. Both locks are record locks: they go with their process, however it ends.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from accelbus import host
from accelbus.config import PREFIX, Tuning
from accelbus.errors import ConfigurationError
from accelbus.recordlock import is_locked, try_lock
from accelbus.rundir import RunDir

_log = logging.getLogger("accelbus")
_LONGEST_PAUSE: Final = 30.0
"""Seconds between starts of a bus process that fails every time: it may be mended while training goes on."""
_LEAVING: Final = 0.3
"""Seconds in which a bus process has looked for who came last, or has gone."""
BUS_LOCK = "bus.lock"
START_LOCK = "start.lock"
SOCKET = "bus.sock"


def node_directory(run_dir: RunDir, tuning: Tuning) -> Path:
    """Return this node's private directory of the run: sockets, locks. Made if needed.

    Raises:
        ConfigurationError: no directory that is ours can be made; says what is wrong and what to do.
    """
    base = _own_directory(tuning.socket_dir) if tuning.socket_dir else host.private_directory()
    directory = base / run_dir.node_name
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _own_directory(path: str) -> Path:
    directory = Path(path).absolute()
    try:
        host.make_private(directory)
    except OSError as error:
        raise ConfigurationError(
            f"ACCELBUS_SOCKET_DIR={path!r}: {error.strerror or error}; expected a directory of yours with mode 0700, or one that can be made"
        ) from error
    return directory


class BusLauncher:
    """Starts the bus process of one run on this node."""

    def __init__(self, run_dir: RunDir, directory: Path, *, tuning: Tuning) -> None:
        self._run_dir = run_dir
        self._retry_interval = tuning.bus_retry_interval
        self._spool_dir = tuning.spool_dir
        self._directory = directory
        self._start_lock: int | None = None
        self._process: _Detached | None = None
        self._cannot_start = False
        self._has_answered = False
        self._failures = 0
        """Processes started here that ended before they answered, in a row."""
        self._next_at = float("-inf")

    @property
    def _log_path(self) -> Path:
        return self._run_dir.logs / f"bus-{host.name()}.log"

    @property
    def endpoint(self) -> str:
        return f"ipc://{self._directory / SOCKET}"

    def ensure(self) -> None:
        """Start the bus process unless one runs or somebody is starting one. Returns at once; what goes wrong is said once."""
        if not self.is_starting and not self._is_to_wait():
            self._start_or_say()

    def ensure_for_the_last_time(self) -> None:
        """`ensure` for a process that ends, and whose remains need somebody to deliver them; also right after a failure.

        The bus process that is there may be leaving: waits a moment to see.
        """
        deadline = time.monotonic() + _LEAVING
        while time.monotonic() < deadline:
            if not self.is_starting and self._starts_or_is_not_needed():
                return
            time.sleep(0.02)

    def _starts_or_is_not_needed(self) -> bool:
        self._start_or_say()
        return self.is_starting or not self.is_expected

    def _start_or_say(self) -> None:
        try:
            self._start()
        except OSError as error:
            if not self._cannot_start:
                _log.warning("the bus process cannot be started (%s); events go to the run directory", error)
            self._cannot_start = True

    def _start(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)  # the last bus process that left has removed it
        if self._start_lock is None:
            self._start_lock = try_lock(self._directory / START_LOCK)
            if self._start_lock is None:
                return
        if is_locked(self._directory / BUS_LOCK):
            return
        self._process, self._has_answered = self._spawn(), False

    def _is_to_wait(self) -> bool:
        """Look at what became of the last start: one that fails again and again is repeated ever more seldom."""
        if self._process is not None:
            if self._process.returncode and not self._has_answered:
                self._failures += 1
                self._release_start_lock()  # another rank may have more luck
                # One that was killed may live the next time; one that gave up by itself will mostly do so again.
                was_killed = self._process.returncode < 0
                pause = self._retry_interval * (1 if was_killed else 2**self._failures)
                self._next_at = time.monotonic() + min(pause, _LONGEST_PAUSE)
                if self._failures == 1:
                    _log.warning(
                        "the bus process ended with exit code %d, see %s; events go to the run directory",
                        self._process.returncode,
                        self._log_path,
                    )
            self._process = None
        return time.monotonic() < self._next_at

    @property
    def is_starting(self) -> bool:
        """This process has started one that has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_expected(self) -> bool:
        """A bus process runs, or some rank is starting one."""
        if self.is_starting:
            return True
        locks = [BUS_LOCK] if self._start_lock is not None else [BUS_LOCK, START_LOCK]
        try:
            return any(is_locked(self._directory / lock) for lock in locks)
        except OSError:
            return False  # the last bus process that left has removed the directory

    def settled(self) -> None:
        """A bus process answered: let others start the next one."""
        self._has_answered, self._failures = True, 0
        self._release_start_lock()

    def _release_start_lock(self) -> None:
        if self._start_lock is not None:
            os.close(self._start_lock)
            self._start_lock = None

    def _spawn(self) -> _Detached:
        run_path = self._run_dir.path.absolute()
        command = [sys.executable, "-P", "-m", "accelbus.aggregator", str(run_path), "--node-dir", str(self._directory)]
        with open(self._log_path, "ab") as log:
            return _Detached(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=_environment(self._spool_dir),
            )


class _Detached(subprocess.Popen):  # type: ignore[type-arg]  # of bytes; not subscriptable as a base
    """A process that outlives this one on purpose, about which the standard class would warn."""

    def __del__(self) -> None:
        super().__del__(_warn=_say_nothing)  # type: ignore[call-arg]  # it has had this parameter since there was the warning


def _say_nothing(*arguments: object, **keywords: object) -> None:
    """Stand in for `warnings.warn`."""


def _environment(spool_dir: str | None) -> dict[str, str]:
    """The rank's environment, with accelbus importable wherever this one came from, and *spool_dir* named from anywhere."""
    package = str(Path(__file__).resolve().parents[2])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package not in paths:
        paths.append(package)
    places = {} if spool_dir is None else {f"{PREFIX}SPOOL_DIR": spool_dir}
    return {**os.environ, **places, "PYTHONPATH": os.pathsep.join(paths)}
