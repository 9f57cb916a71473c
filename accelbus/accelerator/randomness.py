"""Random number generators: their states, and seeds for all of them."""

from __future__ import annotations

import logging
import random
import sys
from typing import Any

import torch

_log = logging.getLogger(__name__)

State = dict[str, Any]
"""Plain data and tensors: it can be read without running code."""


def capture(*, devices: bool = True, device: torch.device | None = None) -> State:
    """Return the states of Python's, numpy's and torch's generators, of CUDA's if *devices*, and of *device*'s, which may be of any kind."""
    version, words, gauss = random.getstate()
    state: State = {"python": [version, list(words), gauss], "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)]
    if devices and torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if device is not None and device.type != "cpu":
        module = torch.get_device_module(device)
        own = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
        state["device"] = [device.type, own.cpu()]
    return state


def restore(state: State, *, device: torch.device | None = None) -> None:
    """Put the generators back into *state*, *device*'s too; what it does not have stays as it is, and is named if it was in use."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"].cpu())
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, keys.cpu().numpy().astype("uint32"), position, has_gauss, cached))
    same_devices = "cuda" in state and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count()
    if same_devices:
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])
    if device is not None:
        _restore_on(device, state, is_restored=same_devices and device.type == "cuda")


def _restore_on(device: torch.device, state: State, *, is_restored: bool) -> None:
    kind, own = state.get("device", ["cpu", None])
    if kind != device.type:
        if not is_restored:
            _log.warning("random numbers on %s go on differently: the state is that of a process that computed on %s", device, kind)
    elif own is not None:
        module = torch.get_device_module(device)
        _ = module.set_rng_state(own.cpu()) if device.type == "mps" else module.set_rng_state(own.cpu(), device)


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python's, numpy's and torch's generators.

    Args:
        seed: the same in all ranks.
        device_specific: add the rank, so that each has random numbers of its own.
        deterministic: use deterministic algorithms only, where there are any.
    """
    if device_specific and torch.distributed.is_available() and torch.distributed.is_initialized():
        seed += torch.distributed.get_rank()
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


__all__ = ["State", "capture", "restore", "set_seed"]
