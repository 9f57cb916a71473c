"""Large calls: cut, never shortened."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from accelbus import values

LIMIT = 48 * 1024


def event_bytes(part):
    """Return the size of the largest event around *part*."""
    return len(msgspec.msgpack.encode((1, 2**63, 2**63, part, 2**63)))


def test_ten_thousand_keys_become_a_few_events():
    """Nothing is lost, nothing is doubled, every event is small enough and nearly full."""
    logged = {f"layer.{number}/grad_norm": float(number) for number in range(10_000)}
    parts, large = values.split(logged, LIMIT)
    assert not large
    assert [key for part in parts for key in part] == list(logged)
    assert all(LIMIT // 2 < event_bytes(part) <= LIMIT for part in parts[:-1])


def test_a_value_beyond_an_event_is_returned_apart():
    """It becomes a file; the rest of the call stays together."""
    parts, large = values.split({"a": 1, "text": "x" * LIMIT, "b": 2}, LIMIT)
    assert parts == [{"a": 1, "b": 2}]
    assert large == {"text": "x" * LIMIT}


def test_a_call_of_large_values_has_no_empty_event():
    """No part is written for nothing."""
    assert values.split({"text": "x" * LIMIT}, LIMIT) == ([], {"text": "x" * LIMIT})
    assert values.split({}, LIMIT) == ([], {})


def test_a_key_of_a_megabyte_is_shortened_recognisably():
    """Its beginning stays, and two that begin alike stay apart."""
    one, two = "k" * 2**20, "k" * 2**20 + "2"
    parts, large = values.split({one: 1, two: 2}, LIMIT)
    [(first, _), (second, _)] = parts[0].items()
    assert not large
    assert first.startswith("k" * 1000)
    assert first != second
    assert list(parts[0].values()) == [1, 2]
    assert values.split({one: 1}, LIMIT).parts == [{first: 1}]


@pytest.mark.parametrize("key", ["k" * 10_000, "é" * 5_000])
def test_a_long_key_is_left_alone(key):
    """Only keys that leave no room for others are shortened."""
    assert values.split({key: 1}, LIMIT).parts == [{key: 1}]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    logged=st.dictionaries(
        st.text(max_size=60), st.floats() | st.text(max_size=400) | st.lists(st.integers(-9, 9), max_size=300), max_size=40
    ),
    limit=st.integers(200, 2000),
)
def test_pieces_hold_every_value_once_and_fit(logged, limit):
    """For any call and limit."""
    clean, _ = values.sanitise(logged)
    parts, large = values.split(clean, limit)
    assert all(event_bytes(part) <= limit and part for part in parts)
    assert sum(map(len, parts)) + len(large) == len(clean)
    kept = [*(value for part in parts for value in part.values()), *large.values()]
    assert sorted(map(repr, kept)) == sorted(map(repr, clean.values()))
