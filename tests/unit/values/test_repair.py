"""The slow path: one odd value never costs the rest of its call."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import math
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from accelbus import values
from accelbus.events import DROP_REASONS


def cleaned(given: Any) -> Any:
    """Return what is kept of one value, which must have needed the slow path and must encode afterwards."""
    with pytest.raises(Exception):  # noqa: B017  the fast path refuses in many ways
        values.encoder().encode(given)
    clean, faults = values.sanitise({"v": given})
    assert not faults
    encoded = values.encoder().encode(clean)
    assert values.flatten(msgspec.msgpack.decode(encoded)) == clean
    return clean["v"]


class Big(enum.Enum):
    ALL = 2**70


@pytest.mark.parametrize(
    "given, expected",
    [
        pytest.param(2**64, 2.0**64, id="int"),
        pytest.param(-(2**63) - 1, -(2.0**63), id="negative int"),
        pytest.param(10**400, hex(10**400), id="int beyond the floats"),
        pytest.param(Big.ALL, 2.0**70, id="enum of one"),
        pytest.param([1, 2**64], [1, 2.0**64], id="in a list"),
        pytest.param((2**64,), [2.0**64], id="in a tuple"),
        pytest.param(collections.deque([2**64]), [2.0**64], id="in a deque"),
    ],
)
def test_large_ints_become_floats_and_then_text(given, expected):
    """An int that msgpack cannot hold is kept as near as a float gets, and as text beyond that."""
    assert cleaned(given) == expected


def test_an_int_of_a_million_digits_is_kept():
    """str() would refuse it, and take minutes if it did not."""
    number = 1 << 4_000_000
    assert int(cleaned(number), 16) == number


@pytest.mark.parametrize("given", ["\ud800", "a\udfffb", type("T", (str,), {})("\ud800")], ids=["high", "low", "subclass"])
def test_lone_surrogates_are_written_out(given):
    """Text that is not Unicode keeps its readable part."""
    assert cleaned(given) == str(given).encode("utf-8", "backslashreplace").decode()


def test_surrogates_in_keys_are_written_out():
    """The key stays recognisable, wherever it is nested."""
    clean, faults = values.sanitise({"\ud800": 1, "n": {"x\udfff": 2}, "l": [{"\ud800": "\ud800"}]})
    assert clean == {"\\ud800": 1, "n/x\\udfff": 2, "l": [{"\\ud800": "\\ud800"}]}
    assert not faults


def test_what_refuses_to_become_a_float_becomes_nan():
    """A signalling nan is a nan."""
    assert math.isnan(values.sanitise({"v": decimal.Decimal("sNaN")})[0]["v"])


def test_a_datetime_near_the_end_of_time_is_kept():
    """Where UTC has no year for it, its own offset stays."""
    assert cleaned(dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=14)))) == "0001-01-01T00:00:00+14:00"


class Raising:
    def __float__(self) -> float:
        raise RuntimeError("no float today")


class RaisingRepr:
    def __repr__(self) -> str:
        raise ValueError("no repr either")


class RaisingArray:
    dtype = np.dtype("f8")
    shape = (2,)
    size = 2

    def tolist(self) -> list[float]:
        raise MemoryError

    def __array__(self) -> Any:
        raise RuntimeError("no array")


class RaisingMapping(collections.UserDict[str, Any]):
    def __iter__(self):
        raise KeyError("gone")


class RaisingAttributes:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class RaisingType(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


def of_raising_type() -> Any:
    kind = RaisingType("OfRaisingType", (), {})
    return kind()


RAISING = {
    "float": Raising,
    "repr": RaisingRepr,
    "array": RaisingArray,
    "mapping": lambda: RaisingMapping(a=1),
    "attributes": RaisingAttributes,
    "type": of_raising_type,
}


@pytest.mark.parametrize("make", RAISING.values(), ids=RAISING)
def test_a_value_that_raises_costs_only_itself(make):
    """Foreign code that fails is a fault of its key."""
    given = make()
    clean, faults = values.sanitise({"a": 1, "bad": given, "n": {"bad": given, "b": 2}})
    assert clean == {"a": 1, "n/b": 2}
    assert [fault.key for fault in faults] == ["bad", "n/bad"]
    assert {fault.reason for fault in faults} <= set(DROP_REASONS)


def test_a_fault_says_what_happened():
    """The warning can name key, type and cause."""
    _, [fault] = values.sanitise({"v": Raising()})
    assert fault.type_name.endswith("Raising")
    assert "no float today" in fault.detail


def test_a_dict_that_contains_itself_keeps_the_rest():
    """A cycle is a fault, at any depth; the same object in two places is none."""
    shared = {"x": 1}
    logged: dict[str, Any] = {"a": shared, "b": shared}
    logged["me"] = logged
    logged["deep"] = {"er": {"me": logged, "y": 2}}
    clean, faults = values.sanitise(logged)
    assert clean == {"a/x": 1, "b/x": 1, "deep/er/y": 2}
    assert [fault.key for fault in faults] == ["me", "deep/er/me"]


@pytest.mark.parametrize("levels, kept", [(40, True), (80, False)], ids=["some", "too many"])
def test_lists_in_lists_are_repaired_to_a_depth(levels, kept):
    """What is wrong inside is found down to 64 levels; below that the value is refused, not the call."""
    nested: Any = "\ud800"
    for _ in range(levels):
        nested = [nested]
    clean, faults = values.sanitise({"a": 1, "l": nested})
    assert ("l" in clean, len(faults)) == (kept, 0 if kept else 1)
    assert clean["a"] == 1


def test_a_list_that_contains_itself_is_refused_quickly():
    """Two references to itself per level do not double the work per level."""
    items: list[Any] = [1]
    items += [items, items]
    clean, faults = values.sanitise({"a": 1, "l": items})
    assert clean == {"a": 1}
    assert [fault.key for fault in faults] == ["l"]


def test_objects_that_refer_to_each_other_are_refused():
    """Cycles through struct-like objects end too."""

    @dataclasses.dataclass
    class Node:
        other: Any = None
        value: int = 1

    one, two = Node(), Node()
    one.other, two.other = two, one
    clean, faults = values.sanitise({"n": one, "l": [one]})
    assert clean == {"n/value": 1, "n/other/value": 1}
    assert [fault.key for fault in faults] == ["n/other/other", "l"]


def test_a_sequence_with_a_bad_part_is_refused_as_one_value():
    """A list is one value: it is delivered or counted, not both."""
    clean, faults = values.sanitise({"a": 1, "l": [1, [2, object()]], "m": [{"x": object()}]})
    assert clean == {"a": 1}
    assert [fault.key for fault in faults] == ["l", "m"]


def test_a_dataclass_with_a_bad_field_keeps_the_others():
    """Fields are values of their own."""

    @dataclasses.dataclass
    class Data:
        good: int
        bad: Any

    clean, faults = values.sanitise({"d": Data(1, object()), "e": Data(2, 2**64)})
    assert clean == {"d/good": 1, "e/good": 2, "e/bad": 2.0**64}
    assert [fault.key for fault in faults] == ["d/bad"]


@pytest.mark.parametrize(
    "given", [None, 3.5, "text", [("a", 1)], np.zeros(2), object(), RaisingMapping(a=1)], ids=lambda given: type(given).__name__
)
def test_values_that_are_no_mapping_are_one_fault(given):
    """Whatever is passed, the answer is a fault and never an exception."""
    clean, [fault] = values.sanitise(given)
    assert clean == {}
    assert (fault.key, fault.reason) == ("", "bad_values")
    assert type(given).__qualname__ in fault.type_name


@pytest.mark.parametrize("kind", [collections.OrderedDict, collections.UserDict, collections.Counter], ids=lambda kind: kind.__name__)
def test_any_mapping_is_taken(kind):
    """`log` is not only for dict."""
    assert values.sanitise(kind(a=1, b=2)) == ({"a": 1, "b": 2}, [])


def test_depth_costs_no_stack():
    """Nesting far beyond the recursion limit is walked."""
    nested: Any = {"end": 1}
    for _ in range(5000):
        nested = {"a": nested}
    clean, faults = values.sanitise({"a": nested})
    assert clean == {"a/" * 5001 + "end": 1}
    assert not faults


def test_a_hundred_thousand_keys_are_kept():
    """A large call is slow, never wrong."""
    logged: dict[Any, Any] = {f"k{number}": float(number) for number in range(100_000)}
    logged["odd"] = object()
    clean, faults = values.sanitise(logged)
    assert len(clean) == 100_000
    assert len(faults) == 1


def test_nothing_is_imported_for_a_plain_call():
    """Neither torch nor numpy comes into a process that does not use them."""
    code = "import sys; from accelbus import values; values.sanitise({'a': 1, 'b': object(), 'c': range(2)}); assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
