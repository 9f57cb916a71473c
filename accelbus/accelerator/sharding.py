"""One rank's share of the samples.

The ranks walk through the same sequence of *global batches*; in each step every rank takes its part of one. A global batch is as many
batches of the original loader as there are ranks, or one of them, split.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch.utils.data

Indices = Any  # what one item of a batch sampler is: a list of indices, as a rule


class Progress:
    """What is known of one pass over the data: filled while it goes on."""

    __slots__ = ("last", "padded", "real")

    def __init__(self) -> None:
        self.last = -1
        """Number of the last step, counted from 0; -1 while that is not known."""
        self.real = 0
        """Samples of the last step, all ranks together, without repeated ones; 0 when none was repeated."""
        self.padded = 0
        """The same with them."""


class ShardedBatches(torch.utils.data.Sampler[Indices]):
    """This rank's batches of a batch sampler; equally many in all ranks.

    Looks ahead by one global batch of indices, so that `Progress.last` is known when the last batch is handed out: no data are read for it.

    Args:
        batches: the original batch sampler; its order must be the same in all ranks.
        ranks: how many share it.
        rank: which of them this is.
        split: each batch is split, instead of dealt out.
        even: the last step is filled up from the beginning; otherwise some ranks get less.
    """

    def __init__(self, batches: Iterable[Indices], ranks: int, rank: int, *, split: bool = False, even: bool = True) -> None:
        self.batches = batches
        self.ranks = ranks
        self.rank = rank
        self.split = split
        self.even = even
        size = getattr(batches, "batch_size", None)
        self.batch_size: int | None = size if isinstance(size, int) else None
        self.drop_last = bool(getattr(batches, "drop_last", False))
        self.progress = Progress()
        self._start: tuple[int, Callable[[], None]] | None = None
        if split and (self.batch_size is None or self.batch_size % ranks):
            raise ValueError(f"split_batches=True with batch_size={self.batch_size!r}: expected a multiple of the {ranks} processes")

    @property
    def sampler(self) -> Any:
        """The sampler behind the batch sampler."""
        return getattr(self.batches, "sampler", None)

    def start_at(self, step: int, then: Callable[[], None]) -> None:
        """Leave out the first *step* steps of the next pass, and call *then* before the first one that follows."""
        self._start = (step, then)

    def __len__(self) -> int:
        assert isinstance(self.batches, Sized)
        batches = len(self.batches)
        if self.split:
            return batches
        whole, rest = divmod(batches, self.ranks)
        if rest == 0 or self.drop_last:
            return whole
        return whole + 1 if self.even or self.rank < rest else whole

    def __iter__(self) -> Iterator[Indices]:
        self.progress = progress = Progress()
        return self._steps(progress)

    def _steps(self, progress: Progress) -> Iterator[Indices]:
        # Not in __iter__: a loader with workers makes two iterators, and uses the second one.
        start, self._start = self._start, None
        mine = iter(self._mine(progress))
        ahead = next(mine, None)
        number = 0
        if start is not None:
            skip, then = start
            while number < skip and ahead is not None:
                ahead = next(mine, None)
                number += 1
            then()
        while ahead is not None:
            current, ahead = ahead, next(mine, None)
            if ahead is None:
                progress.last = number
            yield current
            number += 1

    def _mine(self, progress: Progress) -> Iterator[Indices]:
        if self.ranks == 1:
            yield from self.batches
            return
        size = 1 if self.split else self.ranks
        source = iter(self.batches)
        first: list[Indices] = []
        while group := list(itertools.islice(source, size)):
            first = first or [self._copied(batch) for batch in group]
            if self._is_full(group):
                yield self._part(group)
            elif not self.drop_last:
                yield from self._rest(group, first, progress)

    def _is_full(self, group: list[Indices]) -> bool:
        if self.batch_size is None:
            return len(group) == self.ranks
        return sum(map(len, group)) == self.batch_size * (1 if self.split else self.ranks)

    def _part(self, group: list[Indices]) -> Indices:
        if not self.split:
            return group[self.rank]
        size = len(group[0]) // self.ranks
        return group[0][size * self.rank : size * (self.rank + 1)]

    def _rest(self, group: list[Indices], first: list[Indices], progress: Progress) -> Iterator[Indices]:
        """Yield this rank's part of a global batch that is not full."""
        if self.batch_size is None:
            filled = group + list(itertools.islice(itertools.cycle(first), self.ranks - len(group))) if self.even else group
            yield from filled[self.rank : self.rank + 1]
            return
        size = self.batch_size // self.ranks if self.split else self.batch_size
        samples = [index for batch in group for index in batch]
        if self.even:
            progress.real, progress.padded = len(samples), size * self.ranks
            beginning = itertools.cycle([index for batch in first for index in batch])
            samples += itertools.islice(beginning, progress.padded - progress.real)
        if part := samples[size * self.rank : size * (self.rank + 1)]:
            yield part

    @staticmethod
    def _copied(batch: Indices) -> Indices:
        return list(batch) if isinstance(batch, list) else batch


class ShardedStream(torch.utils.data.IterableDataset[Any]):
    """This rank's samples of an iterable dataset that every rank reads from beginning to end, in the same order.

    Args:
        dataset: the original one.
        batch_size: samples that one rank takes in one step.
        ranks: how many share it.
        rank: which of them this is.
        drop_last: a last step for which there are not enough samples is left out; otherwise it is filled up from the beginning.
    """

    def __init__(self, dataset: Iterable[Any], batch_size: int, ranks: int, rank: int, *, drop_last: bool = False) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.ranks = ranks
        self.rank = rank
        self.drop_last = drop_last

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset which pass follows, if it wants to know."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        samples, step = len(self.dataset), self.batch_size * self.ranks  # type: ignore[arg-type]  # raises the TypeError it should
        return (samples // step if self.drop_last else -(-samples // step)) * self.batch_size

    def __iter__(self) -> Iterator[Any]:
        source = iter(self.dataset)
        size = self.batch_size * self.ranks
        first: list[Any] = []
        while samples := list(itertools.islice(source, size)):
            first = first or list(samples)
            if len(samples) < size:
                if self.drop_last:
                    return
                samples += itertools.islice(itertools.cycle(first), size - len(samples))
            yield from samples[self.batch_size * self.rank : self.batch_size * (self.rank + 1)]


__all__ = ["Progress", "ShardedBatches", "ShardedStream"]
