"""When gradients are averaged and optimizers step: the state that `Accelerator`, its optimizers and its data loaders share."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


__all__ = ["GradientState"]
