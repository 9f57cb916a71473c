"""Prepared data loaders: each rank reads its share, on its device, and knows where it is."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Sized
from typing import Any, Final

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from accelbus.accelerator import randomness
from accelbus.accelerator.gradients import GradientState
from accelbus.accelerator.nested import send_to_device
from accelbus.accelerator.operations import broadcast
from accelbus.accelerator.options import DataLoaderConfiguration
from accelbus.accelerator.position import Position, Shuffle, owners_of_generators
from accelbus.accelerator.sharding import ShardedBatches, ShardedStream
from accelbus.accelerator.state import ProcessState
from accelbus.accelerator.stopwatch import Stopwatch
from accelbus.errors import ConfigurationError

_log = logging.getLogger(__name__)
RNG_TYPES: Final = ("torch", "cuda", "generator")
_OWN_ARGUMENTS: Final = {"self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "pin_memory_device"}


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a prepared loader needs of its `Accelerator`."""

    processes: ProcessState
    gradients: GradientState
    config: DataLoaderConfiguration
    device: torch.device | None
    """Where batches go; None: they stay."""
    rng_types: tuple[str, ...]
    """Generators that are made equal in all ranks when an epoch begins."""
    stopwatch: Stopwatch | None = None


class Iteration:
    """One loop over a loader."""

    __slots__ = ("ahead", "batches", "is_last", "padded", "random", "real", "states")

    def __init__(self, batches: int, states: list[torch.Tensor], random: randomness.State, ahead: randomness.State | None = None) -> None:
        self.batches = batches
        """How many this rank has had of the epoch."""
        self.is_last = False
        self.real = 0
        """Samples of the last step, of all ranks, without repeated ones; 0 when none was repeated."""
        self.padded = 0
        """The same with them."""
        self.states = states
        self.random = random
        self.ahead = ahead
        """See `Position`."""


class PreparedDataLoader(DataLoader[Any]):
    """A ``DataLoader`` that gives this rank its share. Made by `prepare_data_loader`."""

    def __init__(self, loader: DataLoader[Any], around: Surroundings, shuffle: Shuffle, **data: Any) -> None:
        super().__init__(**data, **_copied_arguments(loader))
        self.around = around
        self.iteration = 0
        """Number of the epoch."""
        self._original = loader
        self.shard = next((one for one in data.values() if isinstance(one, ShardedBatches)), None)
        self._shuffle = shuffle
        self._current: Iteration | None = None
        self._resumed: Position | None = None

    def __iter__(self) -> Any:  # torch promises an iterator class of its own, which has nothing else that is public
        return self.iterate(None)

    def iterate(self, skip: int | None) -> Iterator[Any]:
        """Iterate over an epoch without its first *skip* batches; None: go on where a checkpoint was made, if one was loaded."""
        around, position, self._resumed = self.around, self._resumed, None
        if position is None:
            self._begin_epoch()
        now = randomness.capture(devices=False)
        if position is None:
            iteration = Iteration(skip or 0, self._shuffle.states(), now)
        else:
            done = position.batches_for(around.processes.num_processes, split=around.config.split_batches)
            first = done if skip is None else skip
            ahead = position.ahead if first == position.batches else None
            iteration = Iteration(first, position.generators, position.random or now, ahead)
            # Another process's samplers and datasets are in their first epoch.
            self._tell(self.iteration)
            self._shuffle.load(position.generators)
            randomness.restore(iteration.random)
        self._current = iteration
        around.gradients.enter(iteration)
        try:
            # What comes after the order of the epoch is decided is random as if there had been no interruption.
            batches = self.batches(iteration, lambda: randomness.restore(now) if position is not None else None)
            yield from batches if around.stopwatch is None else around.stopwatch.watch(batches)
            self.iteration += 1
        finally:
            around.gradients.leave(iteration)
            if self._current is iteration:
                self._current = None

    def batches(self, iteration: Iteration, ready: Callable[[], None]) -> Generator[Any]:
        """Yield this rank's batches, keep *iteration* up to date, and call *ready* before the first one is read."""
        shard = self.shard
        if shard is not None:
            shard.start_at(iteration.batches, ready)
            source = super().__iter__()
            progress = shard.progress
            for batch in source:
                iteration.is_last = progress.last == iteration.batches
                iteration.real, iteration.padded = progress.real, progress.padded
                iteration.batches += 1
                yield self.placed(batch)
        else:
            yield from self._streamed(super().__iter__(), iteration, ready)

    def _streamed(self, source: Iterator[Any], iteration: Iteration, ready: Callable[[], None]) -> Iterator[Any]:
        for batch, is_last in self.read_ahead(source, iteration, ready):
            iteration.is_last = is_last
            iteration.batches += 1
            yield self.placed(batch)

    def read_ahead(self, source: Iterator[Any], iteration: Iteration, ready: Callable[[], None]) -> Iterator[tuple[Any, bool]]:
        """Yield what *source* has after the batches that *iteration* has had, and whether it is the last: only the next one tells."""
        for _ in itertools.islice(source, iteration.batches):
            pass
        if iteration.ahead is None:
            ready()
            ahead = list(itertools.islice(source, 1))
        else:
            # It was read before what training drew last.
            randomness.restore(iteration.ahead)
            ahead = list(itertools.islice(source, 1))
            ready()
        while ahead:
            if self.num_workers == 0:  # workers have generators of their own
                iteration.ahead = randomness.capture(devices=False)
            (batch,), ahead = ahead, list(itertools.islice(source, 1))
            yield batch, not ahead

    def placed(self, batch: Any) -> Any:
        """Return *batch* on the device."""
        device = self.around.device
        return batch if device is None else send_to_device(batch, device, non_blocking=self.around.config.non_blocking)

    def _begin_epoch(self) -> None:
        self.set_epoch(self.iteration)
        self._shuffle.begin(self.iteration)
        if "generator" in self.around.rng_types:
            self._shuffle.synchronize()
        if self.around.processes.num_processes > 1:
            if "torch" in self.around.rng_types:
                torch.set_rng_state(broadcast(torch.get_rng_state()))
            if "cuda" in self.around.rng_types:
                torch.cuda.set_rng_state(broadcast(torch.cuda.get_rng_state()))

    def set_epoch(self, epoch: int) -> None:
        """Let *epoch* be the next one; samplers and datasets that want to know are told."""
        if epoch != self.iteration:
            self.iteration = epoch
            self._resumed = None
        self._tell(epoch)

    def _tell(self, epoch: int) -> None:
        source: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        batches: Any = source if self.shard is None else self.shard.batches
        for one in (batches, getattr(batches, "sampler", None), self.dataset):
            if callable(tell := getattr(one, "set_epoch", None)):
                tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where this loader is: within an epoch while a loop over it is open, else before the next one."""
        current = self._current
        position = self._resumed or Position(
            iteration=self.iteration,
            batches=0 if current is None else current.batches,
            ranks=self.around.processes.num_processes,
            seed=self._shuffle.seed,
            generators=self._shuffle.states() if current is None else current.states,
            random=None if current is None else current.random,
            ahead=None if current is None else current.ahead,
        )
        return {name: getattr(position, name) for name in position.__struct_fields__}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where another loader of the same data was; the next loop over this one goes on there."""
        position = Position(**state)
        self.iteration = position.iteration
        if position.seed is not None:
            self._shuffle.adopt(position.seed)
        self._shuffle.load(position.generators)
        self._resumed = position if position.batches else None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the loop over it is at its last batch."""
        return self._current is not None and self._current.is_last

    @property
    def total_batch_size(self) -> int | None:
        """Samples of one step, of all ranks."""
        size = self._original.batch_size or getattr(self._original.batch_sampler, "batch_size", None)
        if size is None or self.around.config.split_batches:
            return size
        return size * self.around.processes.num_processes

    @property
    def total_dataset_length(self) -> int:
        """Samples of the whole dataset."""
        dataset = self._original.dataset
        assert isinstance(dataset, Sized)
        return len(dataset)


class SkippedBatches:
    """A loader without the first batches of its next epoch; all else is the loader's."""

    def __init__(self, loader: Any, batches: int) -> None:
        self._loader = loader
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader
        if isinstance(loader, PreparedDataLoader):
            return loader.iterate(self._batches)
        return itertools.islice(iter(loader), self._batches, None)

    def __len__(self) -> int:
        return max(0, len(self._loader) - self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def prepare_data_loader(loader: DataLoader[Any], around: Surroundings, dispatched: type[PreparedDataLoader]) -> DataLoader[Any]:
    """Return a loader that gives this rank its share of what *loader* reads.

    Args:
        loader: any ``DataLoader``; one that was prepared is returned as it is.
        around: the surroundings of the new one.
        dispatched: class of loaders that rank 0 reads for all.

    Raises:
        ValueError: the batch size cannot be split, or rank 0 would not read all.
    """
    if isinstance(loader, PreparedDataLoader):
        return loader
    config, ranks, rank = around.config, around.processes.num_processes, around.processes.process_index
    is_stream = isinstance(loader.dataset, IterableDataset)
    if is_stream and config.split_batches and (loader.batch_size is None or loader.batch_size % ranks):
        raise ValueError(f"split_batches=True with batch_size={loader.batch_size!r}: expected a multiple of the {ranks} processes")
    batches: Any = loader.dataset if is_stream else loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    owners = owners_of_generators(batches) + ([loader] if loader.generator is not None else [])
    if ranks > 1 and (is_stream if config.dispatch_batches is None else config.dispatch_batches):
        if not is_stream and isinstance(_sampler_of(batches), DistributedSampler):
            raise ConfigurationError(
                "dispatch_batches=True with a DistributedSampler: rank 0 reads for all, but would only read its own share; leave the sampler "
                "out, or dispatch_batches"
            )
        seeded = config.use_seedable_sampler and bool(owners) and not is_stream
        return dispatched(loader, around, Shuffle(owners, seeded=seeded, seed=config.data_seed), **_data_of(loader))
    if is_stream:
        return PreparedDataLoader(loader, around, Shuffle(owners, seeded=False, seed=None), **_stream_of(loader, config, ranks, rank))
    if _is_shared_already(batches, ranks, rank):
        ranks, rank = 1, 0
    seeded = config.use_seedable_sampler or (ranks > 1 and all(owner.generator is None for owner in owners_of_generators(batches)))
    shuffle = Shuffle(owners, seeded=seeded and bool(owners), seed=config.data_seed)
    shard = ShardedBatches(batches, ranks, rank, split=config.split_batches, even=config.even_batches)
    if loader.batch_sampler is None:
        return PreparedDataLoader(loader, around, shuffle, dataset=loader.dataset, sampler=shard, batch_size=None)
    return PreparedDataLoader(loader, around, shuffle, dataset=loader.dataset, batch_sampler=shard)


def _stream_of(loader: DataLoader[Any], config: DataLoaderConfiguration, ranks: int, rank: int) -> dict[str, Any]:
    if ranks == 1 or loader.batch_size is None:
        if ranks > 1:
            _log.warning("an iterable dataset with batch_size=None is read as a whole by every rank")
        return _data_of(loader)
    size = loader.batch_size // ranks if config.split_batches else loader.batch_size
    dataset = ShardedStream(
        loader.dataset,  # type: ignore[arg-type]  # it is an IterableDataset
        size,
        ranks,
        rank,
        drop_last=loader.drop_last,
    )
    return {"dataset": dataset, "batch_size": size, "drop_last": loader.drop_last}


def _data_of(loader: DataLoader[Any]) -> dict[str, Any]:
    if isinstance(loader.dataset, IterableDataset):
        return {"dataset": loader.dataset, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is None:
        return {"dataset": loader.dataset, "sampler": loader.sampler, "batch_size": None}
    return {"dataset": loader.dataset, "batch_sampler": loader.batch_sampler}


def _sampler_of(batches: Any) -> Any:
    """Return what decides on the order: the sampler of a batch sampler, or *batches* itself."""
    return batches.sampler if isinstance(batches, BatchSampler) else batches


def _is_shared_already(batches: Any, ranks: int, rank: int) -> bool:
    sampler = _sampler_of(batches)
    if ranks == 1 or not isinstance(sampler, DistributedSampler):
        return False
    _log.log(
        logging.WARNING if rank == 0 else logging.DEBUG,
        "the loader has a DistributedSampler: its samples are shared between the ranks already, and are taken as they are; "
        "gather_for_metrics cannot know which ones it has repeated. Without it, prepare() shares them",
    )
    return True


def _copied_arguments(loader: DataLoader[Any]) -> dict[str, Any]:
    names = inspect.signature(DataLoader.__init__).parameters.keys() - _OWN_ARGUMENTS
    return {name: getattr(loader, name) for name in names if hasattr(loader, name)}


__all__ = ["RNG_TYPES", "Iteration", "PreparedDataLoader", "SkippedBatches", "Surroundings", "prepare_data_loader"]
