"""Digests of tensors: what differs in any bit is found, wherever it is."""

from __future__ import annotations

import pytest
import torch

from accelbus.accelerator.differing import digest, put_back


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(1000),
        torch.randn(2**18 + 7, dtype=torch.bfloat16),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(3.0),
        torch.tensor([True, False]),
        torch.zeros(3, dtype=torch.complex128),
        torch.randn(9)[1:],
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_a_digest_is_that_of_the_bits(tensor):
    """Copies have the same, whatever their layout; the smallest change anywhere has another. No generator of the process is used."""
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert digest(tensor) == digest(tensor.contiguous().clone())
    other = tensor.contiguous().clone()
    other.view(-1)[-1] = ~other.view(-1)[-1] if other.dtype is torch.bool else other.view(-1)[-1] + 1
    assert digest(other) != digest(tensor)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_order_of_values_matters():
    """A permutation is another tensor, and so is minus zero; an empty one has a digest too."""
    assert digest(torch.tensor([1.0, 2.0])) != digest(torch.tensor([2.0, 1.0]))
    assert digest(torch.tensor(0.0)) != digest(torch.tensor(-0.0))
    assert digest(torch.ones(0)) == 0


def test_tensors_are_put_back_where_they_were():
    """Into the state of the object that they belong to, and no other."""
    entries = [[["optimizer.bin", 1, "state", 0, "momentum"], torch.ones(1)], [["model", 0, "a"], torch.zeros(1)]]
    state = {"state": {0: {"momentum": torch.zeros(1)}}, "a": 3}
    assert put_back(state, entries, "optimizer.bin", 1)["state"][0]["momentum"] == 1
    assert state["a"] == 3
