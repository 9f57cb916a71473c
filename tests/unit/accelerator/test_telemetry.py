"""What the runtime tells of itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelbus.accelerator import stopwatch
from accelbus.accelerator.stopwatch import Stopwatch
from accelbus.accelerator.telemetry import KINDS, Telemetry
from accelbus.errors import ConfigurationError


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    now = [0.0]
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: now[0])
    return now


def source(clock, waits: list[float]) -> Iterator[int]:
    for number, wait in enumerate(waits):
        clock[0] += wait
        yield number


def test_waiting_and_computing_are_told_apart(clock):
    """Seconds until a batch is there, seconds until the next one is asked for."""
    watch = Stopwatch()
    for _ in watch.watch(source(clock, [1.0, 2.0])):
        watch.train()
        clock[0] += 10.0
    assert watch.take() == (2, 3.0, 20.0)
    assert watch.take() == (0, 0.0, 0.0)


def test_an_evaluation_inside_counts_for_nobody(clock):
    """Its batches are not trained on, and its time is not the training batch's."""
    watch = Stopwatch()
    for _ in watch.watch(source(clock, [1.0])):
        watch.train()
        clock[0] += 10.0
        for _ in watch.watch(source(clock, [100.0, 100.0])):
            clock[0] += 100.0
        clock[0] += 5.0
    assert watch.take() == (1, 1.0, 15.0)


def test_a_loop_that_is_left_closes_its_source(clock):
    """Nothing is left open, and the next loop starts anew."""
    watch, closed = Stopwatch(), []

    def closing() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    loop = watch.watch(closing())
    next(loop)
    loop.close()
    assert closed == [True]


def test_numbers_are_those_since_the_last_look(make):
    """Norm, waiting and computing; each once."""
    accelerator = make()
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.ones(4, 2)), 2))
    model, optimizer = accelerator.prepare(model := nn.Linear(2, 1), torch.optim.SGD(model.parameters(), lr=0.1))
    for (batch,) in loader:
        accelerator.backward(model(batch).sum())
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    found = accelerator._numbers()
    assert set(found) == {"telemetry/grad_norm", "telemetry/data_wait_s", "telemetry/compute_s"}
    assert found["telemetry/grad_norm"] == norm
    assert 0 < found["telemetry/data_wait_s"] < 10
    assert accelerator._numbers() == {}


@pytest.mark.parametrize("telemetry, expected", [(False, set()), ("gradients", {"telemetry/grad_norm"}), (["config"], set())])
def test_only_what_is_wanted_is_told(make, telemetry, expected):
    """Off altogether, or some kinds."""
    accelerator, model = make(telemetry=telemetry), nn.Linear(2, 1)
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.ones(4, 2)), 2))
    for (batch,) in loader:
        accelerator.backward(model(batch).sum())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
    assert set(accelerator._numbers()) == expected


def test_kinds_are_known():
    """A word that means nothing is refused, with those that do."""
    assert Telemetry(True).kinds == KINDS.keys()
    with pytest.raises(ConfigurationError, match=r"unknown 'norms' \(known: config, gradients"):
        Telemetry(["norms"])


def test_settings_in_force_are_plain_data(make):
    """They can be recorded as configuration."""
    from accelbus.handlers import AutocastKwargs
    from accelbus.values import config_values

    facts = make(mixed_precision="bf16", kwargs_handlers=[AutocastKwargs(cache_enabled=False)]).facts()
    assert config_values(facts) == facts
    assert facts["mixed_precision"] == "bf16"
    assert facts["handlers"] == {"AutocastKwargs": {"enabled": True, "cache_enabled": False}}
    assert facts["torch"] == torch.__version__


def test_optimizers_are_numbered_as_they_were_prepared(make, monkeypatch):
    """Whichever steps first; after `free_memory` they are counted anew."""
    monkeypatch.setattr("accelbus.accelerator.accelerator.check_precision", lambda *_: "fp16")
    accelerator = make(telemetry="scaler")
    for overflowing in (0, 1):
        models = [nn.Linear(2, 1), nn.Linear(2, 1)]
        optimizers = accelerator.prepare(*[torch.optim.SGD(model.parameters(), lr=0.1) for model in models])
        for number in (1, 0):
            factor = float("inf") if number == overflowing else 1.0
            accelerator.backward(models[number](torch.ones(1, 2)).sum() * factor)
            optimizers[number].step()
        numbers = accelerator._numbers()
        skipped = [numbers["telemetry/scaler/skipped_steps"], numbers["telemetry/scaler/skipped_steps_1"]]
        assert skipped == [number == overflowing for number in range(2)]
        accelerator.free_memory()
        assert not any("skipped" in key for key in accelerator._numbers())
