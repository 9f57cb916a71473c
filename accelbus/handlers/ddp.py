"""`DistributedDataParallelKwargs`: how a model is wrapped for data-parallel training."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from accelbus.handlers.base import KwargsHandler
from accelbus.handlers.comm_hooks import (
    DDPCommunicationHookType,
    Hook,
    check_options,
    hook_type,
    register_comm_hook,
    registered,
    wrapper_type,
)
from accelbus.handlers.fields import checked, flag, integer, number, optional, wrong_type
from accelbus.handlers.process import group_exists, require_torch

if TYPE_CHECKING:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

COMM_FIELDS = ("comm_hook", "comm_wrapper", "comm_state_option")


def _options(label: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise wrong_type(label, "a dict with names as keys", value)
    return dict(value)


@dataclasses.dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Arguments of ``torch.nn.parallel.DistributedDataParallel``, and how gradients travel.

    Args:
        dim: along which outputs of several devices are joined.
        broadcast_buffers: whether rank 0's buffers go to all ranks before each forward.
        bucket_cap_mb: size of a bucket of gradients. Not set, torch uses 25 with a small first bucket; 25 that is set means all of them.
        find_unused_parameters: whether parameters without a gradient are looked for in each step.
        check_reduction: has had no meaning in torch for long.
        gradient_as_bucket_view: whether gradients live in the buckets, which saves a copy.
        static_graph: whether every step uses the same parameters.
        comm_hook: a name or `DDPCommunicationHookType`, or a callable that takes (state, bucket).
        comm_wrapper: "fp16" or "bf16", to halve what the hook sends.
        comm_state_option: options of the hook: those of torch's ``PowerSGDState`` or ``PostLocalSGDState``; "process_group" for any
            named one; "state" for a callable, which is given it.
    """

    dim: int = checked(0, integer(minimum=0))
    broadcast_buffers: bool = checked(True, flag)
    bucket_cap_mb: int = checked(25, optional(number(above=0)))
    find_unused_parameters: bool = checked(False, flag)
    check_reduction: bool = checked(False, flag)
    gradient_as_bucket_view: bool = checked(False, flag)
    static_graph: bool = checked(False, flag)
    comm_hook: DDPCommunicationHookType | Hook | str = checked(DDPCommunicationHookType.NO, hook_type)
    comm_wrapper: DDPCommunicationHookType | str = checked(DDPCommunicationHookType.NO, wrapper_type)
    comm_state_option: dict[str, Any] = checked(dict, _options)  # Any: what the hook's state takes

    def __post_init__(self) -> None:
        check_options(f"{type(self).__name__}.comm_state_option", hook_type("comm_hook", self.comm_hook), self.comm_state_option)

    def to_dict(self, ignore_keys: Collection[str] = COMM_FIELDS) -> dict[str, Any]:
        """Return {field: value} without the fields that are not DDP's own."""
        return super().to_dict(ignore_keys)

    def wrap(self, model: nn.Module, **arguments: Any) -> nn.Module:  # Any: torch's own arguments
        """Return *model* in a ``DistributedDataParallel`` with these settings and the hook; a collective call, on the model's device.

        The model itself is returned, and a warning given, where there is nothing to be done: in a single process, and for a model
        that is not trained.

        Args:
            model: what is trained, on the device where it stays.
            arguments: ``device_ids``, ``process_group``, ``init_sync`` and what else torch takes; they win over the fields.
        """
        require_torch()
        if not group_exists():
            self.warn_no_effect("has no effect: there is no process group, so this is the only process")
            return model
        if _ranks_of(arguments) == 1:
            self.warn_no_effect("has no effect: there is one process")
            return model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            self.warn_no_effect("has no effect on a model of which no parameter requires a gradient")
            return model
        from torch.nn.parallel import DistributedDataParallel

        wrapped = DistributedDataParallel(model, **{**_devices(model), **self._for_torch(), **arguments})
        self.register_comm_hook(wrapped)
        return wrapped

    def register_comm_hook(self, model: DistributedDataParallel) -> Any:  # Any: the state is the hook's own
        """Let the chosen hook carry the gradients of *model*; returns its state, also found by `registered`."""
        if self.comm_hook == DDPCommunicationHookType.NO and self.comm_wrapper != DDPCommunicationHookType.NO:
            self.warn_no_effect(f'wraps nothing: comm_wrapper="{self.comm_wrapper}" needs a comm_hook')
        return register_comm_hook(model, self.comm_hook, self.comm_wrapper, self.comm_state_option)

    def _for_torch(self) -> dict[str, Any]:
        """Return the arguments as the installed torch names them."""
        from torch.nn.parallel import DistributedDataParallel

        chosen = self.kwargs_for(DistributedDataParallel, DistributedDataParallelKwargs)
        # torch 2.13 warns about the old name. Only True means the same under the new one: False also ends the broadcast at the start.
        if chosen.get("broadcast_buffers") and "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters:
            chosen["forward_sync_buffers"] = chosen.pop("broadcast_buffers")
        return chosen


def ddp_in_force(model: DistributedDataParallel) -> dict[str, Any]:  # Any: plain data
    """Return how *model* is wrapped, as plain data: arguments, buckets (bytes; final after three steps), hook, world size."""
    hook = registered(model)
    found: dict[str, Any] = {
        "bucket_cap_mb": model.bucket_bytes_cap / 2**20,
        "find_unused_parameters": model.find_unused_parameters,
        "gradient_as_bucket_view": model.gradient_as_bucket_view,
        "static_graph": model.static_graph,
        "comm_hook": "no" if hook is None else str(getattr(hook.hook, "__qualname__", hook.hook)),
        "comm_wrapper": "no" if hook is None else str(hook.wrapper),
    }
    describe = getattr(model, "_get_ddp_logging_data", None)
    data = {} if describe is None else describe()
    names = {"rebuilt_bucket_sizes": "buckets", "bucket_sizes": "buckets", "broadcast_buffers": "broadcast_buffers"}
    for name, ours in names.items():
        if data.get(name) not in {None, ""}:
            found.setdefault(ours, data[name])
    found["broadcast_buffers"] = bool(found.get("broadcast_buffers", True))
    buckets = str(found.pop("buckets", ""))
    return {**found, "bucket_bytes": [int(size) for size in buckets.split(",") if size.strip().isdigit()]}


def buckets_are_final(model: DistributedDataParallel) -> bool:
    """Whether the buckets that `ddp_in_force` tells stay as they are: DDP has sorted them anew and says so, or never will."""
    if model.find_unused_parameters and not model.static_graph:
        return True
    describe = getattr(model, "_get_ddp_logging_data", None)
    return describe is None or bool(describe().get("has_rebuilt_buckets"))


def _ranks_of(arguments: dict[str, Any]) -> int:
    import torch.distributed as dist

    return dist.get_world_size(arguments.get("process_group"))


def _devices(model: nn.Module) -> dict[str, Any]:
    """Return ``device_ids`` for a model that lives on one device with a number; torch wants none for others."""
    places = {parameter.device for parameter in model.parameters()}
    if len(places) != 1 or (place := next(iter(places))).type == "cpu" or place.index is None:
        return {}
    return {"device_ids": [place.index], "output_device": place.index}
