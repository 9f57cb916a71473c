"""Single processes on the CPU: no launcher around them, and warnings given once per process are given once per test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accelbus.accelerator import Accelerator
from accelbus.handlers import base


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_MIXED_PRECISION")
    for variable in launcher:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(base, "_said", set(), raising=False)
    torch.manual_seed(0)


@pytest.fixture
def make() -> Callable[..., Accelerator]:
    """An `Accelerator` on the CPU."""

    def accelerator(**arguments: Any) -> Accelerator:
        return Accelerator(cpu=True, **arguments)

    return accelerator
