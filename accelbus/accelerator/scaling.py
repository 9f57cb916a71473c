"""Loss scaling for fp16, with several optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class LossScaling:
    """A ``GradScaler``, used as torch asks for it: its scale changes once per iteration, after the last of its optimizers has stepped.

    Updating after each optimizer makes torch forget which gradients are unscaled: the next optimizer's are then divided twice.

    Args:
        scaler: the scaler; users may look at it.
    """

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.scaler = scaler
        self._unscaled: set[int] = set()
        self._stepped: set[int] = set()

    def backward(self, loss: torch.Tensor, **arguments: Any) -> None:
        """Compute the gradients of the scaled *loss*."""
        self.update()
        self.scaler.scale(loss).backward(**arguments)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of *optimizer* by the scale; once per step, however often it is asked for."""
        if id(optimizer) in self._stepped:
            self.update()
        if id(optimizer) not in self._unscaled and _has_gradients(optimizer.param_groups):
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def step(self, optimizer: Optimizer, closure: Any = None) -> Overflow:
        """Let *optimizer* step unless a gradient overflowed, and return whether one did, as far as that is known by now."""
        if id(optimizer) in self._stepped:
            self.update()
        stepped: list[Overflow] = []

        def note(optimizer: Optimizer, *_: Any) -> None:
            # Fused optimizers are called in any case: they look at `found_inf` themselves, on the device.
            stepped.append(Overflow(getattr(optimizer, "found_inf", None)))

        watching = optimizer.register_step_pre_hook(note)
        try:
            arguments = () if closure is None else (closure,)
            self.scaler.step(optimizer, *arguments)
        finally:
            watching.remove()
        self._stepped.add(id(optimizer))
        return stepped[0] if stepped else Overflow(self._has_overflowed(optimizer))

    def _has_overflowed(self, optimizer: Optimizer) -> bool:
        """Return what torch found; it has just looked itself, so nothing is waited for."""
        # Not simply True: a `step` that somebody has replaced runs no hooks.
        found = self.scaler._found_inf_per_device(optimizer)  # noqa: SLF001  no public way
        return any(bool(one.item()) for one in found.values())

    def growth(self) -> Any:
        """Return the number of steps without an overflow since the scale has changed, on the device; None while there is none."""
        return getattr(self.scaler, "_growth_tracker", None) if self.scaler.is_enabled() else None

    def scale(self) -> Any:
        """Return the scale as it is, on the device; None while there is none."""
        # Not get_scale(), which waits for the device.
        return self.scaler._get_scale_async() if self.scaler.is_enabled() else None  # noqa: SLF001  no public way

    def update(self) -> None:
        """Adapt the scale to what was found since the last call, if any optimizer has stepped."""
        if self._stepped:
            self.scaler.update()
            self._stepped.clear()
            self._unscaled.clear()


class Overflow:
    """Whether a step was skipped because a gradient overflowed. Asking may wait for the device, and is remembered."""

    __slots__ = ("_found",)

    def __init__(self, found: torch.Tensor | bool | None) -> None:
        # A copy: torch adds up those of several optimizers in place.
        self._found = found.clone() if isinstance(found, torch.Tensor) else bool(found)

    def count(self) -> Any:
        """Return 1 if a step was skipped, else 0; a tensor where only the device knows."""
        return self._found.clone() if isinstance(self._found, torch.Tensor) else int(self._found)

    def __bool__(self) -> bool:
        if isinstance(self._found, torch.Tensor):
            self._found = bool(self._found.item())
        return self._found


def _has_gradients(groups: Iterable[dict[str, Any]]) -> bool:
    return any(parameter.grad is not None for group in groups for parameter in group["params"])


__all__ = ["LossScaling", "Overflow"]
