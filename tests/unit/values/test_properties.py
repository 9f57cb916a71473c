"""For any call: both paths agree, and every value is kept or a fault."""

import collections
import datetime as dt
import decimal
import fractions
import pathlib
from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from accelbus import values

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
any_text = st.text(st.characters(), max_size=8)
times = st.datetimes(timezones=st.none() | st.just(dt.UTC))
good = st.one_of(
    st.floats(allow_nan=False),
    st.integers(-(2**63), 2**64 - 1),
    st.booleans(),
    st.none(),
    text,
    st.binary(max_size=8),
    st.decimals(allow_nan=False),
    times,
    st.fractions().map(lambda number: fractions.Fraction(number).limit_denominator(1000)),
    st.floats(width=32, allow_nan=False).map(np.float32),
    st.integers(-9, 9).map(np.int64),
    st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(np.array),
    text.map(pathlib.PurePosixPath),
)
good_keys = text | st.integers(-9, 9) | st.none() | st.tuples(st.integers(0, 3), text) | st.floats(allow_nan=False)
odd = st.one_of(good, any_text, st.integers(), st.builds(object), st.just(1j), st.just(decimal.Decimal("sNaN")))


def nested(keys: Any, leaves: Any) -> Any:
    inner = st.recursive(
        leaves | st.lists(leaves, max_size=3),
        lambda children: st.dictionaries(keys, children, max_size=4) | st.lists(children, max_size=2),
        max_leaves=12,
    )
    return st.dictionaries(keys, inner, max_size=6)


def count_leaves(value: Any) -> int:
    """Return how many values a call holds, by the documentation."""
    return sum(map(count_leaves, value.values())) if isinstance(value, dict) else 1


def expected_names(value: Any, prefix: str = "") -> list[str]:
    """Return the names before equal ones are told apart."""
    if not isinstance(value, dict):
        return [prefix.removesuffix("/")]
    return [name for key, item in value.items() for name in expected_names(item, f"{prefix}{key}/")]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nested(good_keys, good))
def test_both_paths_end_in_the_same_model(logged):
    """What the hot path writes and readers read is what the slow path makes of it; no value is lost on the way."""
    fast = values.flatten(msgspec.msgpack.decode(values.encoder().encode(logged)))
    clean, faults = values.sanitise(logged)
    assert not faults
    assert len(fast) == count_leaves(logged)
    assert values.flatten(msgspec.msgpack.decode(values.encoder().encode(clean))) == fast


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nested(any_text | good_keys, odd))
def test_every_value_is_kept_or_a_fault(logged):
    """For odd values and keys too; what is kept encodes, and its names last."""
    clean, faults = values.sanitise(logged)
    assert len(clean) + len(faults) == count_leaves(logged)
    again = values.flatten(msgspec.msgpack.decode(values.encoder().encode(clean)))
    assert list(again) == list(clean)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nested(st.text("ab/#2", max_size=4), st.integers(0, 9)))
def test_names_are_the_joined_keys_told_apart_by_numbers(logged):
    """Every name is its path, with a number only where another value has the path already."""
    flat = values.flatten(logged)
    paths = collections.Counter(expected_names(logged))
    assert len(flat) == sum(paths.values())
    unique = {name for name, count in paths.items() if count == 1}
    assert unique <= set(flat)
    for name in flat:
        assert name in paths or name.rpartition("#")[0] in paths
