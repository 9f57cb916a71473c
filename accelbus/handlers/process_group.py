"""`InitProcessGroupKwargs`: how the processes of a job find each other, and how long they wait for each other."""

from __future__ import annotations

import atexit
import dataclasses
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from accelbus.errors import ConfigurationError
from accelbus.handlers.base import KwargsHandler
from accelbus.handlers.fields import checked, one_of, optional, text, wrong_type, wrong_value
from accelbus.handlers.process import device_type as current_device_type, group_exists, let_go_of_group, require_torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

KNOWN = ("nccl", "gloo", "mpi", "ucc", "xccl", "hccl", "cncl", "mccl", "tccl", "ccl", "smddp", "xla", "neuron", "fake")
"""torch's backends and those of well-known plug-ins. A name that is none of them is looked up in torch, which is then imported."""
NCCL_TIMEOUT = timedelta(minutes=10)
OTHER_TIMEOUT = timedelta(minutes=30)
"""As in torch: NCCL operations that take longer are more likely stuck than slow."""


def _backend(label: str, value: Any) -> str:
    """Let backends through, also one per device: "cuda:nccl,cpu:gloo"."""
    wanted = text(label, value).lower()
    for part in wanted.split(","):
        name = part.rpartition(":")[2]
        if name not in KNOWN and name not in (known := _registered()):
            raise one_of(label, name, sorted({*KNOWN, *known}))
    return wanted


def _timeout(label: str, value: Any) -> timedelta:
    if not isinstance(value, timedelta):
        raise wrong_type(label, "a datetime.timedelta, such as timedelta(seconds=800)", value)
    if value <= timedelta(0):
        raise wrong_value(label, "a duration above zero", value)
    return value


@dataclasses.dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """Arguments of ``torch.distributed.init_process_group``.

    Args:
        backend: "nccl", "gloo", … or one per device, "cuda:nccl,cpu:gloo". Unless it is set, the one that fits the device is used.
        init_method: where the processes meet; the launcher's environment when None.
        timeout: how long an operation may take; None means 10 minutes for "nccl" and 30 for others. It is that of the default
            group: further groups have their own.
    """

    backend: str | None = checked("nccl", optional(_backend))
    init_method: str | None = checked(None, optional(text))
    timeout: timedelta | None = checked(None, optional(_timeout))

    def __setattr__(self, name: str, value: Any) -> None:  # Any: the check of the field decides
        super().__setattr__(name, value)
        if "timeout" in self.__dict__:
            self._resolve_timeout()

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        return {**super().defaults(), "timeout": NCCL_TIMEOUT}

    def init(self, *, device_type: str | None = None, **arguments: Any) -> bool:  # Any: torch's own arguments
        """Make the default process group, and return whether this call has made it.

        A script that is started alone, without a launcher, needs none; one that exists already is left alone. Both are warned about.

        Args:
            device_type: what to choose a backend for, where none was set; this machine's accelerator, else the CPU, when not given.
            arguments: ``rank``, ``world_size``, ``store``, ``device_id``, ``pg_options`` and what else torch takes.

        Raises:
            ConfigurationError: the backend is not part of this torch.
        """
        require_torch()
        import torch.distributed as dist

        if group_exists():
            there = in_force()
            self.warn_no_effect(
                "has no effect: the process group exists already"
                f" (backend {there['backend']!r}, timeout {there['timeout']} s); make it first, or pass these arguments where it is made"
            )
            return False
        if not self._has_meeting_place(arguments):
            self.warn_no_effect("has no effect: this is a single process (neither RANK nor WORLD_SIZE is set); start it with torchrun")
            return False
        backend = self.backend_for(device_type or current_device_type())
        chosen = {
            **self.kwargs_for(dist.init_process_group, InitProcessGroupKwargs),
            "backend": backend,
            "timeout": self.timeout_for(backend),
            **arguments,
        }
        if backend is not None and not dist.is_backend_available(backend):
            available = [name for name in dist.Backend.backend_list if name != "undefined" and dist.is_backend_available(name)]
            raise ConfigurationError(f"backend {backend!r} is not part of this torch (available: {', '.join(available)})")
        dist.init_process_group(**chosen)
        atexit.unregister(let_go_of_group)  # for a group that was made before
        atexit.register(let_go_of_group)
        return True

    def backend_for(self, device_type: str) -> str | None:
        """Return the backend that was set, or the one that fits *device_type*."""
        if "backend" in self.to_kwargs():
            return self.backend
        from torch.distributed import Backend

        fitting: str | None = Backend.default_device_backend_map.get(device_type)
        return fitting

    def timeout_for(self, backend: str | None) -> timedelta:
        """Return the timeout that was set, or the one *backend* has when none was."""
        if "timeout" in self._given and self.timeout is not None:
            return self.timeout
        return NCCL_TIMEOUT if backend == "nccl" else OTHER_TIMEOUT

    def settings(self) -> dict[str, Any]:
        """Return what is in force: that of the process group once there is one, else what would be asked for."""
        return {**super().settings(), **in_force()} if group_exists() else super().settings()

    def _resolve_timeout(self) -> None:
        # Past __setattr__: what follows from the backend is not set by anybody.
        if self.__dict__["timeout"] is None:
            self.__dict__["_given"] -= {"timeout"}
        if "timeout" not in self._given:
            self.__dict__["timeout"] = self.timeout_for(self.backend)

    def _has_meeting_place(self, arguments: dict[str, Any]) -> bool:
        told = self.init_method is not None or {"store", "rank", "init_method"} & arguments.keys() or self.backend in {"mpi", "fake"}
        return bool(told) or "RANK" in os.environ or "WORLD_SIZE" in os.environ


def in_force(group: ProcessGroup | None = None) -> dict[str, Any]:  # Any: plain data
    """Return the backend, size and timeout in seconds of *group*, or of the default one, as plain data.

    The timeout is None where torch does not tell.
    """
    import torch.distributed as dist

    backend = dist.get_backend(group)
    return {"backend": str(backend), "world_size": dist.get_world_size(group), "timeout": _timeout_of(group, backend)}


def _timeout_of(group: ProcessGroup | None, backend: str) -> float | None:
    """Ask the backend's options. No public way leads there, so every step may be missing."""
    import torch
    import torch.distributed as dist

    device = next((device for device, name in dist.Backend.default_device_backend_map.items() if name == backend), "cpu")
    find = getattr(group or dist.group.WORLD, "_get_backend", None)
    if find is None:
        return None
    try:
        options = getattr(find(torch.device(device)), "options", None)
    except RuntimeError:  # no backend for that device
        return None
    timeout = getattr(options, "_timeout", None)
    return timeout.total_seconds() if isinstance(timeout, timedelta) else None


def _registered() -> list[str]:
    """Return the names of the backends that torch knows by now, plug-ins included."""
    require_torch()
    import torch.distributed as dist

    return [name for name in dist.Backend.backend_list if name != "undefined"] if dist.is_available() else []
