"""`GradScalerKwargs`: how the gradient scaler of fp16 training behaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelbus.handlers.base import KwargsHandler
from accelbus.handlers.fields import checked, flag, integer, number, precision
from accelbus.handlers.process import device_type, require_torch

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass
class GradScalerKwargs(KwargsHandler):
    """Arguments of ``torch.amp.GradScaler``.

    Args:
        init_scale: the first scale.
        growth_factor: what the scale is multiplied with after *growth_interval* steps without an overflow.
        backoff_factor: what it is multiplied with after an overflow.
        growth_interval: steps without an overflow before it grows.
        enabled: False makes every method of the scaler pass its argument on.
    """

    init_scale: float = checked(65536.0, number(above=0))
    growth_factor: float = checked(2.0, number(above=1))
    backoff_factor: float = checked(0.5, number(above=0, below=1))
    growth_interval: int = checked(2000, integer(minimum=1))
    enabled: bool = checked(True, flag)

    def build(
        self,
        device: str | None = None,
        *,
        mixed_precision: str = "fp16",
        scaler_class: Callable[..., Any] | None = None,  # Any: a stand-in for torch's scaler
        **arguments: Any,  # Any: the scaler's own
    ) -> torch.amp.GradScaler:
        """Make a scaler. With any precision but "fp16" it is one that does nothing: the training loop stays the same.

        Args:
            device: its device type; this machine's accelerator, else the CPU, when not given.
            mixed_precision: what the scaler is for.
            scaler_class: another class with the same arguments, such as FSDP's ``ShardedGradScaler``.
            arguments: what *scaler_class* takes beyond the fields.

        Raises:
            ConfigurationError: *mixed_precision* is not known.
        """
        require_torch()
        import torch

        make = scaler_class or torch.amp.GradScaler
        chosen = self.kwargs_for(torch.amp.GradScaler, GradScalerKwargs)
        if precision("mixed_precision", mixed_precision) != "fp16":
            self.warn_no_effect(f'has no effect with mixed precision "{mixed_precision}": only fp16 gradients underflow')
            chosen = {**chosen, "enabled": False}
        scaler: torch.amp.GradScaler = make(device or device_type(), **arguments, **chosen)
        return scaler
