"""Schedules of learning rates that follow the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from accelbus.accelerator.gradients import GradientState
from accelbus.accelerator.optimizer import AcceleratedOptimizer


class AcceleratedScheduler:
    """A schedule that moves when its optimizers have stepped.

    A training step of several ranks sees as many batches as there are ranks, and moves the schedule as often: its length is that of one
    process. With ``split_batches`` a step is one batch, and moves it once; a ``ReduceLROnPlateau``, which counts measurements, as well.

    Args:
        scheduler: the original one; everything that is not here is its.
        optimizers: those it waits for.
        gradients: says when a step is due.
        ranks: how many there are.
        step_with_optimizer: False for schedules that are stepped on another occasion, such as the end of an epoch.
        split_batches: whether a step is one batch of the original loader.
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        optimizers: Sequence[AcceleratedOptimizer],
        gradients: GradientState,
        *,
        ranks: int = 1,
        step_with_optimizer: bool = True,
        split_batches: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.optimizers = list(optimizers)
        self.gradient_state = gradients
        self.split_batches = split_batches
        self.step_with_optimizer = step_with_optimizer
        self._times = 1 if split_batches or isinstance(scheduler, ReduceLROnPlateau) else ranks

    def step(self, *arguments: Any, **named: Any) -> None:
        """Move the schedule if a step was due and no optimizer skipped it."""
        if not self.step_with_optimizer:
            self.scheduler.step(*arguments, **named)
            return
        if not self.gradient_state.sync_gradients or any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return
        for _ in range(self._times):
            # The last step may see more batches than the schedule has left: OneCycleLR would raise.
            total = getattr(self.scheduler, "total_steps", None)
            if total is None or self.scheduler.last_epoch < total:
                self.scheduler.step(*arguments, **named)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # not there yet: while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def __repr__(self) -> str:
        return f"<prepared {self.scheduler!r}>"


__all__ = ["AcceleratedScheduler"]
