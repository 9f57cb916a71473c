"""Who this process is and what it computes on, as torch and the launcher say. Imports torch when asked, not before."""

from __future__ import annotations

import importlib.util
import os

from accelbus.errors import MissingExtraError


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
