"""Steps: anything with __index__, and integral floats."""

import decimal

import numpy as np
import pytest
import torch

from accelbus import values


class Index:
    def __index__(self):
        return 7

    def __repr__(self):
        return "Index()"  # a test's name must be the same in every process


class Raising:
    def __index__(self):
        raise RuntimeError("lost the device")


@pytest.mark.parametrize(
    "given, expected",
    [
        (0, 0),
        (-5, -5),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (True, 1),
        (3.0, 3),
        (-0.0, 0),
        (Index(), 7),
        (decimal.Decimal(4), 4),
        (np.int8(3), 3),
        (np.uint64(3), 3),
        (np.float32(3), 3),
        (np.array(3), 3),
        (np.array(3.0), 3),
        (np.bool_(True), 1),
        (torch.tensor(3), 3),
        (torch.tensor(3.0), 3),
        (torch.tensor([3]), 3),
    ],
    ids=repr,
)
def test_integers_of_every_kind_are_steps(given, expected):
    """The result is a plain int."""
    found = values.step_of(given)
    assert found == expected
    assert type(found) is int


@pytest.mark.parametrize(
    "given",
    [None, "5", b"5", 1.5, float("nan"), float("inf"), 1e300, 2**63, -(2**63) - 1, [1], {}, 1j, object(), Raising(),
     np.array([1, 2]), np.float32(1.5), torch.tensor(1.5), torch.tensor([1, 2]), torch.empty((), device="meta")],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_anything_else_is_refused(given):
    """One error type, which says what was expected and what came."""
    with pytest.raises(ValueError, match="expected a step that is an integer of at most 64 bits, got "):
        values.step_of(given)
