"""`AutocastKwargs` makes autocast contexts that nest."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
import torch

from accelbus.errors import ConfigurationError
from accelbus.handlers import AutocastKwargs, NoEffectWarning


def product() -> torch.dtype:
    one = torch.ones(2, 2)
    return (one @ one).dtype


@pytest.mark.parametrize("dtype", ["bf16", "BF16", "bfloat16", torch.bfloat16, None])
def test_operations_run_in_the_precision_that_was_asked_for(dtype):
    """Names and dtypes; the CPU's own default is bf16."""
    with AutocastKwargs().autocast(dtype, device_type="cpu"):
        assert product() == torch.bfloat16
    assert product() == torch.float32


def test_a_disabled_context_is_an_island_of_full_precision():
    """The reference's own check: half, full within, half again."""
    with AutocastKwargs().autocast("bf16", device_type="cpu"):
        assert product() == torch.bfloat16
        with AutocastKwargs(enabled=False).autocast("bf16", device_type="cpu"):
            assert product() == torch.float32
        assert product() == torch.bfloat16


def test_the_cache_is_as_asked_for():
    """An explicit True reaches torch also inside a context that has switched it off."""
    with AutocastKwargs(cache_enabled=False).autocast("bf16", device_type="cpu"):
        assert not torch.is_autocast_cache_enabled()
        with AutocastKwargs().autocast("bf16", device_type="cpu"):
            assert not torch.is_autocast_cache_enabled()
        with AutocastKwargs(cache_enabled=True).autocast("bf16", device_type="cpu"):
            assert torch.is_autocast_cache_enabled()


def test_no_precision_is_no_context_and_says_so_once():
    """Settings that can have no effect are warned about; without any there is nothing to say."""
    assert isinstance(AutocastKwargs().autocast("no"), contextlib.nullcontext)
    AutocastKwargs(enabled=False).autocast("no")
    with pytest.warns(NoEffectWarning, match='AutocastKwargs has no effect with mixed precision "no"'):
        AutocastKwargs(cache_enabled=True).autocast("no")
    AutocastKwargs(cache_enabled=True).autocast("no")


@pytest.mark.parametrize(
    "dtype, message", [("fp61", "dtype: unknown 'fp61'; did you mean 'fp16'"), (16, "dtype: expected one of no, fp16")]
)
def test_an_unknown_precision_is_an_error(dtype, message):
    """It names the known."""
    with pytest.raises(ConfigurationError, match=message):
        AutocastKwargs().autocast(dtype)


def test_a_subclass_may_have_fields_of_its_own():
    """They are its own business and do not reach torch."""

    @dataclass
    class Mine(AutocastKwargs):
        note: str = ""

    with Mine(note="x").autocast("bf16", device_type="cpu"):
        assert product() == torch.bfloat16
