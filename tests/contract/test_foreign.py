"""A tracker written for Accelerate, with none of our hooks and no base class: the suite takes it as delivery does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accelbus.testing import Point, ReadBack, SinkContract
from accelbus.values import flatten


class LinesTracker:
    """Interface and habits of Accelerate's custom trackers: starts in ``start``, knows no status, no flush and no ``**kwargs``."""

    name = "lines"
    requires_logging_directory = True
    durable_after = "call"

    def __init__(self, run_name: str, logging_dir: str) -> None:
        self.directory = Path(logging_dir)
        self.step = 0

    @property
    def tracker(self) -> Path:
        return self.directory / "lines"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.started = True

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        (self.directory / "config").write_text(json.dumps(values))

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        if not hasattr(self, "started"):
            raise RuntimeError("call start first")
        self.step = self.step if step is None else step
        with self.tracker.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps([self.step, key, value]) + "\n" for key, value in values.items())

    def finish(self) -> None:
        self.tracker.touch()


class TestForeign(SinkContract):
    """The suite itself needs nothing that such a tracker lacks."""

    tracker_class = LinesTracker
    keeps_time = False

    def read(self, logging_dir: Path) -> ReadBack:
        points = [Point(*json.loads(line)) for line in (logging_dir / "lines").read_text(encoding="utf-8").splitlines()]
        config = logging_dir / "config"
        return ReadBack(points, flatten(json.loads(config.read_text())) if config.exists() else {})
