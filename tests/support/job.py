"""A job of real processes: ranks, their bus process, its workers; all of it can be killed, stopped and looked at."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from accelbus.reader.audit import Audit, audit

PRELUDE = """
import os, signal, sys, time
import accelbus

def say(text):
    print(text, flush=True)

def wait_for(path, timeout=60):
    deadline = time.monotonic() + timeout
    while not os.path.exists(path):
        assert time.monotonic() < deadline, path
        time.sleep(0.002)
"""


# Everything that a job waits for, short: most tests are about what happens, not about when.
QUICK = {
    "ACCELBUS_ACK_TIMEOUT": "0.5",
    "ACCELBUS_BUS_RETRY_INTERVAL": "0.2",
    "ACCELBUS_CURSOR_INTERVAL": "0.1",
    "ACCELBUS_GAP_HOLD": "1",
    "ACCELBUS_HANDOVER_GRACE": "1",
    "ACCELBUS_HEARTBEAT_INTERVAL": "0.2",
    "ACCELBUS_LATE_AFTER": "0.5",
    "ACCELBUS_PROBE_INTERVAL": "0.1",
    "ACCELBUS_SPILL_AFTER": "0.3",
    "ACCELBUS_STATUS_INTERVAL": "0.1",
    "ACCELBUS_TICK_INTERVAL": "0.1",
}


def wait_until(condition: Callable[[], Any], timeout: float = 30.0, what: str = "") -> Any:
    """Return the first true result of *condition*; fail after *timeout* seconds."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or condition}")
        time.sleep(0.01)


class Rank:
    """One process and what it printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, into), daemon=True)
            for stream, into in ((process.stdout, self.lines), (process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, into: list[str]) -> None:
        with stream:
            into.extend(line.rstrip("\n") for line in iter(stream.readline, ""))

    def wait(self, timeout: float = 60.0) -> int:
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        return code

    def said(self, text: str, timeout: float = 30.0) -> None:
        """Wait until the process has printed *text* as a line."""
        wait_until(
            lambda: text in self.lines or self.process.poll() not in (None, 0, -9), timeout, f"{text!r} in {self.lines} {self.errors}"
        )
        assert text in self.lines, (self.lines, self.errors)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return "\n".join(self.errors)


class Job:
    """Ranks of one run, on one node of its own: sockets, spools and runs lie in a directory that only this job has."""

    def __init__(self, **environ: str) -> None:
        # Not tmp_path: socket paths are limited to about a hundred bytes.
        self.root = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
        self.runs = self.root / "runs"
        self.sockets = self.root / "s"
        self.spools = self.root / "spool"
        self.sockets.mkdir(mode=0o700)
        self.run_id = "job"
        self.ranks: list[Rank] = []
        self.environ = {
            "ACCELBUS_DIR": str(self.runs),
            "ACCELBUS_RUN_ID": self.run_id,
            "ACCELBUS_PROJECT": "job",
            "ACCELBUS_LOG_WITH": "jsonl",
            "ACCELBUS_SOCKET_DIR": str(self.sockets),
            "ACCELBUS_SPOOL_DIR": str(self.spools),
            "ACCELBUS_FINISH_TIMEOUT": "0",
            "ACCELBUS_RESTART_GRACE": "0.5",
            # Tests count events, and are shorter than the search for what belongs into the record.
            "ACCELBUS_RUN_RECORD": "false",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            **environ,
        }

    # --- running

    def start(
        self,
        script: str,
        ranks: int = 1,
        *,
        first: int = 0,
        world_size: int | None = None,
        group: bool = False,
        alone: bool = False,
        **environ: str,
    ) -> list[Rank]:
        """Start *ranks* processes that run *script*, as a launcher would.

        With *group* in a process group of their own; with *alone* as a script that no launcher started.
        """
        path = self.root / f"script{len(self.ranks)}.py"
        path.write_text(PRELUDE + textwrap.dedent(script))
        started = []
        for number in range(first, first + ranks):
            own = {
                "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(world_size or ranks),
                "LOCAL_WORLD_SIZE": str(world_size or ranks), "ROOT": str(self.root),
            } if not alone else {"ROOT": str(self.root)}  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, str(path)], env={**_clean_environment(), **self.environ, **own, **environ}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.root,
                process_group=(started[0].pid if started else 0) if group else None,
            )  # fmt: skip
            started.append(Rank(process))
        self.ranks += started
        return started

    def start_command(self, command: list[str], script: str, **environ: str) -> Rank:
        """Start *command*, a launcher, with *script* as its last argument."""
        path = self.root / f"script{len(self.ranks)}.py"
        path.write_text(script)
        process = subprocess.Popen(
            [*command, str(path)],
            env={**_clean_environment(), **self.environ, "ROOT": str(self.root), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.root,
        )
        self.ranks.append(Rank(process))
        return self.ranks[-1]

    def run(self, script: str, ranks: int = 1, *, timeout: float = 60.0, alone: bool = False, **environ: str) -> list[Rank]:
        """Start, wait for the end of every rank, and of the bus process."""
        started = self.start(script, ranks, alone=alone, **environ)
        for rank in started:
            rank.wait(timeout)
        self.wait_for_end(timeout)
        return started

    def sync(self, *options: str, timeout: float = 60.0) -> str:
        """Run ``accelbus sync`` on this node and return what it printed."""
        command = [sys.executable, "-c", "import sys; from accelbus.cli import main; sys.exit(main())", "sync", str(self.run_dir), *options]
        done = subprocess.run(
            command, env={**_clean_environment(), **self.environ}, capture_output=True, text=True, timeout=timeout, check=False
        )
        return done.stdout + done.stderr

    def signal_file(self, name: str) -> None:
        """Create a file that a script waits for with ``wait_for``."""
        (self.root / name).touch()

    def wait_for_end(self, timeout: float = 60.0) -> None:
        """Wait until nothing of the run is left."""
        try:
            wait_until(lambda: not self.processes(), timeout, "the end")
        except AssertionError as error:
            raise AssertionError(f"{error}; still there: {self.processes()} {self.bus_log()}") from None

    # --- looking

    @property
    def run_dir(self) -> Path:
        return self.runs / self.run_id

    def processes(self) -> list[int]:
        """Bus processes and workers of this job."""
        return [pid for pid, command in _commands() if str(self.root) in command and "accelbus" in command]

    def bus_pid(self) -> int | None:
        return next((pid for pid, command in _commands() if "accelbus.aggregator" in command and str(self.root) in command), None)

    def worker_pids(self, sink: str = "jsonl") -> list[int]:
        return [
            pid for pid, command in _commands() if "accelbus.delivery.worker" in command and str(self.root) in command and sink in command
        ]

    def kill_bus(self, number: int = signal.SIGKILL) -> int:
        """Kill the bus process and return its pid."""
        pid = wait_until(self.bus_pid, what="a bus process")
        os.kill(pid, number)
        if number == signal.SIGKILL:
            wait_until(lambda: not os.path.exists(f"/proc/{pid}") or _is_zombie(pid), what="its end")
        return int(pid)

    def kill_everything(self) -> float:
        """SIGKILL ranks, bus process and workers in one sweep; return the time just before."""
        began = time.monotonic()
        for pid in [*(rank.pid for rank in self.ranks if rank.process.poll() is None), *self.processes()]:
            _kill(pid)
        self.wait_for_end()
        return began

    def wait_for_ranks(self, number: int) -> None:
        """Wait until the bus process has taken in *number* producers."""
        wait_until(lambda: len(self.status().get("ranks", ())) >= number, what=f"{number} producers in status.json")

    def status(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.run_dir / "status.json").read_bytes()))
        except (OSError, ValueError, RecursionError):
            return {}

    def rows(self, sink: str = "jsonl") -> list[dict[str, Any]]:
        """Rows of the JSONL sink."""
        path = self.run_dir / sink / "metrics.jsonl"
        # The last line may be half written; what ends a line for Python may stand in a value.
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def points(self, sink: str = "jsonl") -> dict[tuple[str, int], Any]:
        """{(key, step): last value} of the JSONL sink."""
        return {(key, row["step"]): value for row in self.rows(sink) for key, value in row["values"].items()}

    def wait_for_rows(self, number: int, sink: str = "jsonl", timeout: float = 30.0) -> None:
        """Wait until the sink has at least *number* rows."""
        try:
            wait_until(lambda: len(self.rows(sink)) >= number, timeout, f"{number} rows")
        except AssertionError as error:
            raise AssertionError(f"{error}; {len(self.rows(sink))} there {self.bus_log()}") from None

    def bus_log(self) -> str:
        return "\n".join(path.read_text() for path in self.run_dir.glob("logs/*.log"))

    # --- checking

    def check(self, points: Mapping[tuple[str, int], Any], *, status: str | None = None, sink: str = "jsonl") -> Audit:
        """Wait for the end of everything, then hold the run against what it should be.

        The tracker has exactly *points*, ``{(key, step): value}``; every event and value is accounted for and nothing is pending;
        the run was closed as *status*.
        """
        self.wait_for_end()
        found = self.points(sink)
        assert found == dict(points), f"{_difference(found, points)} {self.bus_log()}"
        books = audit(self.run_dir)
        assert books.balanced, books.problems
        assert books.is_settled, books
        assert status is None or (books.status, books.is_closed) == (status, True), books
        return books

    # --- the end

    def close(self) -> None:
        """Kill what is left and remove everything."""
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGCONT)
                rank.process.kill()
            rank.wait()
        for _ in range(200):
            left = self.processes()
            if not left:
                break
            for pid in left:
                _kill(pid)
            time.sleep(0.02)
        shutil.rmtree(self.root, ignore_errors=True)


@contextmanager
def running_job(**environ: str) -> Iterator[Job]:
    """Yield a job and clean up after it."""
    job = Job(**environ)
    try:
        yield job
    finally:
        job.close()


@contextmanager
def jobs_at_once(
    scripts: Mapping[str, str], options: Mapping[str, Mapping[str, Any]] | None = None, **environ: str
) -> Iterator[dict[str, Job]]:
    """Run each script as a job, several at once, and yield the jobs, over and done, under the names of their scripts.

    *options* of some of them are for `Job.run`.
    """
    with ExitStack() as stack:
        jobs = {name: stack.enter_context(running_job(**environ)) for name in scripts}
        with ThreadPoolExecutor(max_workers=4) as pool:
            for done in [pool.submit(jobs[name].run, script, **(options or {}).get(name, {})) for name, script in scripts.items()]:
                done.result()
        yield jobs


def _difference(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> str:
    """Say how two tables of points differ, in a line or two."""
    missing = [place for place in expected if place not in found]
    odd = {place: value for place, value in found.items() if place not in expected or expected[place] != value}
    return f"{len(missing)} missing: {missing[:5]}; {len(odd)} odd: {dict(list(odd.items())[:5])};"


def _clean_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("ACCELBUS_", "PYTEST_", "TORCHELASTIC_", "SLURM_"))}


def _commands() -> list[tuple[int, str]]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if command and int(entry) != os.getpid() and "python" in command:
                found.append((int(entry), command))
    return found


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
