"""The W&B tracker, offline, read back from W&B's own files."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("wandb")

from accelbus.testing import Point, ReadBack, SinkContract, state_dir
from accelbus.values import flatten
from accelbus_sinks.wandb import WandBTracker
from tests.support import wandb_reader as reader


class TestWandB(SinkContract):
    """Every row has its true step as ``accelbus/step``; W&B's own steps rise by themselves."""

    tracker_class = WandBTracker
    init_kwargs: ClassVar = {"mode": "offline"}

    def read(self, logging_dir: Path) -> ReadBack:
        (file,) = reader.files(logging_dir)
        own = [row["_step"] for row in reader.rows(file)]
        assert own == sorted(set(own))
        points = [Point(*point) for point in reader.points(file, state_dir(logging_dir) / "keys.json")]
        exits = reader.of_kind(file, "exit")
        assert len(exits) <= 1
        status = {0: "finished", 1: "failed", 137: "killed", 143: "preempted", 255: "lost"}[exits[0].exit_code] if exits else None
        return ReadBack(points, flatten(reader.config(file)), status)
