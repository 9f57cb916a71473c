"""Configurations: everything a project keeps them in, as nested plain data."""

import argparse
import collections
import dataclasses
import datetime as dt
import enum
import functools
import math
import pathlib
import types
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from accelbus import values
from accelbus.errors import ConfigurationError


class Schedule(enum.Enum):
    COSINE = "cosine"


@dataclasses.dataclass
class Model:
    width: int = 64
    activation: Any = torch.nn.ReLU


class Pydantic:
    def model_dump(self):
        return {"lr": 0.1}


class Transformers:
    def to_dict(self):
        return {"hidden_size": 8}


@pytest.mark.parametrize(
    "given, expected",
    [
        pytest.param({"lr": 0.1}, {"lr": 0.1}, id="dict"),
        pytest.param(collections.UserDict(lr=0.1), {"lr": 0.1}, id="mapping"),
        pytest.param(argparse.Namespace(lr=0.1), {"lr": 0.1}, id="argparse"),
        pytest.param(types.SimpleNamespace(lr=0.1), {"lr": 0.1}, id="namespace"),
        pytest.param(Model(activation=None), {"width": 64, "activation": None}, id="dataclass"),
        pytest.param(msgspec.defstruct("S", [("lr", float, 0.1)])(), {"lr": 0.1}, id="struct"),
        pytest.param(Pydantic(), {"lr": 0.1}, id="pydantic"),
        pytest.param(Transformers(), {"hidden_size": 8}, id="to_dict"),
    ],
)
def test_configurations_of_every_kind_are_taken(given, expected):
    """The result is a dict of its own."""
    assert values.config_values(given) == expected


def test_nested_values_stay_nested_and_become_plain():
    """Lists, None, bools and nested sections survive; everything else is a number or text."""
    plain = values.config_values(
        {
            "model": Model(),
            "betas": (0.9, 0.999),
            "none": None,
            "flag": True,
            "schedule": Schedule.COSINE,
            "data": pathlib.PurePosixPath("/data"),
            "start": dt.date(2020, 1, 2),
            "dtype": torch.bfloat16,
            "device": torch.device("cpu"),
            "seed": np.int64(3),
            "layers": [{"size": np.float32(0.5)}, argparse.Namespace(size=2)],
            "tags": {"b", "a"},
            "weights": np.zeros((300, 400)),
            "bias": np.zeros(5000),
            "shape": torch.Size([1, 2]),
            "big": 2**70,
            "text": "\ud800",
            1: "int",
            "raw": b"\xff",
        }
    )
    assert plain == {
        "model": {"width": 64, "activation": "torch.nn.modules.activation.ReLU"},
        "betas": [0.9, 0.999],
        "none": None,
        "flag": True,
        "schedule": "cosine",
        "data": "/data",
        "start": "2020-01-02",
        "dtype": "torch.bfloat16",
        "device": "cpu",
        "seed": 3,
        "layers": [{"size": 0.5}, {"size": 2}],
        "tags": ["a", "b"],
        "weights": [[0.0] * 400] * 300,
        "bias": [0.0] * 5000,
        "shape": [1, 2],
        "big": 2.0**70,
        "text": "\\ud800",
        "1": "int",
        "raw": "\\xff",
    }
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain)) == plain


def test_objects_say_the_same_on_every_rank():
    """Addresses are left out of texts, or ranks would seem to differ."""
    one, two = (values.config_values({"f": functools.partial(print, object()), "o": object()}) for _ in range(2))
    assert one == two
    assert one["o"] == "<object object>"


def test_nan_and_infinity_are_kept():
    """A configuration may hold them."""
    plain = values.config_values({"a": math.nan, "b": -math.inf})
    assert math.isnan(plain["a"])
    assert plain["b"] == -math.inf


def test_nothing_in_a_configuration_raises():
    """A value that fails shows how; cycles and endless texts end."""

    class Failing:
        def __repr__(self):
            raise RuntimeError("no text")

    config: dict[str, Any] = {"bad": Failing(), "long": "x" * 10, "object": type("Long", (), {"__repr__": lambda _: "y" * 10_000})()}
    config["me"] = config
    config["list"] = [config]
    plain = values.config_values(config)
    assert "no text" in plain["bad"]
    assert len(plain["object"]) == 1000
    assert (plain["me"], plain["list"]) == ("<…>", ["<…>"])


@pytest.mark.parametrize("many", [["a file"] * 200_000, list(range(1_000_000))], ids=["text", "numbers"])
def test_long_lists_are_kept_whole(many):
    """Whatever an event has no room for goes to a file; a configuration is never cut."""
    assert values.config_values({"many": many, "nested": {"many": many}}) == {"many": many, "nested": {"many": many}}


@pytest.mark.parametrize("shape", [(200_001,), (3, 70_000), (65_537, 1), (2, 2, 40_000)])
@pytest.mark.parametrize("kind", [np.arange, torch.arange])
def test_large_arrays_are_kept_whole(kind, shape):
    """Of every shape, element by element."""
    array = kind(math.prod(shape)).reshape(shape)
    assert values.config_values({"many": array}) == {"many": array.tolist()}


@pytest.mark.parametrize(
    "many, name",
    [(range(1_000_001), "range of 1000001 items"), (np.zeros((1001, 1000)), "numpy.ndarray, shape (1001, 1000), float64")],
    ids=["list", "array"],
)
def test_a_data_set_in_a_configuration_is_named_with_a_warning(many, name, caplog):
    """Beyond a million elements; nobody finds out by missing it."""
    assert values.config_values({"files": many, "lr": 0.1}) == {"files": name, "lr": 0.1}
    assert caplog.messages == [f"of the configuration a {name} is left out: expected at most 1000000 elements; log it as a file"]


def test_two_keys_with_the_same_text_stay_apart():
    """As in metrics."""
    assert values.config_values({1: "int", "1": "text"}) == {"1": "text", "1#2": "int"}


def test_the_configuration_is_copied():
    """Later changes of the original do not show."""
    config = {"betas": [0.9], "n": {"a": 1}}
    plain = values.config_values(config)
    config["betas"].append(1)
    config["n"]["a"] = 2
    assert plain == {"betas": [0.9], "n": {"a": 1}}


@pytest.mark.parametrize("given", [None, 3, "lr=0.1", [("lr", 0.1)], Model, object(), len], ids=lambda given: str(type(given).__name__))
def test_what_is_no_configuration_is_refused_loudly(given):
    """`init` is the place to find out."""
    with pytest.raises(ConfigurationError, match="expected a mapping, dataclass or Namespace"):
        values.config_values(given)
