"""Sets of sequence numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from accelbus.journal.intervals import Intervals

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(-1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=25)


@settings(max_examples=200, deadline=None)
@given(RANGES, st.integers(0, 60), st.integers(0, 30))
def test_it_behaves_like_a_set_of_integers(ranges, first, length):
    """Membership, size, ranges and holes are those of the plain set."""
    model = {number for low, high in ranges for number in range(low, high + 1)}
    intervals = Intervals(ranges)

    assert [number for number in range(-1, 80) if number in intervals] == sorted(model)
    assert len(intervals) == len(model)
    assert intervals.highest == max(model, default=None)
    holes = intervals.missing(first, first + length)
    assert [number for low, high in holes for number in range(low, high + 1)] == [
        n for n in range(first, first + length + 1) if n not in model
    ]


@settings(max_examples=100, deadline=None)
@given(RANGES)
def test_ranges_are_as_few_as_possible(ranges):
    """Neighbours melt together, so that a state stays small; the ranges make an equal set again."""
    kept = Intervals(ranges).ranges()

    assert all(low <= high for low, high in kept)
    assert all(following[0] > range_[1] + 1 for range_, following in itertools.pairwise(kept))
    assert Intervals(kept) == Intervals(ranges)


def test_the_ranges_returned_are_a_copy():
    """Adding later does not change what was returned."""
    intervals = Intervals([(1, 3)])
    before = intervals.ranges()
    intervals.add(4, 9)
    assert (before, intervals.ranges()) == ([(1, 3)], [(1, 9)])


def test_it_cannot_be_a_key():
    """It changes, so hashing it would be a bug."""
    with pytest.raises(TypeError):
        hash(Intervals())


def test_it_shows_its_ranges():
    """In a debugger one sees what is in."""
    assert repr(Intervals([(1, 2), (5, 5)])) == "Intervals([(1, 2), (5, 5)])"
