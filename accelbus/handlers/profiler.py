"""Profilers that export every cycle. Imports torch: only `ProfileKwargs.build` imports this module."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import logging
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.autograd.profiler_util import EventList

from accelbus.handlers.profile import KeyAverages, OnExport

_log = logging.getLogger(__name__)
ROWS = 200
"""Operations in a table: what comes after has no share that anybody sees."""


@dataclasses.dataclass(frozen=True)
class Trace:
    """Where a profiler's cycles go, and who is told."""

    directory: Path | None
    rank: int
    first_step: int
    hooks: tuple[OnExport, ...]
    on_trace_ready: Callable[..., Any] | None  # Any: whatever it returns is dropped


class ExportingProfiler(torch.profiler.profile):
    """A profiler that writes each cycle into a file of its own when it ends."""

    is_active = True

    def __init__(self, trace: Trace, **arguments: Any) -> None:  # Any: torch's own arguments
        self.trace = trace
        self.cycle = 0
        """Cycles that are over."""
        self.exported: list[Path] = []
        """Their files."""
        self._file: Path | None = None  # this cycle's trace: torch writes each only once
        self._last_step = 0
        self._is_unwinding = False
        super().__init__(on_trace_ready=self._finish_cycle, **arguments)

    def step(self) -> None:
        self._last_step = self.step_num
        super().step()

    def stop(self) -> None:
        self._last_step = self.step_num
        super().stop()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._is_unwinding = kind is not None
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def prepare_trace(self) -> None:
        self._file = None
        if not self.acc_events:
            # torch would warn that the last cycle's events are gone: they are in its file.
            self.profiler = None
        super().prepare_trace()

    def export_chrome_trace(self, path: str | os.PathLike[str], *arguments: Any, **named: Any) -> None:  # Any: torch's own
        """Write this cycle's trace to *path*, as often as you like: torch alone refuses a second time."""
        target = Path(path)
        if self._file is not None and self._file.exists():
            _copy(self._file, target)
            return
        super().export_chrome_trace(os.fspath(target), *arguments, **named)
        self._file = target

    def _finish_cycle(self, _profiler: torch.profiler.profile) -> None:
        try:
            path = self._write()
            if self.trace.on_trace_ready is not None:
                self.trace.on_trace_ready(self)
            if self.trace.hooks:
                table = key_averages(self)
                for hook in self.trace.hooks:
                    hook(path, table)
        except Exception:
            # What ended the training loop is what its user must see.
            if not self._is_unwinding:
                raise
            _log.exception("a callback of the profiler failed while another exception ended its block")
        finally:
            self.cycle += 1

    def _write(self) -> Path | None:
        """Write this cycle's file, and return its path; None without a directory, or when the disk does not want it."""
        if self.trace.directory is None:
            return None
        name = f"profile_rank{self.trace.rank}_step{self.trace.first_step + self._last_step}_cycle{self.cycle}"
        hidden = self.trace.directory / f".{name}.{os.getpid()}.json.gz"
        try:
            self.trace.directory.mkdir(parents=True, exist_ok=True)
            super().export_chrome_trace(str(hidden))
            self._file = _publish(hidden, name)
        except OSError as error:
            with contextlib.suppress(OSError):
                hidden.unlink()
            warnings.warn(f"cycle {self.cycle} of the profile could not be written: {error}", stacklevel=2)
            return None
        self.exported.append(self._file)
        return self._file


class IdleProfiler(torch.profiler.profile):
    """The profiler of a rank that does not profile: every call works, records nothing and costs nothing."""

    is_active = False

    def __init__(self) -> None:
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], schedule=lambda _step: torch.profiler.ProfilerAction.NONE)
        self.record_steps = False
        self.cycle = 0
        self.exported: list[Path] = []

    def step(self) -> None:
        self.step_num += 1

    def key_averages(self, *_arguments: Any, **_named: Any) -> EventList:  # Any: torch's own
        return EventList([])

    def events(self) -> EventList:
        return EventList([])

    def export_chrome_trace(self, *_arguments: Any, **_named: Any) -> None:
        """Write nothing."""

    def export_stacks(self, *_arguments: Any, **_named: Any) -> None:
        """Write nothing."""


def key_averages(profiler: torch.profiler.profile, rows: int = ROWS) -> KeyAverages:
    """Return the *rows* operations on which the last cycle of *profiler* spent most."""
    columns = {"operation": "key", "calls": "count", "self CPU us": "self_cpu_time_total", "CPU us": "cpu_time_total"}
    if profiler.use_device is not None:
        columns |= {"self device us": "self_device_time_total", "device us": "device_time_total"}
    if profiler.profile_memory:
        columns |= {"self CPU bytes": "self_cpu_memory_usage"}
        if profiler.use_device is not None:
            columns |= {"self device bytes": "self_device_memory_usage"}
    if profiler.with_flops:
        columns |= {"FLOPs": "flops"}
    if profiler.record_shapes:
        columns |= {"shapes": "input_shapes"}
    longest = "self_cpu_time_total" if profiler.use_device is None else "self_device_time_total"
    events = profiler.key_averages(group_by_input_shape=profiler.record_shapes)
    ordered = sorted(events, key=lambda event: getattr(event, longest), reverse=True)[:rows]
    return KeyAverages(list(columns), [[_cell(getattr(event, name)) for name in columns.values()] for event in ordered])


def _cell(value: Any) -> str | int | float:
    return value if isinstance(value, str | int | float) else str(value)


def _publish(hidden: Path, name: str) -> Path:
    """Give *hidden* its name; one that is taken, by the run before or the block before, stays as it is."""
    for number in range(10_000):
        target = hidden.with_name(f"{name}{f'.{number}' if number else ''}.json.gz")
        try:
            target.touch(exist_ok=False)
        except FileExistsError:
            continue
        os.replace(hidden, target)
        return target
    raise FileExistsError(f"{name}: ten thousand traces of that name")


def _copy(source: Path, target: Path) -> None:
    """Copy a trace, packed or unpacked as the names say."""
    if source.resolve() == target.resolve():
        return
    opened: dict[bool, Callable[..., Any]] = {True: gzip.open, False: open}
    with opened[source.suffix == ".gz"](source, "rb") as there, opened[target.suffix == ".gz"](target, "wb") as here:
        shutil.copyfileobj(there, here)
