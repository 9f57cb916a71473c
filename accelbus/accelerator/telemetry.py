"""What the runtime tells about itself: settings in force, and numbers that cost nothing beside a step.

The numbers travel with the next call of `Accelerator.log`, under its step: they stand beside the values of the user, on the same axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from accelbus.accelerator.scaling import LossScaling
from accelbus.accelerator.stopwatch import Stopwatch
from accelbus.errors import ConfigurationError
from accelbus.handlers import InitProcessGroupKwargs, ddp_in_force, registered

if TYPE_CHECKING:
    from accelbus.accelerator.optimizer import AcceleratedOptimizer

KINDS: Final = {
    "config": "settings in force, recorded as configuration",
    "gradients": "norm that clip_grad_norm_ returned last",
    "scaler": "scale of the gradient scaler, steps since it changed, and steps that each optimizer skipped",
    "communication": "bytes before over bytes after compression by the communication hook",
    "data": "seconds of a training step spent on waiting for data, and on computing",
    "profile": "trace files and tables of operations of each profiled cycle",
}
PREFIX: Final = "telemetry/"


class Telemetry:
    """Gathers numbers until they are taken.

    Args:
        wanted: True for all `KINDS`, False for none, or some of them.
    """

    def __init__(self, wanted: bool | str | Iterable[str]) -> None:
        self.kinds = _kinds(wanted)
        self.stopwatch = Stopwatch() if "data" in self.kinds else None
        self._norm: Any = None
        self._skipped: dict[int, Any] = {}
        """{optimizer, in order of preparation: steps it skipped}; a tensor where only the device knows."""
        self._optimizers: list[AcceleratedOptimizer] = []

    def prepared(self, optimizer: AcceleratedOptimizer) -> None:
        """Give *optimizer* its number, the next one."""
        self._optimizers.append(optimizer)

    def forget(self) -> None:
        """Count optimizers from the beginning again."""
        self._optimizers.clear()
        self._skipped.clear()

    def training(self) -> None:
        """Note that the current batch is trained on."""
        if self.stopwatch is not None:
            self.stopwatch.train()

    def clipped(self, norm: Any) -> None:
        """Note the norm of the gradients."""
        if "gradients" in self.kinds:
            self._norm = norm.detach() if isinstance(norm, torch.Tensor) else norm

    def stepped(self, optimizer: AcceleratedOptimizer) -> None:
        """Note that an optimizer was to step."""
        self.training()
        if optimizer.scaling is None or "scaler" not in self.kinds:
            return
        if optimizer not in self._optimizers:
            self.prepared(optimizer)  # it was made without `prepare`, or is used after `free_memory`
        number = self._optimizers.index(optimizer)
        self._skipped[number] = self._skipped.get(number, 0) + optimizer.overflow.count()

    def take(self, scaling: LossScaling | None, models: Iterable[torch.nn.Module]) -> dict[str, Any]:
        """Return the numbers since the last call."""
        found: dict[str, Any] = {}
        if self._norm is not None:
            found["grad_norm"], self._norm = self._norm, None
        if scaling is not None and "scaler" in self.kinds and (scale := scaling.scale()) is not None:
            found["scaler/scale"] = scale
            found["scaler/growth_steps"] = scaling.growth()
            for number, count in self._skipped.items():
                found["scaler/skipped_steps" if number == 0 else f"scaler/skipped_steps_{number}"] = count
        if "communication" in self.kinds:
            found |= _compression(models)
        if self.stopwatch is not None:
            times = self.stopwatch.take()
            if times.batches:
                found |= {"data_wait_s": times.waited / times.batches, "compute_s": times.computed / times.batches}
        return {PREFIX + name: value for name, value in found.items()}


def runtime(**facts: Any) -> dict[str, Any]:
    """Return versions, process group and *facts* as plain data, for a run's configuration."""
    group = InitProcessGroupKwargs().settings() if torch.distributed.is_available() and torch.distributed.is_initialized() else {}
    return {
        **facts,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "backend": group.get("backend"),
        "timeout_s": group.get("timeout"),
    }


def wrapped(models: Iterable[torch.nn.Module]) -> dict[str, Any]:
    """Return how each DDP model among *models* is wrapped."""
    found = [ddp_in_force(model) for model in models if isinstance(model, DistributedDataParallel)]
    return {"ddp" if number == 0 else f"ddp_{number}": facts for number, facts in enumerate(found)}


def _compression(models: Iterable[torch.nn.Module]) -> Mapping[str, float]:
    hooks = [registered(model) for model in models if isinstance(model, DistributedDataParallel)]
    ratios = [hook.compression_ratio() for hook in hooks if hook is not None]
    known = [ratio for ratio in ratios if ratio is not None]
    return {"comm_compression" if number == 0 else f"comm_compression_{number}": ratio for number, ratio in enumerate(known)}


def _kinds(wanted: bool | str | Iterable[str]) -> frozenset[str]:
    if isinstance(wanted, bool):
        return frozenset(KINDS) if wanted else frozenset()
    chosen = frozenset([wanted] if isinstance(wanted, str) else wanted)
    if unknown := sorted(map(str, chosen - KINDS.keys())):
        raise ConfigurationError(f"telemetry={wanted!r}: unknown {unknown[0]!r} (known: {', '.join(KINDS)}; True for all, False for none)")
    return chosen


__all__ = ["KINDS", "PREFIX", "Telemetry", "runtime", "wrapped"]
