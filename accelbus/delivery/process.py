"""A worker process in the hands of its supervisor: started, listened to, watched, ended with all that it started."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from accelbus.config import Tuning
from accelbus.delivery.channel import Command, WorkerSpec
from accelbus.delivery.environment import worker_command, worker_environment
from accelbus.delivery.status import SinkStatus, decode_line
from accelbus.rundir import RunDir

logger = logging.getLogger(__name__)

WATCH_INTERVAL = 0.25
LAST_WORDS = 2.0
_TRIM_INTERVAL = 10.0
_LONGEST_LINE = 4 * 1024 * 1024


class Worker(Protocol):
    """What a tender needs of whatever feeds its tracker."""

    killed_for: str

    async def run(self) -> int: ...
    async def send(self, command: Command) -> None: ...
    def kill(self) -> None: ...


class WorkerProcess:
    """One worker. `run` it in a task; it returns the exit code when the process has ended, however that came.

    Args:
        run_dir: of the run.
        sink: its name.
        spec: what it is told.
        tuning: deadlines.
        environ: environment of the supervisor.
        on_status: called with each report, on the event loop.
    """

    def __init__(
        self,
        run_dir: RunDir,
        sink: str,
        spec: WorkerSpec,
        *,
        tuning: Tuning,
        environ: Mapping[str, str],
        on_status: Callable[[SinkStatus], None],
    ) -> None:
        self._run_dir = run_dir
        self._sink = sink
        self._spec = spec
        self._tuning = tuning
        self._environ = environ
        self._on_status = on_status
        self._log_path = run_dir.logs / f"{sink}.log"
        self._process: anyio.abc.Process | None = None
        self._heard_at = time.monotonic()
        self._status: SinkStatus | None = None
        self._write_lock = anyio.Lock()
        self._heard_all = anyio.Event()
        self.killed_for = ""
        """Which deadline it was ended for."""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def run(self) -> int:
        """Run the worker to its end. Cancellation kills it and all that it started."""
        log = self._open_log()
        try:
            process = await anyio.open_process(
                worker_command(self._run_dir.path, self._sink),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._run_dir.sink(self._sink),
                env=worker_environment(self._environ),
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._process = process
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch)
                tasks.start_soon(self._listen, process)
                await self._send(msgspec.json.encode(self._spec))
                code = await process.wait()
                # Its last words are in the pipe, which a forked child of the tracker may hold open.
                self.kill()
                with anyio.move_on_after(LAST_WORDS):
                    await self._heard_all.wait()
                tasks.cancel_scope.cancel()
            return code
        finally:
            self.kill()
            # Bounded: a process in the kernel's hands, on a dead network file system, cannot even be killed.
            with anyio.move_on_after(LAST_WORDS, shield=True):
                await process.aclose()

    async def send(self, command: Command) -> None:
        """Tell the worker something; it is lost if the worker is on its way out."""
        if self._process is not None:
            await self._send(msgspec.json.encode(command))

    def kill(self) -> None:
        """End the worker and everything it started, now."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _open_log(self) -> int:
        path = self._log_path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._run_dir.sink(self._sink).mkdir(parents=True, exist_ok=True, mode=0o700)
        trim(path, self._tuning.worker_log_bytes)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    async def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        async with self._write_lock:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                await self._process.stdin.send(line + b"\n")

    async def _listen(self, process: anyio.abc.Process) -> None:
        """Read reports until the worker closes its end."""
        assert process.stdout is not None
        buffer = b""
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                buffer += await process.stdout.receive()
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    self._take(line)
                if len(buffer) > _LONGEST_LINE:
                    buffer = b""
        self._heard_all.set()

    def _take(self, line: bytes) -> None:
        try:
            self._status = decode_line(line)
        except msgspec.MsgspecError as error:
            logger.warning("%s: a report that cannot be read: %s", self._sink, error)
            return
        self._heard_at = time.monotonic()
        self._on_status(self._status)

    async def _watch(self) -> None:
        """Kill the worker when it exceeds a deadline."""
        self._heard_at = looked_at = trimmed_at = time.monotonic()
        while True:
            await anyio.sleep(WATCH_INTERVAL)
            now = time.monotonic()
            if now - looked_at > 4 * WATCH_INTERVAL:
                # We were stopped or starved ourselves: the worker's reports wait in the pipe.
                self._heard_at = now
            looked_at = now
            if now - trimmed_at > _TRIM_INTERVAL:
                trimmed_at = now
                await anyio.to_thread.run_sync(trim, self._log_path, self._tuning.worker_log_bytes)
            if reason := self._exceeded(now):
                self.killed_for = reason
                logger.warning("%s: worker %d is killed: %s", self._sink, self.pid, reason)
                self.kill()
                return

    def _exceeded(self, now: float) -> str:
        silence = now - self._heard_at
        status, tuning = self._status, self._tuning
        if status is None:
            return f"did not come up within {tuning.start_deadline:g} s" if silence > tuning.start_deadline else ""
        deadline = {
            "start": tuning.start_deadline,
            "log": tuning.log_deadline,
            "media": tuning.media_deadline,
            "flush": tuning.flush_deadline,
            "finish": tuning.finish_deadline,
            "exit": tuning.exit_deadline,
        }.get(status.phase)
        if deadline is not None and status.phase_seconds + silence > deadline:
            return f"{status.phase} took longer than {deadline:g} s"
        return f"no word for {tuning.silence_deadline:g} s" if silence > tuning.silence_deadline else ""


def trim(path: Path, limit: int) -> None:
    """Move what is in *path* to ``<path>.1`` if it is more than *limit* bytes. A writer that appends goes on at the new beginning."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > limit:
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)


__all__ = ["Worker", "WorkerProcess", "trim"]
