"""Optimizers and schedules: when they step, and what they know of it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from accelerate.scheduler import AcceleratedScheduler as TheirScheduler
from torch import nn

from accelbus.accelerator.gradients import GradientState
from accelbus.accelerator.optimizer import AcceleratedOptimizer
from accelbus.accelerator.options import GradientAccumulationPlugin
from accelbus.accelerator.scaling import LossScaling
from accelbus.accelerator.scheduler import AcceleratedScheduler
from accelbus.accelerator.telemetry import Telemetry


def scaled(kind=torch.optim.AdamW, *, models=1, **arguments):
    """Return models, prepared optimizers, scaler and telemetry."""
    scaling = LossScaling(torch.amp.GradScaler("cpu", init_scale=1024.0))
    telemetry, gradients = Telemetry(True), GradientState(GradientAccumulationPlugin())
    found = [nn.Linear(2, 1) for _ in range(models)]
    optimizers = [
        AcceleratedOptimizer(kind(model.parameters(), lr=0.1, **arguments), gradients, scaling=scaling, telemetry=telemetry)
        for model in found
    ]
    return found, optimizers, scaling, telemetry


@pytest.mark.parametrize(
    "kind, arguments",
    [(torch.optim.SGD, {}), (torch.optim.AdamW, {}), (torch.optim.AdamW, {"fused": True}), (torch.optim.SGD, {"fused": True})],
    ids=["sgd", "adamw", "fused adamw", "fused sgd"],
)
def test_a_skipped_step_is_noticed(kind, arguments):
    """With an overflow nothing moves and it is said, also for optimizers that decide on the device; the reference's False, True, True, False."""
    (model,), (optimizer,), scaling, telemetry = scaled(kind, **arguments)
    schedule = AcceleratedScheduler(torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1), [optimizer], optimizer.gradient_state)
    found = []
    for factor in (1.0, float("inf"), float("nan"), 1.0):
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        scaling.backward(model(torch.ones(1, 2)).sum() * factor)
        optimizer.step()
        schedule.step()
        found.append((optimizer.step_was_skipped, torch.equal(before, model.weight)))
    assert found == [(False, False), (True, True), (True, True), (False, False)]
    assert schedule.scheduler.last_epoch == 2
    scaling.update()
    numbers = telemetry.take(scaling, [])
    assert float(numbers["telemetry/scaler/scale"]) == 256.0
    assert int(numbers["telemetry/scaler/growth_steps"]) == 1
    assert int(numbers["telemetry/scaler/skipped_steps"]) == 2


def test_a_step_that_somebody_has_replaced_is_no_skipped_step():
    """Hooks of the original's step are not called by it; what torch found counts."""
    (model,), (optimizer,), scaling, _ = scaled(torch.optim.SGD)
    calls = []
    optimizer.optimizer.step = lambda *_: calls.append(True)
    for factor in (1.0, float("inf")):
        scaling.backward(model(torch.ones(1, 2)).sum() * factor)
        optimizer.step()
        assert optimizer.step_was_skipped == (factor != 1.0)
    assert calls == [True]


def test_two_optimizers_of_one_backward_are_unscaled_once():
    """Both see the true gradients, whichever steps first; torch forgets what is unscaled when the scale is updated in between."""
    models, optimizers, scaling, _ = scaled(torch.optim.SGD, models=2)
    before = [model.weight.detach().clone() for model in models]
    scaling.backward(sum(model(torch.ones(1, 2)).sum() for model in models))
    for optimizer in optimizers:
        scaling.unscale(optimizer.optimizer)
    for optimizer in optimizers:
        optimizer.step()
    for model, was in zip(models, before, strict=True):
        torch.testing.assert_close(model.weight, was - 0.1)


def test_unscaling_again_does_nothing():
    """Clipping the same parameters twice in a step, which torch refuses, is harmless."""
    (model,), (optimizer,), scaling, _ = scaled()
    for _ in range(2):
        scaling.backward(model(torch.ones(1, 2)).sum())
        for _ in range(2):
            scaling.unscale(optimizer.optimizer)
        torch.testing.assert_close(model.weight.grad, torch.ones(1, 2))
        optimizer.step()
        optimizer.zero_grad()


def test_an_optimizer_steps_twice_without_a_backward():
    """As it does without a scaler."""
    (model,), (optimizer,), scaling, _ = scaled(torch.optim.SGD)
    scaling.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    optimizer.step()


def test_a_scaler_that_is_off_changes_nothing():
    """GradScalerKwargs(enabled=False): plain steps, no scale."""
    scaling = LossScaling(torch.amp.GradScaler("cpu", enabled=False))
    model = nn.Linear(2, 1)
    optimizer = AcceleratedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), GradientState(GradientAccumulationPlugin()), scaling=scaling
    )
    before = model.weight.detach().clone()
    scaling.backward(model(torch.ones(1, 2)).sum())
    scaling.unscale(optimizer.optimizer)
    optimizer.step()
    torch.testing.assert_close(model.weight, before - 0.1)
    assert not optimizer.step_was_skipped
    assert scaling.scale() is None


def test_a_closure_reaches_the_optimizer():
    """LBFGS calls it as often as it likes, and its result comes back."""
    model = nn.Linear(2, 1)
    optimizer = AcceleratedOptimizer(torch.optim.LBFGS(model.parameters()), GradientState(GradientAccumulationPlugin()))
    calls = []

    def closure():
        calls.append(True)
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).pow(2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) is not None
    assert len(calls) > 1


def test_an_optimizer_behaves_like_its_original():
    """It is an Optimizer for schedulers; groups, state, copies, pickles and attributes are the original's."""
    model = nn.Linear(2, 1)
    original = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer = AcceleratedOptimizer(original, GradientState(GradientAccumulationPlugin()))
    assert isinstance(optimizer, torch.optim.Optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule.step()
    assert original.param_groups[0]["lr"] == 0.05
    assert optimizer.state is original.state
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert len(original.param_groups) == 2
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(AcceleratedOptimizer(original, optimizer.gradient_state)))):
        assert twin.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
        assert twin.optimizer is not original
    assert optimizer._cuda_graph_capture_health_check is not None
    assert not hasattr(optimizer, "train")


class TheirState:
    """What Accelerate's scheduler asks for."""

    adjust_scheduler = False
    sync_gradients = True


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", ["cosine", "onecycle"])
def test_schedules_move_as_with_accelerate(monkeypatch, ranks, split, kind):
    """Once per batch of the original loader; OneCycleLR, whose end does not come out even, stops there."""
    ours, theirs = ([], [])
    for rates in (ours, theirs):
        original = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
        schedule = (
            torch.optim.lr_scheduler.CosineAnnealingLR(original, 10)
            if kind == "cosine"
            else torch.optim.lr_scheduler.OneCycleLR(original, 0.1, total_steps=10)
        )
        optimizer = AcceleratedOptimizer(original, GradientState(GradientAccumulationPlugin()))
        if rates is ours:
            moved = AcceleratedScheduler(schedule, [optimizer], optimizer.gradient_state, ranks=ranks, split_batches=split)
        else:
            monkeypatch.setattr("accelerate.scheduler.AcceleratorState", lambda: type("State", (), {"num_processes": ranks}))
            moved = TheirScheduler.__new__(TheirScheduler)
            vars(moved).update(
                scheduler=schedule, optimizers=[optimizer], split_batches=split, step_with_optimizer=True, gradient_state=TheirState()
            )
        for _ in range(10 // (1 if split else ranks) + 1):
            optimizer.step()
            if kind == "cosine" or schedule.last_epoch < 10:
                moved.step()
            rates.append(moved.get_last_lr())
    assert ours == theirs


def test_a_schedule_waits_for_the_step():
    """While gradients accumulate it does not move, and OneCycleLR reaches its end with as many steps as it was made for."""
    gradients = GradientState(GradientAccumulationPlugin(num_steps=2))
    original = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = AcceleratedScheduler(
        torch.optim.lr_scheduler.OneCycleLR(original, 0.1, total_steps=5), [AcceleratedOptimizer(original, gradients)], gradients
    )
    epochs = []
    for _ in range(10):
        gradients.next_batch()
        original.step()
        schedule.step()
        epochs.append(schedule.last_epoch)
    assert epochs == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def test_a_plateau_is_measured_once_per_step():
    """However many ranks there are: its patience counts measurements."""
    gradients = GradientState(GradientAccumulationPlugin())
    original = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(original, patience=2, factor=0.5)
    schedule = AcceleratedScheduler(plateau, [AcceleratedOptimizer(original, gradients)], gradients, ranks=4)
    rates = []
    for _ in range(5):
        original.step()
        schedule.step(1.0)
        rates.append(original.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 1.0, 0.5, 0.5]


def test_a_schedule_on_its_own_moves_when_it_is_told():
    """step_scheduler_with_optimizer=False: once per call, accumulation or not."""
    gradients = GradientState(GradientAccumulationPlugin(num_steps=4))
    original = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = AcceleratedScheduler(
        torch.optim.lr_scheduler.StepLR(original, 1),
        [AcceleratedOptimizer(original, gradients)],
        gradients,
        ranks=4,
        step_with_optimizer=False,
    )
    gradients.next_batch()
    original.step()
    schedule.step()
    assert schedule.last_epoch == 1
