"""`AutocastKwargs`: how ``torch.autocast`` behaves."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from accelbus.handlers.base import KwargsHandler
from accelbus.handlers.fields import checked, flag, optional, precision
from accelbus.handlers.process import device_type as current_device_type, require_torch

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass
class AutocastKwargs(KwargsHandler):
    """Arguments of ``torch.autocast``.

    Args:
        enabled: False makes an island of full precision inside an enabled one.
        cache_enabled: whether casts of weights are kept within the context; None leaves it as it is.
    """

    enabled: bool = checked(True, flag)
    cache_enabled: bool | None = checked(None, optional(flag))

    def autocast(
        self, dtype: str | torch.dtype | None = None, *, device_type: str | None = None
    ) -> contextlib.AbstractContextManager[object]:
        """Make a new ``torch.autocast`` with these settings.

        Args:
            dtype: "fp16", "bf16" or a dtype; "no" for none at all; None for the device's own default.
            device_type: where the operations run; this machine's accelerator, else the CPU, when not given.

        Raises:
            ConfigurationError: *dtype* is not known.
        """
        require_torch()
        import torch

        chosen = _dtype(dtype)
        if isinstance(chosen, str):
            if self.enabled and self.to_kwargs():
                self.warn_no_effect('has no effect with mixed precision "no"')
            return contextlib.nullcontext()
        settings = self.kwargs_for(torch.autocast, AutocastKwargs)
        return torch.autocast(device_type or current_device_type(), dtype=chosen, **settings)


def _dtype(wanted: object) -> torch.dtype | str | None:
    """Return the dtype that is meant, or "no"."""
    import torch

    if wanted is None or isinstance(wanted, torch.dtype):
        return wanted
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
    return dtypes.get(name := precision("dtype", wanted), name)
