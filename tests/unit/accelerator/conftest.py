"""Single processes on the CPU: no launcher around them, and warnings given once per process are given once per test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accelbus.accelerator import Accelerator
from accelbus.handlers import base
from accelbus.handlers.process import let_go_of_group


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for variable in (*launcher, *(name for name in os.environ if name.startswith("ACCELERATE_"))):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(base, "_said", set(), raising=False)
    torch.manual_seed(0)


@pytest.fixture
def make() -> Callable[..., Accelerator]:
    """An `Accelerator` on the CPU."""

    def accelerator(**arguments: Any) -> Accelerator:
        return Accelerator(cpu=True, **arguments)

    return accelerator


@pytest.fixture
def lone_group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    let_go_of_group()
    dist.destroy_process_group()
