"""Every rank's share of the samples, compared with Accelerate's and with what there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from accelerate.data_loader import BatchSamplerShard, IterableDatasetShard
from hypothesis import given, settings, strategies as st
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from accelbus.accelerator.sharding import ShardedBatches, ShardedStream

SHAPES = {
    "samples": st.integers(0, 40),
    "size": st.integers(1, 6),
    "ranks": st.integers(1, 5),
    "drop_last": st.booleans(),
    "even": st.booleans(),
    "split": st.booleans(),
}


def batches(samples: int, size: int, *, drop_last: bool) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(samples)), size, drop_last)


@given(**SHAPES)
@settings(max_examples=300, deadline=None)
def test_shares_are_those_of_accelerate(samples, size, ranks, drop_last, even, split):
    """For every shape of data, each rank reads the batches that it would read with Accelerate."""
    if split:
        size *= ranks
    for rank in range(ranks):
        ours = ShardedBatches(batches(samples, size, drop_last=drop_last), ranks, rank, split=split, even=even)
        theirs = BatchSamplerShard(batches(samples, size, drop_last=drop_last), ranks, rank, split, even)
        if ranks == 1:
            assert list(ours) == list(batches(samples, size, drop_last=drop_last))
        else:
            assert list(ours) == list(theirs)
        # Accelerate's own length is wrong where a split batch leaves nothing for some ranks.
        assert len(ours) == len(theirs)


@given(**SHAPES)
@settings(max_examples=200, deadline=None)
def test_each_sample_comes_once_when_the_repeated_ones_are_left_out(samples, size, ranks, drop_last, even, split):
    """What the ranks read step by step, cut where the progress says, is what there is: the promise of gather_for_metrics."""
    if split:
        size *= ranks
    shards = [
        ShardedBatches(batches(samples, size, drop_last=drop_last), ranks, rank, split=split, even=True if split else even)
        for rank in range(ranks)
    ]
    seen: list[int] = []
    for number, parts in enumerate(itertools.zip_longest(*shards)):
        together = [index for part in parts for index in part or []]
        progress = shards[0].progress
        if progress.last == number and progress.real:
            assert len(together) == progress.padded
            together = together[: progress.real]
        seen += together
    whole = samples
    if drop_last:
        whole -= whole % (size if split else size * ranks)
    assert seen == list(range(whole))


@given(samples=st.integers(1, 30), size=st.integers(1, 4), ranks=st.integers(1, 3), skip=st.integers(0, 12))
@settings(max_examples=100, deadline=None)
def test_a_pass_can_begin_later(samples, size, ranks, skip):
    """Steps that are left out change nothing of those that follow, and the callback comes before them, once."""
    shard = ShardedBatches(batches(samples, size, drop_last=False), ranks, 0)
    whole, calls = list(shard), []
    last = shard.progress.last
    shard.start_at(skip, lambda: calls.append(True))
    assert list(shard) == whole[skip:]
    assert calls == [True]
    assert shard.progress.last == (last if skip <= last else -1)
    assert list(shard) == whole


def test_the_last_step_is_known_when_it_is_handed_out():
    """Not before: the loader reads ahead; not after: gradients must be averaged in it."""
    shard = ShardedBatches(batches(10, 4, drop_last=False), 1, 0)
    assert [(batch, shard.progress.last) for batch in shard] == [([0, 1, 2, 3], -1), ([4, 5, 6, 7], -1), ([8, 9], 2)]


@pytest.mark.parametrize("count", [4, 5, 6])
def test_batches_of_different_sizes_are_dealt_out_whole(count):
    """A batch sampler without a batch size: each rank gets batches as they are, filled up with whole ones."""
    source = [list(range(number + 1)) for number in range(count)]
    ours = [list(ShardedBatches(source, 2, rank)) for rank in range(2)]
    theirs = [list(BatchSamplerShard(source, 2, rank)) for rank in range(2)]
    assert ours == theirs


def test_a_batch_that_cannot_be_split_is_refused():
    """The message names size and ranks."""
    with pytest.raises(ValueError, match="split_batches=True with batch_size=3: expected a multiple of the 2 processes"):
        ShardedBatches(batches(10, 3, drop_last=False), 2, 0, split=True)


class Numbers(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        return self.count


@given(samples=st.integers(0, 40), size=st.integers(1, 5), ranks=st.integers(2, 4), drop_last=st.booleans())
@settings(max_examples=150, deadline=None)
def test_shares_of_a_stream_are_those_of_accelerate(samples, size, ranks, drop_last):
    """For every length, each rank keeps the samples that it would keep with Accelerate."""
    for rank in range(ranks):
        ours: Any = ShardedStream(Numbers(samples), size, ranks, rank, drop_last=drop_last)
        theirs = IterableDatasetShard(Numbers(samples), size, drop_last, ranks, rank)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs) == len(list(ours))
