"""Lines of JSON whose numbers may be anything."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given, strategies as st

from accelbus.values.json_lines import json_line, spelled_out

NUMBERS = st.one_of(st.floats(), st.integers(-(2**70), 2**70), st.booleans(), st.none(), st.text(max_size=5))
VALUES = st.dictionaries(st.text(max_size=5), st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3)), max_size=4)


def strict(data: bytes) -> Any:
    """Read a line as JSON proper, which has no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    return json.loads(data, parse_constant=refuse)


def restored(value: Any) -> Any:
    """Return what a reader makes of a value under a key of ``non_finite``."""
    if isinstance(value, list):
        return [float(item) if item in {"NaN", "Infinity", "-Infinity"} else item for item in value]
    return float(value)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return (one is other) or one == other or (one != one and other != other)


@given(VALUES)
def test_a_reader_gets_back_what_was_written(values: dict[str, Any]):
    """Numbers that are not finite differ from null and from text by the names of their keys."""
    line = strict(json_line({"step": 1, "values": values}))
    non_finite = line.get("non_finite", [])
    read = {key: restored(value) if key in non_finite else value for key, value in line["values"].items()}
    mixed = [key for key in non_finite if isinstance(values[key], list)]
    for key, value in values.items():
        assert key in mixed or same(read[key], value)
    assert line["step"] == 1
    assert list(line["values"]) == list(values)


def test_keys_that_are_not_finite_are_named_in_order():
    """Lists with one of them too; text that reads the same is not."""
    values = {"a": math.nan, "b": "NaN", "c": None, "d": [1.0, -math.inf], "e": math.inf}
    assert strict(json_line({"values": values})) == {
        "values": {"a": "NaN", "b": "NaN", "c": None, "d": [1.0, "-Infinity"], "e": "Infinity"},
        "non_finite": ["a", "d", "e"],
    }


def test_names_can_be_left_out():
    """A configuration has the texts only."""
    assert strict(json_line({"type": "config", "values": {"lr": math.nan}}, names=False)) == {"type": "config", "values": {"lr": "NaN"}}


def test_what_is_not_finite_beside_the_values_stops_no_line():
    """Options of a tracker's call are the user's."""
    assert strict(json_line({"values": {"a": 1.0}, "log_kwargs": {"weight": math.inf}})) == {
        "values": {"a": 1.0},
        "log_kwargs": {"weight": "Infinity"},
    }


def test_keys_that_are_no_text_become_text():
    """JSON has no others; the names are the same texts."""
    assert strict(json_line({"values": {1: math.nan, b"k": 2.0}})) == {"values": {"1": "NaN", "b'k'": 2.0}, "non_finite": ["1"]}


def test_a_line_is_not_changed():
    """A row that is refused may be written again."""
    line = {"values": {"a": math.nan, "b": {"c": math.inf}}}
    json_line(line)
    assert repr(line) == "{'values': {'a': nan, 'b': {'c': inf}}}"
    assert spelled_out({"a": (1, math.nan)}) == {"a": [1, "NaN"]}
