"""The pipes between a worker and its supervisor, seen from the worker.

Down come lines of JSON: `WorkerSpec` first, then `Command`. Up go lines of `SinkStatus`, at least one every ``status_interval``
from a thread of their own, so that a worker busy in a tracker's call still says so and a stopped one falls silent. The end of the
downward pipe means that the supervisor is gone: the worker ends at once and its process group with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any, Literal

import msgspec

from accelbus.delivery.status import Phase, SinkStatus, encode_line
from accelbus.rundir import RunRecord

ORPHAN_GRACE = 0.5
"""Seconds from the end of the supervisor to the end of its worker."""


class WorkerSpec(msgspec.Struct, kw_only=True):
    """What a worker is told at its start."""

    generation: int
    record: RunRecord
    tuning: dict[str, Any] = {}
    once: bool = False
    """Deliver what is there, to the end, and leave; the run may be dead or alive."""
    drain: int = 0
    """Number of the last drain command."""
    one_by_one: bool = False
    """The worker before this one died: name each row before it is tried."""
    deaths: dict[str, int] = {}
    """{row label: workers that died or hung on it}"""
    carried: bytes = b""
    """The tracker by value, if that is how it comes."""


class Command(msgspec.Struct):
    """A later line: ``drain`` asks for word when all that is in the journal now is delivered and durable; ``stop`` to leave; ``tell``
    to give the tracker its configuration, be there any or not: some open their run with it.
    """

    command: Literal["drain", "stop", "tell"]
    drain: int = 0


class Channel:
    """Read commands and report. `claim_pipes` first."""

    def __init__(self, commands: int, reports: int, status: SinkStatus) -> None:
        self._commands = commands
        self._reports = reports
        self.status = status
        """Changed by the worker's main thread only; what the reporting thread sends is a snapshot, because encoding holds the GIL."""
        self._phase_began = time.monotonic()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._news = threading.Event()
        self._write_lock = threading.Lock()
        self.drain_wanted = 0
        self.tell_wanted = False
        self._buffer = b""

    def read_spec(self) -> WorkerSpec:
        """Wait for the first line."""
        line = self._read_line()
        if line is None:
            _end_group()
        return msgspec.json.decode(line or b"", type=WorkerSpec)

    def open(self, *, interval: float) -> None:
        """Start to listen, and to report every *interval* seconds."""
        threading.Thread(target=self._listen, name="accelbus-commands", daemon=True).start()
        threading.Thread(target=self._report, args=(interval,), name="accelbus-reports", daemon=True).start()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def wait(self, seconds: float) -> None:
        """Sleep; a command ends it."""
        self._news.wait(seconds)
        self._news.clear()

    def enter(self, phase: Phase) -> None:
        """The main thread begins something that may hang."""
        self.status.phase = phase
        self._phase_began = time.monotonic()

    @property
    def seconds_in_phase(self) -> float:
        return round(time.monotonic() - self._phase_began, 3)

    def take(self, command: Command) -> None:
        """Obey *command*, which ends a wait."""
        if command.command == "stop":
            self._stopping.set()
        elif command.command == "tell":
            self.tell_wanted = True
        else:
            self.drain_wanted = max(self.drain_wanted, command.drain)
        self._news.set()

    def push(self) -> None:
        """Report soon."""
        self._wake.set()

    def push_now(self) -> None:
        """Report before this returns."""
        self._send()

    def _listen(self) -> None:
        while (line := self._read_line()) is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                self.take(msgspec.json.decode(line, type=Command))
            self._news.set()
        self._stopping.set()
        self._news.set()
        time.sleep(ORPHAN_GRACE)
        _end_group()

    def _report(self, interval: float) -> None:
        while True:
            self._wake.wait(interval)
            self._wake.clear()
            self._send()

    def _send(self) -> None:
        self.status.phase_seconds = self.seconds_in_phase
        data = memoryview(encode_line(self.status) + b"\n")
        with self._write_lock, contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._reports, data) :]

    def _read_line(self) -> bytes | None:
        while b"\n" not in self._buffer:
            try:
                data = os.read(self._commands, 65536)
            except OSError:
                data = b""
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def claim_pipes() -> tuple[int, int]:
    """Return descriptors of the supervisor's pipes, moved away from stdin and stdout.

    Trackers print, and ask questions: they get stderr to print to and nothing to read.
    """
    commands, reports = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return commands, reports


def _end_group() -> None:
    """End this process and, if it leads its group as a worker does, all that the tracker started."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


__all__ = ["Channel", "Command", "WorkerSpec", "claim_pipes"]
