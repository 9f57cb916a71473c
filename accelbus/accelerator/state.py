"""The processes of a job and what each computes on."""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from accelbus.errors import ConfigurationError
from accelbus.handlers import InitProcessGroupKwargs
from accelbus.handlers.process import device_type


class DistributedType(enum.StrEnum):
    """How the processes of the job share the work; the values are Accelerate's."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_XPU = "MULTI_XPU"


@dataclasses.dataclass(frozen=True)
class ProcessState:
    """Which process this is, and its device."""

    process_index: int
    num_processes: int
    local_process_index: int
    num_processes_on_node: int
    device: torch.device
    backend: str | None
    """Of the process group; None in a single process."""

    @property
    def distributed_type(self) -> DistributedType:
        if self.num_processes == 1:
            return DistributedType.NO
        return {"cuda": DistributedType.MULTI_GPU, "xpu": DistributedType.MULTI_XPU}.get(self.device.type, DistributedType.MULTI_CPU)

    @property
    def use_distributed(self) -> bool:
        return self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        return self.process_index == self.num_processes - 1


def start_processes(handler: InitProcessGroupKwargs | None, *, cpu: bool = False) -> ProcessState:
    """Join the other processes, if there are any, and return who this one is.

    A process group that exists is used as it is. Otherwise one is made, as *handler* says, when the launcher has started several processes
    or a handler is given.

    Args:
        handler: arguments of the process group.
        cpu: compute on the CPU even if there is an accelerator.

    Raises:
        ConfigurationError: there are more processes on this node than accelerators, or the backend does not exist.
    """
    kind = "cpu" if cpu else device_type()
    device = _device(kind)
    if device.type != "cpu" and device.index is not None:
        # Before the group: NCCL would put every rank's context on the first device.
        torch.get_device_module(device).set_device(device)
    if handler is None and _from_environment("WORLD_SIZE", 1) > 1 and not _has_group():
        handler = InitProcessGroupKwargs()
    if handler is not None:
        handler.init(device_type=kind, **_meeting_place(handler))
    if not _has_group():
        return ProcessState(0, 1, 0, 1, device, None)
    rank, world = dist.get_rank(), dist.get_world_size()
    return ProcessState(rank, world, _local_rank(rank), _from_environment("LOCAL_WORLD_SIZE", world), device, str(dist.get_backend()))


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _meeting_place(handler: InitProcessGroupKwargs) -> dict[str, Any]:
    """Return where the processes meet after torchrun has restarted them on one node, else nothing: the environment says it.

    torch 2.13 keeps the store of the ranks that are gone, with their addresses: gloo tries to connect to them, and fails. Restart counts
    are the same on one node only.
    """
    restarts = _from_environment("TORCHELASTIC_RESTART_COUNT", 0)
    world = _from_environment("WORLD_SIZE", 1)
    if not restarts or world == 1 or world != _from_environment("LOCAL_WORLD_SIZE", 0) or handler.init_method is not None or _has_group():
        return {}
    store, rank, world = next(rendezvous("env://"))
    fresh = dist.PrefixStore(f"restart_{restarts}", store)  # type: ignore[attr-defined]  # torch exports it, and does not say so
    return {"store": fresh, "rank": rank, "world_size": world}


def _device(kind: str) -> torch.device:
    if kind in {"cpu", "mps"}:
        return torch.device(kind)
    count = torch.get_device_module(kind).device_count()
    index = _from_environment("LOCAL_RANK", 0)
    if index >= count:
        raise ConfigurationError(
            f"LOCAL_RANK={index}, but there are {count} devices of kind {kind!r} on this node; start one process per device"
        )
    return torch.device(kind, index)


def _local_rank(rank: int) -> int:
    return _from_environment("LOCAL_RANK", rank)


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


__all__ = ["DistributedType", "ProcessState", "start_processes"]
