"""Handlers: what a user chooses about process group, DDP, autocast, gradient scaler and profiler.

Each is a dataclass with the fields of the torch object it stands for, checked when they are set, and has the method that makes it::

    from accelbus.handlers import DistributedDataParallelKwargs, InitProcessGroupKwargs

    InitProcessGroupKwargs(timeout=timedelta(minutes=5)).init()
    model = DistributedDataParallelKwargs(bucket_cap_mb=50, comm_hook="bf16").wrap(model)

Names, fields and defaults are Accelerate's. Importing this package does not import torch; the methods do.
"""

from __future__ import annotations

from accelbus.handlers.autocast import AutocastKwargs
from accelbus.handlers.base import KwargsHandler, NoEffectWarning
from accelbus.handlers.comm_hooks import DDPCommunicationHookType, register_comm_hook, registered
from accelbus.handlers.ddp import DistributedDataParallelKwargs, buckets_are_final, ddp_in_force
from accelbus.handlers.grad_scaler import GradScalerKwargs
from accelbus.handlers.process_group import InitProcessGroupKwargs, in_force
from accelbus.handlers.profile import KeyAverages, ProfileKwargs
from accelbus.handlers.sorting import Handlers, as_handler, sort_handlers

__all__ = [
    "AutocastKwargs",
    "DDPCommunicationHookType",
    "DistributedDataParallelKwargs",
    "GradScalerKwargs",
    "Handlers",
    "InitProcessGroupKwargs",
    "KeyAverages",
    "KwargsHandler",
    "NoEffectWarning",
    "ProfileKwargs",
    "as_handler",
    "buckets_are_final",
    "ddp_in_force",
    "in_force",
    "register_comm_hook",
    "registered",
    "sort_handlers",
]
