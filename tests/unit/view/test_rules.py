"""How the ranks' values become one."""

from __future__ import annotations

import math
import sys

import pytest

from accelbus.view.rules import Rules, mean


def test_the_mean_is_correctly_rounded():
    """Ten times 0.1 is 1, which naive summation misses."""
    assert mean([0.1] * 10) == 0.1


def test_the_mean_of_huge_numbers_does_not_overflow():
    """The sum leaves the range of floats, the mean does not."""
    largest = sys.float_info.max
    assert mean([largest, largest]) == largest


@pytest.mark.parametrize("numbers", [[math.inf, -math.inf], [math.nan, 1.0], [math.inf, math.nan]])
def test_what_has_no_mean_is_nan(numbers):
    """Never an exception."""
    assert math.isnan(mean(numbers))


def test_infinity_stays():
    """One diverged rank shows."""
    assert mean([math.inf, 1.0]) == math.inf


def test_a_single_boolean_is_a_number():
    """So that a key has one type however many ranks log it."""
    assert repr(mean([True])) == "1.0"


def test_nothing_makes_nothing():
    """Nones only are no value."""
    assert Rules().reduce("k", {0: None, 1: None}) is None
    assert Rules().reduce("k", {}) is None


def test_unused_contributors_are_named():
    """They are counted as filtered."""
    reduced = Rules().reduce("k", {1: 2.0, 0: 1.0, 2: "x", 3: None})
    assert reduced == (1.5, (1, 0), (2,))


def test_what_is_no_number_is_the_main_ranks():
    """Also a kind of value that this version does not know."""
    image = object()
    assert Rules().reduce("k", {2: image, 1: "text", 3: 1.0}) == ("text", (1,), (2, 3))
    assert Rules().reduce("k", {0: image, 1: 1.0}) == (image, (0,), (1,))
