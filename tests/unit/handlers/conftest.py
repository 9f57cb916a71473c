"""Every test may warn anew, and leaves no process group behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from accelbus.handlers import base
from accelbus.handlers.process import let_go_of_group


@pytest.fixture(autouse=True)
def nothing_said_and_no_group_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Warnings given once per process are given once per test; launcher variables are gone."""
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(base, "_said", set())
    yield
    dist = sys.modules.get("torch.distributed")
    left = dist is not None and dist.is_initialized()
    if left:
        dist.destroy_process_group()
    assert not left, "the test has left a process group behind"


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """A process group with this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    let_go_of_group()
    dist.destroy_process_group()
