"""Collectives called as functions, as scripts of Accelerate call those of its utils."""

from __future__ import annotations

import inspect

import pytest
import torch

import accelbus.accelerator as ours
from accelbus.accelerator import Accelerator, operations


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank has what this one has."""
    monkeypatch.setattr(operations, "ranks", lambda: 2)
    monkeypatch.setattr(operations.dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(operations.dist, "all_reduce", lambda tensor, op: tensor.mul_(1 if op == operations.dist.ReduceOp.MAX else 2))


@pytest.mark.usefixtures("two_ranks")
def test_the_function_takes_the_mean_and_the_method_adds_up(make):
    """Accelerate's defaults: a script whose import has changed gets no other number."""
    value = torch.tensor(3.0)
    assert operations.reduce(value) == 3
    assert make().reduce(value) == 6
    assert operations.reduce(value, "max") == 3


@pytest.mark.parametrize("name", ["broadcast", "broadcast_object_list", "gather", "gather_object", "pad_across_processes", "reduce"])
def test_arguments_that_are_left_out_mean_what_they_mean_in_accelerate(name):
    """Every default of its functions is ours."""
    import accelerate.utils as theirs

    parameters = inspect.signature(getattr(ours, name)).parameters
    for theirs_one, ours_one in zip(inspect.signature(getattr(theirs, name)).parameters.values(), parameters.values(), strict=True):
        assert theirs_one.default == ours_one.default


@pytest.mark.parametrize("name", ["gather", "reduce", "pad_across_processes", "gather_for_metrics"])
def test_methods_have_the_defaults_of_accelerates_methods(name):
    """By name, and in the same order."""
    import accelerate

    theirs = inspect.signature(getattr(accelerate.Accelerator, name)).parameters
    parameters = inspect.signature(getattr(Accelerator, name)).parameters
    assert [(one.name, one.default) for one in theirs.values()] == [(one.name, one.default) for one in parameters.values()]
