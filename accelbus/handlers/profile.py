"""`ProfileKwargs`: what ``torch.profiler.profile`` records, when, on which ranks, and where each cycle goes."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from accelbus.errors import ConfigurationError
from accelbus.handlers import process
from accelbus.handlers.base import KwargsHandler
from accelbus.handlers.fields import checked, flag, function, integer, one_of, optional, wrong_type, wrong_value
from accelbus.meant import hint

if TYPE_CHECKING:
    import torch

ACTIVITIES = ("cpu", "xpu", "mtia", "cuda", "hpu")
LEAST = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 0, "skip_first_wait": 0}
"""{key of schedule_option: its least value}"""
REQUIRED = ("wait", "warmup", "active")


class KeyAverages(NamedTuple):
    """What one cycle spent its time on, per operation, the longest first: arguments for `accelbus.Table` or ``run.log_table``."""

    columns: list[str]
    data: list[list[str | int | float]]
    """Times in microseconds, memory in bytes."""


OnExport = Callable[[Path | None, KeyAverages], object]
"""Called after each cycle with the trace's file (None without a directory) and the table."""


def _activities(label: str, value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise wrong_type(label, f"a list of {', '.join(ACTIVITIES)}", value)
    names = [_activity(label, one) for one in value]
    if not names:
        raise wrong_value(label, "at least one activity, or None for all there are", value)
    return names


def _activity(label: str, value: Any) -> str:
    # torch's own enum too, which is no enum.Enum.
    name = value if isinstance(value, str) else getattr(value, "value" if isinstance(value, enum.Enum) else "name", None)
    if not isinstance(name, str):
        raise wrong_type(label, f"a list of {', '.join(ACTIVITIES)}", value)
    if name.lower() not in ACTIVITIES:
        raise one_of(label, name, ACTIVITIES)
    return name.lower()


def _schedule(label: str, value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise wrong_type(label, f"a mapping with {', '.join(REQUIRED)}", value)
    for unknown in value.keys() - LEAST:
        raise ConfigurationError(f"{label}: unknown key {unknown!r}{hint(str(unknown).lower(), LEAST)} (known: {', '.join(LEAST)})")
    if missing := [name for name in REQUIRED if name not in value]:
        raise wrong_value(label, f"a mapping with {', '.join(REQUIRED)} (missing: {', '.join(missing)})", value)
    return {name: integer(LEAST[name])(f"{label}[{name}]", steps) for name, steps in value.items()}


def _ranks(label: str, value: Any) -> list[int]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise wrong_type(label, "a list of ranks", value)
    return [integer(0)(label, one) for one in value]


def _directory(label: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or not (path := os.fspath(value)):
        raise wrong_type(label, "a directory", value)
    return path if isinstance(path, str) else os.fsdecode(path)


@dataclasses.dataclass
class ProfileKwargs(KwargsHandler):
    """Arguments of ``torch.profiler.profile``, and where its traces go.

    Args:
        activities: any of "cpu", "cuda", "xpu", "mtia", "hpu"; all that there are when None.
        schedule_option: ``wait``, ``warmup``, ``active`` (steps of a cycle), ``repeat`` (cycles, 0 for no end), ``skip_first`` and
            ``skip_first_wait``. Call ``step()`` of the profiler after each step. None: everything is one cycle.
        on_trace_ready: called with the profiler after each cycle, once its trace has been exported.
        record_shapes: whether shapes of inputs are kept.
        profile_memory: whether allocations are.
        with_stack: whether file and line are.
        with_flops: whether FLOPs of some operators are estimated.
        with_modules: whether the modules that called are kept.
        output_trace_dir: where each cycle's trace goes, as ``profile_rank<rank>_step<last step>_cycle<cycle>.json.gz``.
        ranks: which ones profile; all when None. The others get a profiler that does nothing.
        on_export: called with the trace's file and a `KeyAverages` after each cycle.
    """

    activities: list[str] | None = checked(None, optional(_activities))
    schedule_option: dict[str, int] | None = checked(None, optional(_schedule))
    on_trace_ready: Callable[..., Any] | None = checked(None, optional(function))  # Any: whatever it returns is dropped
    record_shapes: bool = checked(False, flag)
    profile_memory: bool = checked(False, flag)
    with_stack: bool = checked(False, flag)
    with_flops: bool = checked(False, flag)
    with_modules: bool = checked(False, flag)
    output_trace_dir: str | None = checked(None, optional(_directory))
    ranks: list[int] | None = checked(None, optional(_ranks))
    on_export: OnExport | None = checked(None, optional(function))

    def build(
        self,
        *,
        rank: int | None = None,
        first_step: int = 0,
        on_export: OnExport | None = None,
        default_trace_dir: str | os.PathLike[str] | None = None,
        **arguments: Any,  # Any: torch's own arguments
    ) -> torch.profiler.profile:
        """Make a profiler; use it with ``with``. No rank waits for another, at no time.

        Every cycle is exported when it ends, also the one that an exception or the end of the block cuts short. What goes wrong with a
        file is warned about and does not reach the training loop.

        Args:
            rank: this process's; the process group's, else the launcher's, when not given.
            first_step: number of the first step, for the names of files.
            on_export: called after the handler's own.
            default_trace_dir: where traces go if the handler has no ``output_trace_dir``.
            arguments: what else torch takes, such as ``experimental_config``.

        Raises:
            ConfigurationError: none of the activities exists here.
        """
        process.require_torch()
        from accelbus.handlers.profiler import ExportingProfiler, IdleProfiler, Trace

        rank = process.rank() if rank is None else rank
        if self.ranks is not None:
            if not any(one < max(process.world_size(), rank + 1) for one in self.ranks):
                self.warn_no_effect(f"has no effect: none of the ranks {self.ranks} exists")
            if rank not in self.ranks:
                return IdleProfiler()
        hooks = tuple(hook for hook in (self.on_export, on_export) if hook is not None)
        directory = self.output_trace_dir or default_trace_dir
        trace = Trace(
            directory=None if directory is None else Path(directory),
            rank=rank,
            first_step=first_step,
            hooks=hooks,
            on_trace_ready=self.on_trace_ready,
        )
        return ExportingProfiler(trace, **{**self._for_torch(), **arguments})

    def _for_torch(self) -> dict[str, Any]:
        import torch

        recorded = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
        chosen = {name: value for name, value in self.to_kwargs().items() if name in recorded}
        if self.activities is not None:
            chosen["activities"] = self._available()
        if self.schedule_option is not None:
            chosen["schedule"] = torch.profiler.schedule(**self.schedule_option)
        return chosen

    def _available(self) -> list[torch.profiler.ProfilerActivity]:
        """Return the activities as torch has them, without those that this machine lacks: a script runs on a CPU as it does on a GPU."""
        import torch

        supported = {activity.name.lower(): activity for activity in torch.profiler.supported_activities()}
        wanted = dict.fromkeys(self.activities or ())
        found = [supported[name] for name in wanted if name in supported]
        if not found:
            raise ConfigurationError(
                f"{type(self).__name__}.activities: none of {', '.join(wanted)} exists here (there is: {', '.join(sorted(supported))})"
            )
        for missing in [name for name in wanted if name not in supported]:
            self.warn_no_effect(f'records nothing for "{missing}", which does not exist here', stacklevel=4)
        return found
