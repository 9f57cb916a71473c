"""Flat names: defined, the same on both paths, and never shared by two values."""

import datetime as dt
import enum
import pathlib
from typing import Any

import msgspec
import pytest

from accelbus import values


class Split(enum.Enum):
    TRAIN = "train"


def both(logged: dict[Any, Any]) -> dict[str, Any]:
    """Return the values as both paths name them."""
    fast = values.flatten(msgspec.msgpack.decode(values.encoder().encode(logged)))
    slow, faults = values.sanitise(logged)
    assert not faults
    assert slow == fast
    return fast


@pytest.mark.parametrize(
    "key, name",
    [
        pytest.param("loss", "loss", id="text"),
        pytest.param("", "", id="empty"),
        pytest.param("a//b/", "a//b/", id="slashes"),
        pytest.param("a\x00\n\x7f", "a\x00\n\x7f", id="control characters"),
        pytest.param("k" * 600, "k" * 600, id="600 characters"),
        pytest.param("\N{GRINNING FACE}", "\N{GRINNING FACE}", id="emoji"),
        pytest.param(1, "1", id="int"),
        pytest.param(1.5, "1.5", id="float"),
        pytest.param(True, "True", id="bool"),
        pytest.param(None, "None", id="none"),
        pytest.param((1, "a"), "(1, 'a')", id="tuple"),
        pytest.param(b"a\xff", "a\\xff", id="bytes"),
        pytest.param(Split.TRAIN, "train", id="enum"),
        pytest.param(dt.date(2020, 1, 2), "2020-01-02", id="date"),
        pytest.param(pathlib.PurePosixPath("/a"), "/a", id="path"),
    ],
)
def test_every_key_has_a_defined_name(key, name):
    """Text stays as it is; other keys become the text of what they would be kept as."""
    assert both({key: 1}) == {name: 1}
    assert both({"n": {key: 1}}) == {f"n/{name}": 1}


def test_a_key_that_nothing_can_encode_is_kept():
    """The value is not to blame for its key. An address in it would make a new name in every run."""
    assert values.sanitise({object(): 1, "a": 2}) == ({"<object object>": 1, "a": 2}, [])
    assert values.sanitise({object(): 1, object(): 2})[0] == {"<object object>": 1, "<object object>#2": 2}


def test_empty_keys_in_nested_mappings_stay_distinct():
    """The separator shows where an empty key was."""
    assert both({"": 1, "a": {"": 2}}) == {"": 1, "a/": 2}


@pytest.mark.parametrize("order", [1, -1], ids=["flat first", "nested first"])
def test_a_flat_key_keeps_its_name_beside_a_nested_one(order):
    """Where two values would share a name, the one that is nested least has it, in whatever order they come."""
    logged = dict([("a/b", 1), ("a", {"b": 2})][::order])
    assert both(logged) == {"a/b": 1, "a/b#2": 2}


def test_a_text_key_keeps_its_name_beside_another_key():
    """`1` and `"1"` in one call are two values."""
    assert both({1: "int", "1": "text"}) == {"1": "text", "1#2": "int"}


def test_numbered_names_do_not_take_those_of_others():
    """A key that looks like a numbered one keeps its name too."""
    assert both({"a": {"b": 1}, "a/b": 2, "a/b#2": 3}) == {"a/b": 2, "a/b#2": 3, "a/b#3": 1}


def test_three_values_for_one_name_are_all_kept():
    """Numbers go up in the order of the call."""
    assert both({"a": {"b": {"c": 1}, "b/c": 2}, "a/b": {"c": 3}}) == {"a/b/c": 2, "a/b/c#2": 3, "a/b/c#3": 1}


def test_flat_values_are_left_alone():
    """Reading twice changes nothing."""
    flat = {"a/b": 1, "a/b#2": [1, "x", None], "": "é"}
    assert values.flatten(flat) == flat


def test_readers_understand_what_other_writers_could_write():
    """Extension types, deep lists and mappings in lists become something readable."""
    encoded = msgspec.msgpack.encode({"e": msgspec.msgpack.Ext(5, b"a"), "l": [{1: b"x", "y": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}]})
    assert values.flatten(msgspec.msgpack.decode(encoded)) == {"e": "ext 5: 61", "l": [{"1": "x", "y": "2020-01-01T00:00:00+00:00"}]}


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"], ids=["lists", "mappings"])
def test_hostile_depth_is_read(opening):
    """Whatever decodes has a name and a value."""
    flat = values.flatten({"v": msgspec.msgpack.decode(opening * 400 + b"\x01")})
    assert len(flat) == 1
