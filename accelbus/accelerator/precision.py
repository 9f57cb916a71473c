"""Mixed precision: where it works, and models that run in it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Final

import torch
from torch import nn

from accelbus.accelerator.nested import map_tensors
from accelbus.errors import ConfigurationError

PRECISIONS: Final = ("no", "fp16", "bf16")
Context = Callable[[], contextlib.AbstractContextManager[object]]
_ORIGINAL: Final = "_accelbus_original_forward"


def check_precision(mixed_precision: str | None, device: torch.device) -> str:
    """Return the precision that is meant.

    Raises:
        ConfigurationError: it is unknown, or *device* cannot train in it.
    """
    wanted = "no" if mixed_precision is None else str(getattr(mixed_precision, "value", mixed_precision)).lower()
    if wanted not in PRECISIONS:
        hint = "; fp8 is not offered here" if wanted == "fp8" else ""
        raise ConfigurationError(f"mixed_precision={mixed_precision!r}: expected one of {', '.join(PRECISIONS)}{hint}")
    if wanted == "fp16" and device.type == "cpu":
        raise ConfigurationError('mixed_precision="fp16" on a CPU: it needs an accelerator; "bf16" works here, and "no" everywhere')
    if wanted == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigurationError(f'mixed_precision="bf16": {torch.cuda.get_device_name(device)} has no bf16; "fp16" works there')
    return wanted


def run_in(context: Context, model: nn.Module) -> nn.Module:
    """Let *model* compute in *context* and return float32, and return it; its parameters and its state stay what they are."""
    own = vars(model).get("forward")
    original: Any = own if own is not None else type(model).forward

    @functools.wraps(original)
    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        with context():
            outputs = original(*inputs, **named) if own is not None else original(self, *inputs, **named)
        return to_float32(outputs)

    # A bound method, so that a copy of the model computes with its own parameters.
    model.forward = MethodType(forward, model)
    vars(model)[_ORIGINAL] = own
    return model


def run_plainly(model: nn.Module) -> nn.Module:
    """Undo `run_in`."""
    if _ORIGINAL in vars(model):
        own = vars(model).pop(_ORIGINAL)
        del vars(model)["forward"]
        if own is not None:
            model.forward = own
    return model


def to_float32(data: Any) -> Any:
    """Return *data* with half-precision tensors as float32."""
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype in {torch.float16, torch.bfloat16} else tensor, data)


__all__ = ["PRECISIONS", "check_precision", "run_in", "run_plainly", "to_float32"]
