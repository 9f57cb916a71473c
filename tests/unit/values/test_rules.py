"""The table: what users log, on the fast path and on the slow one."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import math
import pathlib
import types
import uuid
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch

from accelbus import values


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    EVAL = "eval"


class Flags(enum.Flag):
    A = 1
    B = 2


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


class Whole(int):
    pass


class Real(float):
    pass


@dataclasses.dataclass
class Data:
    a: int = 1
    b: Any = 2.0


class Attrs:
    """What attrs makes of a class, as far as anybody looks."""

    __attrs_attrs__ = (types.SimpleNamespace(name="a"),)

    def __init__(self):
        self.a = 1


class Struct(msgspec.Struct):
    a: int = 1


class Pair(NamedTuple):
    x: int
    y: int


class Index:
    def __index__(self) -> int:
        return 7


class Floating:
    def __float__(self) -> float:
        return 0.25


UTC_PLUS_2 = dt.timezone(dt.timedelta(hours=2))

PLAIN = {
    "bool": (True, True),
    "int": (3, 3),
    "largest int": (2**64 - 1, 2**64 - 1),
    "smallest int": (-(2**63), -(2**63)),
    "float": (0.1, 0.1),
    "infinity": (-math.inf, -math.inf),
    "text": ("é", "é"),
    "none": (None, None),
    "list": ([1, "a", None], [1, "a", None]),
    "tuple": ((1, 2), [1, 2]),
    "set": ({1}, [1]),
    "frozenset": (frozenset([1]), [1]),
    "named tuple": (Pair(1, 2), [1, 2]),
    "enum": (Color.RED, "red"),
    "int enum": (Level.LOW, 1),
    "str enum": (Mode.EVAL, "eval"),
    "flag": (Flags.A | Flags.B, 3),
    "decimal": (decimal.Decimal("1.25"), 1.25),
    "decimal beyond the floats": (decimal.Decimal("1e400"), math.inf),
    "naive datetime": (dt.datetime(2020, 1, 2, 3, 4, 5, 6), "2020-01-02T03:04:05.000006"),
    "aware datetime": (dt.datetime(2020, 1, 2, 3, 4, tzinfo=UTC_PLUS_2), "2020-01-02T01:04:00+00:00"),
    "date": (dt.date(2020, 1, 2), "2020-01-02"),
    "time": (dt.time(1, 2, 3), "01:02:03"),
    "timedelta": (dt.timedelta(seconds=1.5), "PT1.5S"),
    "uuid": (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    "bytes": (b"ab", "ab"),
    "bytes that are no text": (b"\xff", "\\xff"),
    "bytearray": (bytearray(b"ab"), "ab"),
    "memoryview": (memoryview(b"ab"), "ab"),
}
"""What msgspec does by itself: a new version that does otherwise must not go unnoticed."""

HOOKED = {
    "str subclass": (Text("t"), "t"),
    "int subclass": (Whole(3), 3),
    "float subclass": (Real(1.5), 1.5),
    "user string": (collections.UserString("u"), "u"),
    "datetime subclass": (type("Stamp", (dt.datetime,), {})(2020, 1, 2, 3, tzinfo=UTC_PLUS_2), "2020-01-02T01:00:00+00:00"),
    "fraction": (fractions.Fraction(1, 2), 0.5),
    "anything with __index__": (Index(), 7),
    "anything with __float__": (Floating(), 0.25),
    "path": (pathlib.PurePosixPath("/a"), "/a"),
    "deque": (collections.deque([1, 2]), [1, 2]),
    "range": (range(3), [0, 1, 2]),
    "keys view": ({"a": 1}.keys(), ["a"]),
}

NUMPY = {
    "float64": (np.float64(1.5), 1.5),
    "float32": (np.float32(1.5), 1.5),
    "float16": (np.float16(1.5), 1.5),
    "longdouble": (np.longdouble(1.5), 1.5),
    "int64": (np.int64(-3), -3),
    "uint64": (np.uint64(2**64 - 1), 2**64 - 1),
    "bool": (np.bool_(True), True),
    "str": (np.str_("s"), "s"),
    "bytes": (np.bytes_(b"s"), "s"),
    "datetime64": (np.datetime64("2020-01-02"), "2020-01-02"),
    "datetime64 in ns": (np.datetime64(1, "ns"), "1970-01-01T00:00:00.000000001"),
    "timedelta64": (np.timedelta64(5, "s"), "5 seconds"),
    "0-d array": (np.array(1.5, dtype=np.float32), 1.5),
    "one element": (np.array([[2]]), 2),
    "one longdouble": (np.ones(1, dtype=np.longdouble), 1.0),
    "array": (np.arange(3, dtype=np.int32), [0, 1, 2]),
    "longdoubles": (np.ones(2, dtype=np.longdouble), [1.0, 1.0]),
    "matrix": (np.zeros((2, 2)), [[0.0, 0.0], [0.0, 0.0]]),
    "empty array": (np.zeros(0), []),
    "array of text": (np.array(["a", "b"]), ["a", "b"]),
    "array of times": (np.array([1, 2], dtype="M8[D]"), ["1970-01-02", "1970-01-03"]),
    "masked": (np.ma.masked, None),
    "masked array": (np.ma.array([1, 2], mask=[False, True]), [1, None]),
}

TORCH = {
    "0-d": (torch.tensor(0.5), 0.5),
    "int": (torch.tensor(5), 5),
    "bool": (torch.tensor(True), True),
    "bfloat16": (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
    "float16": (torch.tensor(1.5, dtype=torch.float16), 1.5),
    "float8": (torch.tensor(1.5).to(torch.float8_e4m3fn), 1.5),
    "one element": (torch.tensor([[2.0]]), 2.0),
    "vector": (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
    "bfloat16 vector": (torch.tensor([1.5, 2.0], dtype=torch.bfloat16), [1.5, 2.0]),
    "with gradient": (torch.tensor(2.0, requires_grad=True), 2.0),
    "parameter": (torch.nn.Parameter(torch.tensor([1.0, 2.0])), [1.0, 2.0]),
    "size": (torch.Size([1, 2]), [1, 2]),
}

NESTED = {
    "dict": ({"x": 1, "y": {"z": 2}}, {"v/x": 1, "v/y/z": 2}),
    "ordered dict": (collections.OrderedDict(x=1), {"v/x": 1}),
    "mapping proxy": (types.MappingProxyType({"x": 1}), {"v/x": 1}),
    "chain map": (collections.ChainMap({"x": 1}), {"v/x": 1}),
    "user dict": (collections.UserDict(x=1), {"v/x": 1}),
    "dataclass": (Data(), {"v/a": 1, "v/b": 2.0}),
    "dataclass of arrays": (Data(b=np.float32(1.5)), {"v/a": 1, "v/b": 1.5}),
    "attrs": (Attrs(), {"v/a": 1}),
    "struct": (Struct(), {"v/a": 1}),
    "tensors": ({"x": torch.tensor(1.0)}, {"v/x": 1.0}),
    "empty": ({}, {}),
}


def read_back(logged: Any) -> dict[str, Any]:
    """Encode as the hot path does and read as the journal's readers do."""
    return values.flatten(msgspec.msgpack.decode(values.encoder().encode(logged)))


def cases(*tables: dict[str, tuple[Any, Any]]) -> list[Any]:
    return [pytest.param(given, expected, id=name) for table in tables for name, (given, expected) in table.items()]


@pytest.mark.parametrize("given, expected", cases(PLAIN, HOOKED, NUMPY, TORCH))
def test_a_value_is_kept_as_the_table_says(given, expected):
    """Fast and slow path keep the documented value, of a plain type."""
    fast = read_back({"v": given})
    slow, faults = values.sanitise({"v": given})
    assert not faults
    assert fast == {"v": expected}
    assert read_back(slow) == fast
    assert type(fast["v"]) is type(expected)


@pytest.mark.parametrize("given, expected", cases(NESTED))
def test_a_mapping_is_kept_as_its_leaves(given, expected):
    """Mappings and struct-like objects are flattened alike on both paths; an empty one holds no value."""
    assert read_back({"v": given}) == expected
    assert values.sanitise({"v": given}) == (expected, [])


def test_nan_stays_nan():
    """A nan is neither null nor zero, wherever it comes from."""
    logged = {"a": math.nan, "b": np.float32("nan"), "c": torch.tensor(math.nan), "d": decimal.Decimal("nan")}
    assert all(math.isnan(value) for value in read_back(logged).values())


def test_plain_values_never_reach_the_hook():
    """What the hot path usually encodes runs no Python code, so nothing can change under it."""
    encoder = values.encoder()
    encoder.encode({name: given for name, (given, _) in PLAIN.items()})
    assert encoder.enc_hook.calls == 0
    encoder.encode({"a": np.float32(1)})
    assert encoder.enc_hook.calls == 1


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(object(), id="object"),
        pytest.param(1j, id="complex"),
        pytest.param(np.complex64(1), id="numpy complex"),
        pytest.param(torch.tensor(1j), id="complex tensor"),
        pytest.param(len, id="function"),
        pytest.param(int, id="type"),
        pytest.param((number for number in [1]), id="generator"),
        pytest.param(..., id="ellipsis"),
        pytest.param(torch.empty((), device="meta"), id="meta tensor"),
        pytest.param(torch.tensor([1.0, 0.0]).to_sparse(), id="sparse tensor"),
        pytest.param(np.array([object(), object()]), id="array of objects"),
    ],
)
def test_a_value_without_a_rule_is_refused_by_both_paths(given):
    """The fast path raises; the slow path keeps the rest of the call and reports key, type and reason."""
    with pytest.raises(Exception):  # noqa: B017  whatever the value raises
        values.encoder().encode({"loss": 0.5, "bad": given})
    clean, faults = values.sanitise({"loss": 0.5, "n": {"bad": given}})
    assert clean == {"loss": 0.5}
    [fault] = faults
    assert (fault.key, fault.reason) == ("n/bad", "unsupported_value")
    assert type(given).__qualname__ in fault.type_name


@pytest.mark.parametrize(
    "given",
    [np.zeros(values.MAX_ITEMS + 1), torch.zeros(values.MAX_ITEMS + 1), range(values.MAX_ITEMS + 1)],
    ids=["numpy", "torch", "range"],
)
def test_large_arrays_are_refused_as_too_large(given):
    """Writing out millions of elements would stall the training thread."""
    clean, faults = values.sanitise({"weights": given})
    assert (clean, [fault.reason for fault in faults]) == ({}, ["too_large"])


def test_encoding_takes_a_snapshot():
    """Changing arrays, lists and tensors after the call changes nothing."""
    array, tensor, items = np.zeros(2), torch.zeros(2), [0.0, 0.0]
    logged = {"a": array, "t": tensor, "l": items, "n": {"l": items}}
    encoded = values.encoder().encode(logged)
    clean, _ = values.sanitise(logged)
    array += 1
    tensor += 1
    items[0] = 1.0
    logged.clear()
    expected = {"a": [0.0, 0.0], "t": [0.0, 0.0], "l": [0.0, 0.0], "n/l": [0.0, 0.0]}
    assert values.flatten(msgspec.msgpack.decode(encoded)) == expected
    assert clean == expected


class FakeDeviceTensor(torch.Tensor):
    """Says that it is on a device, and fails a test that reads it."""

    @property
    def is_cpu(self):
        return False

    def item(self):
        raise AssertionError("the device was waited for")

    tolist = item


def test_device_tensors_are_asked_of_the_given_function_only():
    """Nothing but `device_value` ever reads a tensor that is not in host memory, on either path."""
    tensor = torch.zeros(2).as_subclass(FakeDeviceTensor)
    seen = []
    encoder = values.encoder(device_value=lambda given: seen.append(given) or 4.0)
    assert msgspec.msgpack.decode(encoder.encode({"v": tensor})) == {"v": 4.0}
    assert values.sanitise({"v": tensor}, encoder) == ({"v": 4.0}, [])
    encoder.enc_hook.device_value = lambda _: 5.0
    assert msgspec.msgpack.decode(encoder.encode({"v": tensor})) == {"v": 5.0}
    assert len(seen) == 2


class Placement:
    def __init__(self, replicated):
        self.replicated = replicated

    def is_replicate(self):
        return self.replicated


class FakeDTensor(torch.Tensor):
    """Like a DTensor: reading it would be a collective."""

    placements: tuple[Placement, ...] = ()

    def to_local(self):
        return torch.tensor(3.0)

    def item(self):
        raise AssertionError("the DTensor was gathered")


@pytest.mark.parametrize("replicated", [True, False])
def test_a_dtensor_is_never_gathered(replicated):
    """A replicated one is its local value; any other is refused with the way out."""
    tensor = torch.zeros(()).as_subclass(FakeDTensor)
    tensor.placements = (Placement(True), Placement(replicated))
    clean, faults = values.sanitise({"v": tensor})
    assert clean == ({"v": 3.0} if replicated else {})
    assert [".to_local()" in fault.detail for fault in faults] == ([] if replicated else [True])


def test_types_made_anew_do_not_pile_up():
    """A class per step, as some code makes them, is neither kept alive nor refused."""
    encoder = values.encoder()
    for number in range(1000):
        kind = type(f"Made{number}", (float,), {})
        assert msgspec.msgpack.decode(encoder.encode(kind(1.0))) == 1.0
    assert len(encoder.enc_hook._known) <= 256


def test_the_encoder_may_be_used_inside_its_own_hook():
    """A value whose conversion logs by itself (a hook, a signal handler) does not disturb the outer encoding."""
    encoder = values.encoder()

    class Logging:
        def __float__(self):
            encoder.encode({"inner": [1.0] * 100})
            return 2.0

    assert msgspec.msgpack.decode(encoder.encode({"a": 1, "b": Logging(), "c": 3})) == {"a": 1, "b": 2.0, "c": 3}


def test_a_dict_changed_during_encoding_shows_in_the_call_count():
    """Why `Hook.calls` exists: msgspec writes a wrong length, which only decoding finds."""
    encoder = values.encoder()
    logged: dict[str, Any] = {}

    class Changing:
        def __float__(self):
            logged["new"] = 1
            return 0.0

    logged.update(a=Changing(), b=2)
    before = encoder.enc_hook.calls
    encoded = encoder.encode(logged)
    assert encoder.enc_hook.calls != before
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(encoded)
