"""Who this process is and what it computes on, as torch and the launcher say. Imports torch when asked, not before."""

from __future__ import annotations

import importlib.util
import os
import time
from typing import Final

from accelbus.errors import MissingExtraError

_LETTING_GO: Final = 0.1
"""Seconds. With half of it none of 48 jobs on a busy machine was killed; with none, 14 were."""


def require_torch() -> None:
    """Check that torch is installed.

    Raises:
        MissingExtraError: it is not; the message has the command that installs it.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch is not installed: pip install 'accelbus[torch]'")


def group_exists() -> bool:
    """Return whether the default process group has been initialised."""
    require_torch()
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def let_go_of_group() -> None:
    """Give gloo the time to finish what it has done; to be called where the interpreter or the group ends.

    Its threads drop the tensors of an operation a moment after it has returned, and need the interpreter for that. One that is ending
    kills the process instead ("terminate called without an active exception", so that torchrun calls the job failed).
    """
    if group_exists():
        import torch.distributed as dist

        if "gloo" in dist.get_backend_config():
            time.sleep(_LETTING_GO)


def rank() -> int:
    """Return this process's rank: the process group's, else the launcher's, else 0."""
    if group_exists():
        import torch.distributed as dist

        return dist.get_rank()
    return int(os.environ.get("RANK") or 0)


def world_size() -> int:
    """Return how many ranks there are: the process group's, else the launcher's, else 1."""
    if group_exists():
        import torch.distributed as dist

        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE") or 1)


def device_type() -> str:
    """Return what this machine computes on: "cuda", "xpu", …, or "cpu"."""
    require_torch()
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if torch.xpu.is_available():
        return "xpu"
    return "mps" if torch.backends.mps.is_available() else "cpu"
