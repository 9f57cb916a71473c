"""Prepared data loaders in a single process: they read what the original reads, and go on where they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from accelbus.accelerator import DataLoaderConfiguration, GradientAccumulationPlugin
from accelbus.accelerator.data import PreparedDataLoader, Surroundings, prepare_data_loader
from accelbus.accelerator.dispatch import DispatchedDataLoader
from accelbus.accelerator.gradients import GradientState
from accelbus.accelerator.position import Position
from accelbus.accelerator.state import ProcessState
from accelbus.errors import ConfigurationError

NUMBERS = TensorDataset(torch.arange(23))


class Noisy(Dataset[Any]):
    """Augmentation: each sample uses all generators of the process."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002  the global generator


class Stream(IterableDataset[int]):
    def __init__(self, count: int = 11) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class OwnOrder(Sampler[int]):
    """A sampler that shuffles with the process's own generators."""

    def __iter__(self) -> Iterator[int]:
        yield from random.sample(range(11), 11)

    def __len__(self) -> int:
        return 11


class ByEpoch(OwnOrder):
    """A sampler whose order is that of an epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(11), 11))


class StreamByEpoch(Stream):
    """The same for a stream."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return (number + 100 * self.epoch for number in range(self.count))


class NoisyStream(Stream):
    """Augmentation: each sample uses all generators of the process."""

    def __iter__(self) -> Iterator[Any]:
        return (Noisy()[number] for number in range(self.count))


class StreamWithGenerator(Stream):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[float]:
        return (float(torch.rand((), generator=self.generator)) for _ in range(self.count))


LOADERS = {
    "in order": lambda: DataLoader(NUMBERS, 4),
    "shuffled": lambda: DataLoader(NUMBERS, 4, shuffle=True),
    "own generator": lambda: DataLoader(NUMBERS, 4, shuffle=True, generator=torch.Generator().manual_seed(7)),
    "augmented": lambda: DataLoader(Noisy(), 2, shuffle=True),
    "weighted": lambda: DataLoader(NUMBERS, 4, sampler=WeightedRandomSampler([1.0] * 23, 23)),
    "own order": lambda: DataLoader(NUMBERS, 4, sampler=OwnOrder()),
    "batch sampler": lambda: DataLoader(NUMBERS, batch_sampler=BatchSampler(RandomSampler(NUMBERS), 4, drop_last=True)),
    "batches as samples": lambda: DataLoader(NUMBERS, None, sampler=BatchSampler(RandomSampler(NUMBERS), 4, drop_last=False)),
    "stream": lambda: DataLoader(Stream(), 2),
    "workers": lambda: DataLoader(NUMBERS, 4, shuffle=True, num_workers=1),
}
# Their order follows the number of the epoch, which a plain loop does not tell them; or they draw while they are read ahead.
RESUMED = LOADERS | {
    "distributed sampler": lambda: DataLoader(NUMBERS, 4, sampler=DistributedSampler(NUMBERS, 1, 0, shuffle=True)),
    "by epoch": lambda: DataLoader(NUMBERS, 4, sampler=ByEpoch()),
    "by epoch in batches": lambda: DataLoader(NUMBERS, batch_sampler=BatchSampler(ByEpoch(), 4, drop_last=False)),
    "stream by epoch": lambda: DataLoader(StreamByEpoch(), 2),
    "augmented stream": lambda: DataLoader(NoisyStream(), 2),
    "stream with a generator": lambda: DataLoader(StreamWithGenerator(), 2),
}
QUICK = [name for name in RESUMED if name != "workers"]


def flat(batch: Any) -> list[float]:
    return [float(x) for item in (batch if isinstance(batch, list | tuple) else [batch]) for x in torch.as_tensor(item).flatten()]


def seeded() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002  the global generator


def noise() -> list[float]:
    """What training draws in a step."""
    return [float(torch.rand(())), random.random(), float(np.random.rand())]  # noqa: NPY002  the global generator


@pytest.mark.parametrize("name", LOADERS)
def test_a_single_process_reads_what_the_original_reads(make, name):
    """With the same seed, batch by batch and epoch by epoch, and training draws the same random numbers: preparing changes nothing."""
    seeded()
    plain = [[[*flat(batch), *noise()] for batch in loader] for loader in [LOADERS[name]()] for _ in range(2)]
    seeded()
    loader = make().prepare(LOADERS[name]())
    assert [[[*flat(batch), *noise()] for batch in loader] for _ in range(2)] == plain


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("stop", [(0, 2), (1, 1), (0, -1), (1, 0)], ids=str)
def test_a_loader_goes_on_where_it_was(make, name, stop):
    """Saved within an epoch, at its end or between two, the rest is the same to the last bit, random numbers of training included."""
    from accelbus.accelerator import randomness

    def train(loader, epochs, *, save=None):
        found, saved = [], None
        for epoch in range(epochs):
            if save == (epoch, 0):
                saved = (loader.state_dict(), randomness.capture())
                found.clear()
            for number, batch in enumerate(loader, 1):
                found.append([*flat(batch), *noise()])
                last = save is not None and save[1] < 0 and loader.end_of_dataloader
                if save is not None and epoch == save[0] and (number == save[1] or last):
                    saved = (loader.state_dict(), randomness.capture())
                    found.clear()
        return found, saved

    seeded()
    whole, (position, generators) = train(make().prepare(RESUMED[name]()), 3, save=stop)

    torch.manual_seed(99)  # another process
    loader = make().prepare(RESUMED[name]())
    loader.load_state_dict(position)
    randomness.restore(generators)
    resumed, _ = train(loader, 3 - loader.iteration)
    assert resumed == whole
    assert loader.iteration == 3


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_with_workers_goes_on_where_it_was(make, persistent):
    """The order is the same, and so is what training draws; only what workers draw is not."""
    from accelbus.accelerator import randomness

    def loader():
        return make().prepare(DataLoader(NUMBERS, 4, shuffle=True, num_workers=2, persistent_workers=persistent))

    seeded()
    first, whole = loader(), []
    for number, batch in enumerate(first, 1):
        whole.append([*flat(batch), *noise()])
        if number == 2:
            position, generators = first.state_dict(), randomness.capture()
    whole += [[*flat(batch), *noise()] for batch in first]

    torch.manual_seed(99)
    second = loader()
    second.load_state_dict(position)
    randomness.restore(generators)
    assert [[*flat(batch), *noise()] for _ in range(2) for batch in second] == whole[2:]


def test_a_position_is_that_of_the_same_samples_with_other_numbers_of_ranks():
    """Rounded down: a sample is rather seen twice than not at all."""
    position = Position(iteration=1, batches=5, ranks=4, seed=None, generators=[])
    assert [position.batches_for(ranks, split=False) for ranks in (1, 2, 4, 8)] == [20, 10, 5, 2]
    assert position.batches_for(2, split=True) == 5


def test_an_order_by_seed_and_epoch_survives_a_restart(make):
    """use_seedable_sampler: later epochs too are in the order that the first process would have had."""
    config = DataLoaderConfiguration(use_seedable_sampler=True)
    loader = make(dataloader_config=config).prepare(DataLoader(NUMBERS, 4, shuffle=True))
    whole = [[flat(batch) for batch in loader] for _ in range(3)]
    position = {**loader.state_dict(), "iteration": 1}
    again = make(dataloader_config=config).prepare(DataLoader(NUMBERS, 4, shuffle=True))
    again.load_state_dict(position)
    assert [[flat(batch) for batch in again] for _ in range(2)] == whole[1:]


def test_rank_0_cannot_read_for_all_what_is_shared_already():
    """It would read its own share only, and nobody would notice."""
    around = Surroundings(
        processes=ProcessState(0, 2, 0, 2, torch.device("cpu"), "gloo"),
        gradients=GradientState(GradientAccumulationPlugin()),
        config=DataLoaderConfiguration(dispatch_batches=True),
        device=None,
        rng_types=(),
    )
    loader = DataLoader(NUMBERS, 4, sampler=DistributedSampler(NUMBERS, 2, 0))
    with pytest.raises(ConfigurationError, match="dispatch_batches=True with a DistributedSampler"):
        prepare_data_loader(loader, around, DispatchedDataLoader)


def test_an_order_by_a_given_seed(make):
    """data_seed: the same in every process, whatever its own seed."""
    orders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=5)
        orders.append([flat(batch) for batch in make(dataloader_config=config).prepare(DataLoader(NUMBERS, 4, shuffle=True))])
    assert orders[0] == orders[1]


def test_the_first_batches_are_skipped(make):
    """Counted from the beginning of the epoch; the next one is whole again."""
    accelerator = make()
    loader = accelerator.prepare(DataLoader(NUMBERS, 4))
    skipped = accelerator.skip_first_batches(loader, 3)
    assert len(skipped) == 3
    assert [flat(batch)[0] for batch in skipped] == [12, 16, 20]
    assert [flat(batch)[0] for batch in loader] == [0, 4, 8, 12, 16, 20]
    assert loader.iteration == 2
    assert [flat(batch)[0] for batch in accelerator.skip_first_batches(DataLoader(NUMBERS, 4), 5)] == [20]


def test_skipping_in_a_resumed_epoch_counts_from_its_beginning(make):
    """Scripts that skip by themselves what they have seen do not skip twice."""
    accelerator = make()
    loader = accelerator.prepare(DataLoader(NUMBERS, 4, shuffle=True))
    whole = []
    for number, batch in enumerate(loader, 1):
        whole.append(flat(batch))
        if number == 2:
            position = loader.state_dict()
    loader.load_state_dict(position)
    assert [flat(batch) for batch in accelerator.skip_first_batches(loader, 2)] == whole[2:]
    loader.load_state_dict(position)
    loader.set_epoch(5)  # another epoch than that of the checkpoint
    assert len(list(loader)) == 6


def test_a_loop_that_was_left_begins_anew(make):
    """After break the position is the beginning of an epoch, for the process that goes on and for one that resumes."""
    loader = make().prepare(DataLoader(NUMBERS, 4))
    for _ in loader:
        break
    assert loader.state_dict()["batches"] == 0
    assert len(list(loader)) == 6


def test_the_end_is_known_in_the_last_batch(make):
    """For datasets with and without a length, with workers, and within another loop."""
    accelerator = make()
    for loader, count in ((DataLoader(NUMBERS, 4), 6), (DataLoader(Stream(), 4), 3), (DataLoader(NUMBERS, 4, num_workers=1), 6)):
        prepared, inner = accelerator.prepare(loader, DataLoader(NUMBERS, 23))
        ends = []
        for _ in prepared:
            for _ in inner:
                assert accelerator.gradient_state.end_of_dataloader
            ends.append(accelerator.gradient_state.end_of_dataloader)
        assert ends == [False] * (count - 1) + [True]
    assert not accelerator.gradient_state.end_of_dataloader


def test_an_empty_loader_is_read(make):
    """Nothing comes out, and nothing is left open."""
    accelerator = make()
    loaders = accelerator.prepare(DataLoader(TensorDataset(torch.ones(0)), 4), DataLoader(Stream(0), 4))
    assert [list(loader) for loader in loaders] == [[], []]
    assert accelerator.gradient_state.active is None


def test_an_exception_in_a_loop_closes_it(make):
    """The loader is not taken for the current one afterwards."""
    accelerator = make()
    loader = accelerator.prepare(DataLoader(NUMBERS, 4))
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018
    assert accelerator.gradient_state.active is None


def test_a_prepared_loader_is_a_loader_with_the_arguments_of_the_original(make):
    """isinstance, length, workers and functions; preparing it again changes nothing."""
    accelerator = make()
    collate = torch.utils.data.default_collate
    original = DataLoader(NUMBERS, 4, num_workers=2, collate_fn=collate, prefetch_factor=3, persistent_workers=True, timeout=5)
    loader = accelerator.prepare(original)
    assert isinstance(loader, PreparedDataLoader)
    assert isinstance(loader, DataLoader)
    assert (len(loader), loader.num_workers, loader.collate_fn, loader.prefetch_factor) == (6, 2, collate, 3)
    assert (loader.persistent_workers, loader.timeout, loader.total_batch_size, loader.total_dataset_length) == (True, 5, 4, 23)
    assert accelerator.prepare(loader) is loader


def test_datasets_and_samplers_are_told_the_epoch(make):
    """Whatever has set_epoch."""

    class Told(TensorDataset):
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    dataset = Told(torch.arange(3))
    loader = make().prepare(DataLoader(dataset, 2))
    for _ in range(2):
        list(loader)
    loader.set_epoch(7)
    list(loader)
    assert dataset.epochs == [0, 1, 7, 7]
