"""`GradScalerKwargs` makes gradient scalers."""

from __future__ import annotations

import pytest
import torch

from accelbus.errors import ConfigurationError
from accelbus.handlers import GradScalerKwargs, NoEffectWarning


def test_the_scaler_has_what_was_set_and_torchs_defaults():
    """The reference's own check."""
    scaler = GradScalerKwargs(init_scale=1024, growth_factor=2).build("cpu")
    assert (scaler._init_scale, scaler._growth_factor, scaler._backoff_factor, scaler._growth_interval) == (1024.0, 2.0, 0.5, 2000)
    assert scaler._enabled is True


@pytest.mark.parametrize("precision", ["bf16", "no"])
def test_without_fp16_the_scaler_does_nothing_and_says_why_once(precision):
    """The training loop is the same with and without it."""
    with pytest.warns(NoEffectWarning, match=f'GradScalerKwargs has no effect with mixed precision "{precision}": only fp16'):
        scaler = GradScalerKwargs(init_scale=8.0).build("cpu", mixed_precision=precision)
    GradScalerKwargs().build("cpu", mixed_precision=precision)
    assert not scaler.is_enabled()
    loss = torch.ones(1, requires_grad=True).sum()
    assert scaler.scale(loss) is loss


def test_an_unknown_precision_is_an_error():
    """It is not taken for one without a scaler."""
    with pytest.raises(ConfigurationError, match="mixed_precision: unknown 'fp61'; did you mean 'fp16'"):
        GradScalerKwargs().build("cpu", mixed_precision="fp61")


def test_a_scaler_that_is_disabled_stays_so():
    """`enabled=False` reaches torch."""
    assert not GradScalerKwargs(enabled=False).build("cpu").is_enabled()


def test_another_class_may_be_made():
    """With the same arguments, and more."""

    class Sharded(torch.amp.GradScaler):
        def __init__(self, *arguments, process_group=None, **named):
            super().__init__(*arguments, **named)
            self.process_group = process_group

    scaler = GradScalerKwargs(growth_interval=3).build("cpu", scaler_class=Sharded, process_group="group")
    assert (type(scaler), scaler.process_group, scaler._growth_interval) == (Sharded, "group", 3)


def test_an_overflow_backs_off_as_set():
    """The factors are in force: an infinite gradient shrinks the scale, a finite one lets it grow."""
    scaler = GradScalerKwargs(init_scale=64.0, backoff_factor=0.25, growth_factor=3.0, growth_interval=1).build("cpu")
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for factor, expected in ((float("inf"), 16.0), (1.0, 48.0)):
        optimizer.zero_grad()
        scaler.scale((parameter * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == expected
