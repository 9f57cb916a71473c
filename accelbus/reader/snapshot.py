"""What the bus process last said: ``status.json``, and whether that process is still there."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from accelbus import host
from accelbus.config import Tuning
from accelbus.delivery.status import SinkStatus
from accelbus.errors import ConfigurationError
from accelbus.recordlock import is_locked
from accelbus.rundir import RunDir

BusState: TypeAlias = Literal["running", "silent", "left", "gone", "unreachable", "unknown"]
"""running: it reports. silent: its process is there and does not report. left: it ended on its own terms. gone: its process is not
there any more. unreachable: it was on another host and does not report. unknown: nobody reported, or not legibly."""

_MISSED_REPORTS: Final = 10
"""Reports in a row that a busy disk may delay before a bus process counts as silent."""


class BusLine(msgspec.Struct):
    """What ``status.json`` says about the process that wrote it."""

    pid: int = 0
    host: str = ""
    disk_failing: bool = False
    bad_frames: int = 0
    events: int = 0
    disk_errors: int = 0
    unsynced_bytes: int = 0


class ProducerLine(msgspec.Struct):
    """What ``status.json`` says about one producer."""

    rank: int = -1
    attempt: int = -1
    role: str = ""
    host: str = ""
    pid: int = 0
    state: str = ""
    status: str = ""
    logged: int = 0
    acked: int = 0
    dropped: dict[str, int] = {}
    producer: str = ""
    heard_s: float | None = None
    salvageable: bool = True
    spool: str = ""
    """tmpfs, disk, memory"""


class Snapshot(msgspec.Struct):
    """``status.json``, and what can be said about whoever wrote it."""

    run_id: str = ""
    state: str = ""
    """open, closed, left"""
    status: str = ""
    updated_ns: int = 0
    bus: BusLine = msgspec.field(default_factory=BusLine)
    ranks: list[ProducerLine] = []
    sinks: dict[str, Any] = {}
    bus_state: BusState = "unknown"
    trouble: str = ""
    """Why there is nothing to read, empty when all is well."""

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, (time.time_ns() - self.updated_ns) / 1e9)

    @property
    def is_current(self) -> bool:
        """Whether it says how things are now."""
        return self.bus_state == "running"

    def sink_states(self) -> dict[str, SinkStatus]:
        """Return {sink: state}; what this version does not understand is left out."""
        states = {}
        for name, state in self.sinks.items():
            try:
                states[name] = msgspec.convert(state, SinkStatus, str_keys=True)  # JSON has no other keys
            except msgspec.ValidationError:
                continue
        return states


def read_snapshot(path: Path, *, tuning: Tuning) -> Snapshot:
    """Return what is in ``status.json`` at *path*; never raises, an unreadable file is a `Snapshot` with a ``trouble``."""
    try:
        snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
    except FileNotFoundError:
        return Snapshot(trouble="no bus process has reported yet")
    except OSError as error:
        return Snapshot(trouble=f"status.json cannot be read ({error.strerror or error})")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return Snapshot(trouble=f"status.json is damaged ({error})")
    snapshot.trouble = ""
    snapshot.bus_state = _state_of_bus(snapshot, tuning)
    return snapshot


def find_silent_bus(run_dir: RunDir, snapshot: Snapshot, tuning: Tuning) -> None:
    """Note in *snapshot* a bus process of this node that lives and could not say so, because the run's disk is full for example."""
    try:
        directory = (Path(tuning.socket_dir).absolute() if tuning.socket_dir else host.private_directory()) / run_dir.node_name
        # One that has just started has yet to report, and one that has said goodbye holds its lock a moment longer.
        is_silent = time.time() - (directory / "bus.sock").stat().st_mtime > _until_silent(tuning) and is_locked(directory / "bus.lock")
    except (ConfigurationError, OSError):
        # Nobody could serve from there either.
        return
    if not is_silent or snapshot.age < _until_silent(tuning):
        return
    snapshot.bus_state = "silent"
    snapshot.bus.host = host.name()
    snapshot.bus.pid = _serving_process(run_dir)


def _serving_process(run_dir: RunDir) -> int:
    """Return the process whose command line says that it serves the run; 0 when that cannot be seen."""
    wanted = os.fsencode(run_dir.path.absolute())
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            if b"accelbus.aggregator" in arguments and wanted in arguments:
                return int(entry.name)
    return 0


def _state_of_bus(snapshot: Snapshot, tuning: Tuning) -> BusState:
    if snapshot.state == "left":
        return "left"
    reports = snapshot.age < _until_silent(tuning)
    if snapshot.bus.host != host.name():
        return "running" if reports else "unreachable"
    if not _is_bus_process(snapshot.bus.pid):
        return "gone"
    return "running" if reports else "silent"


def _until_silent(tuning: Tuning) -> float:
    return _MISSED_REPORTS * max(tuning.status_interval, 0.1)


def _is_bus_process(pid: int) -> bool:
    """Whether *pid* runs and is, as far as can be seen, one of ours: process ids are used again."""
    if not host.process_exists(pid):
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    # A bus process that tests run inside their own process has another command line.
    return b"accelbus" in command or pid == os.getpid()


__all__ = ["BusLine", "BusState", "ProducerLine", "Snapshot", "find_silent_bus", "read_snapshot"]
