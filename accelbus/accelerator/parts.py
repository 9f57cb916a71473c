"""What the groups of methods of `Accelerator` share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelbus.accelerator.buckets import BucketOrder
from accelbus.accelerator.checkpoint import Marker
from accelbus.accelerator.gradients import GradientState
from accelbus.accelerator.optimizer import AcceleratedOptimizer
from accelbus.accelerator.options import ProjectConfiguration
from accelbus.accelerator.scaling import LossScaling
from accelbus.accelerator.scheduler import AcceleratedScheduler
from accelbus.accelerator.state import ProcessState
from accelbus.accelerator.telemetry import Telemetry
from accelbus.client.run import Run
from accelbus.handlers import Handlers


class Parts:
    """Attributes that `Accelerator` sets, and methods that one group has and others call."""

    state: ProcessState
    gradient_state: GradientState
    handlers: Handlers
    mixed_precision: str
    project_configuration: ProjectConfiguration
    telemetry: Telemetry
    log_with: Any
    """Names, classes or trackers."""
    _scaling: LossScaling | None
    _models: list[nn.Module]
    _optimizers: list[AcceleratedOptimizer]
    _schedulers: list[AcceleratedScheduler]
    _dataloaders: list[Any]
    _custom_objects: list[Any]
    _orders: dict[int, BucketOrder]
    """{number of a DDP model: the order of its gradients}"""
    _watched: list[BucketOrder]
    """Those that are not known yet."""
    _sorting: list[DistributedDataParallel]
    """Models whose buckets of gradients DDP has not sorted for good."""
    _before_saving: OrderedDict[int, Callable[..., None]]
    _before_loading: OrderedDict[int, Callable[..., None]]
    _run: Run | None
    _is_tracking: bool
    """Whether the run goes on."""
    _origin: Marker | None
    """The checkpoint that was loaded."""
    _newest: Marker | None
    """The newest checkpoint of the project when training began."""
    _last_step: int | None
    """The last step that was logged."""

    def wait_for_everyone(self) -> None:
        """Wait until every process has come here."""
        raise NotImplementedError

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> nn.Module:
        """Return the model that was prepared."""
        raise NotImplementedError

    def record_fork(self, origin: Marker) -> None:
        """Record that the run goes on from another run's checkpoint."""
        raise NotImplementedError

    def _numbers(self) -> dict[str, Any]:
        """Return the telemetry since the last call."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Return the settings in force as plain data."""
        raise NotImplementedError


__all__ = ["Parts"]
