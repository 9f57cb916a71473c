"""Trackers for tests of delivery: they run in real worker processes and leave files behind.

In *directory* of a `ScriptedTracker`: ``calls.jsonl`` has every row a call took (also of calls that then died), ``durable.jsonl``
what a user would find in the tracker's storage, ``configs.jsonl``, ``starts``, ``resumed``, ``directories``, ``finishes`` and ``restores`` one line per call.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelbus.tracking import GeneralTracker, RefusedRow, Row


class ScriptedTracker(GeneralTracker):
    """Misbehaves as its arguments say. Durable after each call, unless *buffered*."""

    name = "scripted"
    requires_logging_directory = False
    durable_after = "call"

    def __init__(
        self,
        project: str,
        directory: str,
        *,
        raise_every: int = 0,
        refuses: tuple[int, ...] = (),
        dies_at: tuple[int, ...] = (),
        hangs_at: tuple[int, ...] = (),
        hangs: int = 10**9,
        start_failures: int = 0,
        deaths_in_start: int = 0,
        hangs_in_start: int = 0,
        flush_failures: int = 0,
        finish_failures: int = 0,
        seconds_per_call: float = 0.0,
        exits_at: tuple[int, ...] = (),
        hangs_in_config: bool = False,
        greedy: bool = False,
        leaves_behind: str = "",
        noise: bool = False,
    ) -> None:
        super().__init__()
        self.project = project
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.raise_every = raise_every
        self.refuses = set(refuses)
        self.dies_at = set(dies_at)
        self.hangs_at = set(hangs_at)
        self.hangs = hangs
        self.start_failures = start_failures
        self.deaths_in_start = deaths_in_start
        self.hangs_in_start = hangs_in_start
        self.flush_failures = flush_failures
        self.finish_failures = finish_failures
        self.seconds_per_call = seconds_per_call
        self.exits_at = set(exits_at)
        self.hangs_in_config = hangs_in_config
        self.greedy = greedy
        self.leaves_behind = leaves_behind
        self.noise = noise
        self.calls = 0

    @property
    def tracker(self) -> ScriptedTracker:
        return self

    @property
    def url(self) -> str:
        return f"scripted://{self.project}"

    def start(self) -> None:
        self._append("resumed", self.run_info.resumed)
        self._append("directories", [str(self.run_info.directory), os.environ.get("PWD", "")])
        started = self._count("starts", os.getpid())
        if started <= self.deaths_in_start:
            os.kill(os.getpid(), signal.SIGKILL)
        if started <= self.deaths_in_start + self.hangs_in_start:
            time.sleep(3600)
        if started <= self.deaths_in_start + self.hangs_in_start + self.start_failures:
            raise ConnectionError("no network yet")
        if self.leaves_behind == "thread":
            threading.Thread(target=time.sleep, args=(3600,), name="uploader").start()
        elif self.leaves_behind == "fork":
            if os.fork() == 0:
                time.sleep(3600)
        elif self.leaves_behind == "process":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        if self.noise:
            print("a tracker prints what it likes")
            print('{"sink": "forged", "state": "finished"}', flush=True)
            os.write(1, b"\xff\x00 even binary\n")
            assert sys.stdin.read() == ""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        if self.hangs_in_config:
            time.sleep(3600)
        self._append("configs.jsonl", values)
        if self.greedy:
            values.clear()

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        row = dict(values)
        if self.greedy:
            values.clear()
        self._misbehave(step)
        values = row
        self._append("calls.jsonl", {"step": step, "values": dict(values)})
        self._keep({"step": step, "values": dict(values)})

    def finish(self, status: str | None = None) -> None:
        if self._count("finishes", status) <= self.finish_failures:
            raise RuntimeError("cannot finish yet")

    def flush(self) -> None:
        if self._count("flushes", os.getpid()) <= self.flush_failures:
            raise OSError(28, "No space left on device")

    def _keep(self, row: dict[str, Any]) -> None:
        self._append("durable.jsonl", row)

    def _misbehave(self, step: int | None) -> None:
        self.calls += 1
        if self.seconds_per_call:
            time.sleep(self.seconds_per_call)
        if self.raise_every and self.calls % self.raise_every == 0:
            raise RuntimeError("now and then")
        if step in self.refuses:
            raise ValueError(f"step {step} is not to my taste \udc80")
        if step in self.exits_at:
            sys.exit(0)
        if step in self.dies_at:
            os.kill(os.getpid(), signal.SIGABRT)
        if step in self.hangs_at and self._count(f"hangs-{step}", step) <= self.hangs:
            time.sleep(3600)

    def _append(self, name: str, content: Any) -> None:
        with open(self.directory / name, "a") as file:
            file.write(json.dumps(content) + "\n")

    def _count(self, name: str, content: Any) -> int:
        self._append(name, content)
        return len((self.directory / name).read_text().splitlines())


class BufferedTracker(ScriptedTracker):
    """Keeps what is logged in memory until it is flushed: W&B offline had 0 of 300 rows when killed after its last log."""

    durable_after = "flush"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer: list[dict[str, Any]] = []

    def flush(self) -> None:
        super().flush()
        for row in self.buffer:
            self._append("durable.jsonl", row)
        self.buffer.clear()

    def _keep(self, row: dict[str, Any]) -> None:
        self.buffer.append(row)


class FinishingTracker(BufferedTracker):
    """Keeps everything in memory until the end, like Comet's offline archive."""

    durable_after = "finish"

    def flush(self) -> None:
        pass

    def finish(self, status: str | None = None) -> None:
        super().finish(status)
        (self.directory / "durable.jsonl").unlink(missing_ok=True)
        super().flush()


class ServiceTracker(BufferedTracker):
    """Hands everything to a service, which may refuse a row, or its loss alone, when it is flushed."""

    def __init__(
        self, *args: Any, refuses_later: tuple[int, ...] = (), refuses_loss: tuple[int, ...] = (), says: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.refuses_later = set(refuses_later)
        self.refuses_loss = set(refuses_loss)
        self.says = says
        self.refused: list[RefusedRow] = []

    def start(self) -> None:
        super().start()
        if self.says:
            self.notice(f"{self.says} \udc80")

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        super().log(values, step, **kwargs)
        if self.says:
            self.notice(f"{self.says} \udc80")
            self.notice(f"{self.says} of step {step}")

    def flush(self) -> None:
        kept = []
        for row in self.buffer:
            if row["step"] in self.refuses_later:
                self.refused.append(RefusedRow(0, row["step"], "422 \udc80 no such row"))
                continue
            if row["step"] in self.refuses_loss and "loss" in row["values"]:
                self.refused.append(RefusedRow(0, row["step"], "not this value", ("loss",)))
                row["values"].pop("loss")
            kept.append(row)
        self.buffer[:] = kept
        super().flush()

    def refused_rows(self) -> list[RefusedRow]:
        refused, self.refused = self.refused, []
        return refused


class SummaryTracker(ScriptedTracker):
    """Does not take the summary: *summary_failures* times, as the service is away, or never, as it refuses."""

    def __init__(self, *args: Any, summary_failures: int = 0, refuses_summary: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.summary_failures = summary_failures
        self.refuses_summary = refuses_summary

    def summarise(self, values: Any) -> None:
        if self._count("summaries", values) <= self.summary_failures:
            raise ConnectionError("the service is away")
        if self.refuses_summary:
            raise ValueError("no summaries here")
        self._append("summary.jsonl", values)


class DeclaringTracker(ScriptedTracker):
    """Takes batches, and says which keyword arguments mean something to it."""

    log_keywords = ("epoch",)

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(step or 0, values, 0, log_kwargs=kwargs)])

    def log_batch(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._append("keywords.jsonl", dict(row.log_kwargs))


class FinishingService(ServiceTracker):
    """Hands everything over when it is finished."""

    durable_after = "finish"

    def flush(self) -> None:
        pass

    def finish(self, status: str | None = None) -> None:
        ServiceTracker.flush(self)
        super().finish(status)


class ExactTracker(ScriptedTracker):
    """A file that is cut back to the cursor after a crash."""

    durable_after = "flush"

    def checkpoint(self) -> dict[str, Any]:
        path = self.directory / "durable.jsonl"
        return {"size": path.stat().st_size if path.exists() else 0}

    def restore(self, checkpoint: dict[str, Any]) -> None:
        self._append("restores", checkpoint)
        path = self.directory / "durable.jsonl"
        if path.exists():
            os.truncate(path, checkpoint.get("size", 0))


class ClosingTracker(ExactTracker):
    """Writes its last line when it is finished."""

    def finish(self, status: str | None = None) -> None:
        super().finish(status)
        self._append("durable.jsonl", {"status": status})


class PlainTracker(ScriptedTracker):
    """As written for Accelerate: no hooks, ``finish`` without a status."""

    def finish(self) -> None:  # type: ignore[override]
        self._append("finishes", "plain")


def lines(path: Path) -> list[Any]:
    """Return the JSON lines of a file, [] when it is not there yet; a torn last line is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
