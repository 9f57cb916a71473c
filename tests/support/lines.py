"""What a run's export says."""

from __future__ import annotations

from typing import Any

import msgspec

from accelbus import Run
from accelbus.reader.export import Export
from accelbus.rundir import RunDir


def metric_lines(run: Run) -> dict[int, dict[str, Any]]:
    """Return {step: all values that the ranks logged there}."""
    values: dict[int, dict[str, Any]] = {}
    for chunk in Export(RunDir(run.dir)).chunks():
        for text in chunk.splitlines():
            line = msgspec.json.decode(text)
            if "type" not in line:
                values.setdefault(line["step"], {}).update(line["values"])
    return values
