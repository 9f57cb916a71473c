"""Where in its data a loader is: what a checkpoint keeps of it, and how the order of an epoch is made again."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from accelbus.accelerator import randomness
from accelbus.accelerator.operations import broadcast_object_list
from accelbus.accelerator.sharding import Indices


class Shuffle:
    """The generators that decide in which order a loader reads, and that the ranks have in common.

    Args:
        owners: objects with an attribute ``generator``: samplers, the loader.
        seeded: each epoch has the order that *seed* plus its number gives; otherwise the generators just go on.
        seed: None for one drawn by rank 0.
    """

    def __init__(self, owners: list[Any], *, seeded: bool, seed: int | None) -> None:
        self.seed: int | None = None
        self._owners = owners
        self._generators: list[torch.Generator] = []
        if seeded:
            drawn = [int(torch.empty((), dtype=torch.int64).random_().item()) if seed is None else seed]
            self.adopt(int(broadcast_object_list(drawn)[0]))
            return
        self._generators = self._distinct()
        if self._generators:
            self.synchronize()

    def adopt(self, seed: int) -> None:
        """Go on with the orders that *seed* gives: those of another process."""
        self.seed = seed
        for owner in self._owners:
            if owner.generator is None:
                owner.generator = torch.Generator()
        self._generators = self._distinct()

    def _distinct(self) -> list[torch.Generator]:
        return list({id(owner.generator): owner.generator for owner in self._owners if owner.generator is not None}.values())

    def begin(self, epoch: int) -> None:
        """Get ready for *epoch*."""
        if self.seed is not None:
            for generator in self._generators:
                generator.manual_seed((self.seed + epoch) % 2**63)

    def synchronize(self) -> None:
        """Give every rank the states that rank 0 has."""
        self.load(broadcast_object_list([self.states()])[0])

    def states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def load(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=False):
            generator.set_state(state.cpu())


class Position(msgspec.Struct, frozen=True):
    """How far a loader has come. Plain data and tensors."""

    iteration: int
    """Number of the epoch: how often the loader was read to its end."""
    batches: int
    """How many batches of it this rank has had."""
    ranks: int
    seed: int | None
    generators: list[Any]
    """Their states when the epoch began."""
    random: randomness.State | None = None
    """The process's generators when it began; None between epochs."""
    ahead: randomness.State | None = None
    """The same before the data that come next were read, where they were read ahead; None elsewhere."""

    def batches_for(self, ranks: int, *, split: bool) -> int:
        """Return how many batches the same samples are with another number of ranks; in between, some are seen twice."""
        return self.batches if split or ranks == self.ranks else self.batches * self.ranks // ranks


def owners_of_generators(batches: Indices) -> list[Any]:
    """Return what has an attribute ``generator`` among a batch sampler and its sampler."""
    found = []
    while batches is not None:
        if hasattr(batches, "generator"):
            found.append(batches)
        batches = getattr(batches, "sampler", None)
    return found


__all__ = ["Position", "Shuffle", "owners_of_generators"]
