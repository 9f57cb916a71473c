"""When gradients are averaged and optimizers step: the state that `Accelerator`, its optimizers and its data loaders share."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel

from accelbus.accelerator.options import GradientAccumulationPlugin

if TYPE_CHECKING:
    from accelbus.accelerator.data import Iteration


class GradientState:
    """Where in an accumulation this process is, and which data loader it is in."""

    def __init__(self, plugin: GradientAccumulationPlugin) -> None:
        self.plugin = plugin
        self.step = 0
        """Batches since the last one that a loader's end completed."""
        self.sync_gradients = True
        """Whether this batch completes a step: gradients are averaged, optimizers step."""
        self._open: list[Iteration] = []

    @property
    def num_steps(self) -> int:
        return self.plugin.num_steps

    @property
    def is_accumulating(self) -> bool:
        """Whether there are gradients that no optimizer has used yet."""
        return not self.sync_gradients

    @property
    def active(self) -> Iteration | None:
        """The innermost loop over a prepared data loader."""
        return self._open[-1] if self._open else None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is the last one of its loader."""
        return self.active is not None and self.active.is_last

    @property
    def remainder(self) -> int:
        """How many of the samples of this step, of all ranks, are no repetition; -1 where nothing was repeated, or nobody knows."""
        active = self.active
        return active.real if active is not None and active.is_last and active.real else -1

    def next_batch(self) -> None:
        """Count a batch, and decide whether it completes a step."""
        if self.plugin.sync_with_dataloader and self.end_of_dataloader:
            self.step = 0
            self.sync_gradients = True
        else:
            self.step += 1
            self.sync_gradients = self.step % self.num_steps == 0

    def enter(self, iteration: Iteration) -> None:
        """Note that a loop over a data loader has begun."""
        self._open.append(iteration)

    def leave(self, iteration: Iteration) -> None:
        """Note that it has ended, or was left."""
        # Not necessarily the innermost: a loop that was left by an exception may be closed late.
        self._open = [one for one in self._open if one is not iteration]


class Accumulation:
    """One batch: a context in which gradients are averaged over the processes if they are used after it.

    Args:
        gradients: counts the batch.
        models: those whose gradients are only added up otherwise.
    """

    __slots__ = ("_contexts", "_gradients", "_models")

    def __init__(self, gradients: GradientState, models: Sequence[DistributedDataParallel]) -> None:
        self._gradients = gradients
        self._models = models
        self._contexts: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        self._gradients.next_batch()
        if self._models and not (self._gradients.sync_gradients or self._gradients.plugin.sync_each_batch):
            self._contexts = contextlib.ExitStack()
            for model in self._models:
                self._contexts.enter_context(model.no_sync())

    def __exit__(self, *error: object) -> None:
        if self._contexts is not None:
            self._contexts.close()


__all__ = ["Accumulation", "GradientState"]
