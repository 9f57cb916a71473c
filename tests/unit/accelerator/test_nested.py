"""Nested data: containers keep their types, tensors are found wherever they are."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple

import pytest
import torch

from accelbus.accelerator.nested import concatenate, has_only_tensors, map_tensors, rows_between, rows_of, send_to_device
from accelbus.accelerator.precision import to_float32

Pair = namedtuple("Pair", "x y")  # noqa: PYI024  what libraries return
BATCH = {"x": torch.arange(6).reshape(3, 2), "more": [torch.arange(3), ("a", "b", "c")], "pair": Pair(torch.ones(3), torch.zeros(3))}


def test_containers_keep_their_types():
    """Named tuples, ordered dicts and other mappings come back as what they were."""
    data = [Pair(torch.ones(1), 2), OrderedDict(a=torch.ones(1)), UserDict({"b": (torch.ones(1),)}), "text", None]
    found = map_tensors(lambda tensor: tensor + 1, data)
    assert [type(one) for one in found] == [Pair, OrderedDict, UserDict, str, type(None)]
    assert found[0].x == found[1]["a"] == found[2]["b"][0] == 2
    assert found[0].y == 2


def test_something_else_than_tensors_is_refused_where_only_they_make_sense():
    """The error says what came."""
    with pytest.raises(TypeError, match="got str"):
        map_tensors(torch.clone, [torch.ones(1), "text"], strict=True)
    assert has_only_tensors([torch.ones(1), {"a": (torch.ones(1),)}])
    assert not has_only_tensors([torch.ones(1), 1])


def test_rows_are_counted_cut_and_joined():
    """A batch that is cut in two and joined again is the same batch."""
    assert rows_of(BATCH) == 3
    parts = [rows_between(BATCH, 0, 1), rows_between(BATCH, 1, 3)]
    assert [rows_of(part) for part in parts] == [1, 2]
    joined = concatenate(parts)
    assert torch.equal(joined["x"], BATCH["x"])
    assert joined["more"][1] == ("a", "b", "c")
    assert torch.equal(joined["pair"].x, BATCH["pair"].x)


def test_batches_without_rows_have_none():
    """Scalars say nothing about the number of samples; sequences do."""
    assert rows_of(torch.tensor(1.0)) is None
    assert rows_of({"scalar": torch.tensor(1.0), "ids": torch.ones(4)}) == 4
    assert rows_of(["a", "b"]) == 2
    assert rows_of(3) is None


def test_everything_that_can_moves_to_the_device():
    """Tensors anywhere, and objects that have a method for it."""

    class Encoding(UserDict[str, torch.Tensor]):
        def to(self, device: torch.device) -> Encoding:
            return Encoding({key: value.to(device) for key, value in self.data.items()})

    device = torch.device("meta")
    found = send_to_device([torch.ones(1), Encoding(a=torch.ones(1)), {"b": torch.ones(1)}, "text"], device)
    assert [found[0].device, found[1]["a"].device, found[2]["b"].device] == [device] * 3
    assert found[3] == "text"


def test_half_precision_becomes_float32():
    """Integers and doubles stay."""
    data = [torch.ones(1, dtype=kind) for kind in (torch.bfloat16, torch.float16, torch.float64, torch.int64)]
    assert [tensor.dtype for tensor in to_float32(data)] == [torch.float32, torch.float32, torch.float64, torch.int64]
