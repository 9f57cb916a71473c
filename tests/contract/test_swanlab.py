"""The SwanLab tracker, with the real library in its offline mode, read back with its own reader of run files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("swanlab")

import yaml

from accelbus.testing import Point, ReadBack, SinkContract, state_dir
from accelbus.values import flatten
from accelbus_sinks._keys import KeyMap
from accelbus_sinks._step_text import read_step_text
from accelbus_sinks._swanlab_names import key_of, name_of
from accelbus_sinks.swanlab import SwanLabTracker


@pytest.fixture(autouse=True)
def _one_run():
    """Whatever a failed test left open is finished."""
    yield
    import swanlab

    if swanlab.has_run():
        swanlab.finish()


class TestSwanLab(SinkContract):
    """Every value keeps its time; what SwanLab would skip has a name of its own."""

    tracker_class = SwanLabTracker
    init_kwargs: ClassVar[dict[str, Any]] = {"mode": "offline"}
    one_run_per_process = True

    def read(self, logging_dir: Path) -> ReadBack:
        return read(logging_dir, state_dir(logging_dir))


def read(logging_dir: Path, state: Path) -> ReadBack:
    """Return what the run's one directory holds."""
    (directory,) = logging_dir.glob("run-*")
    names = KeyMap(state / "keys.json", name_of)
    points = []
    status = None
    for record in records_of(directory):
        if record.HasField("scalar"):
            scalar = record.scalar
            points.append(Point(scalar.step, key_of(names.key(scalar.key)), scalar.value.number, _seconds(scalar.timestamp)))
        elif record.HasField("media") and record.media.value.items[0].filename.endswith(".txt"):
            text = (directory / "media" / "text" / record.media.value.items[0].filename).read_text()
            value = json.loads(text) if text.startswith("[") else text
            points.append(
                Point(record.media.step, key_of(names.key(record.media.key)), value, _seconds(record.media.timestamp))
            )
        elif record.HasField("log") and (said := read_step_text(record.log.line)):
            points += [Point(said[0], key, value) for key, value in said[1].items() if value not in {float("inf"), float("-inf")}]
        elif record.HasField("finish"):
            assert status is None, "a run is finished once"
            status = {1: "finished"}.get(record.finish.state, "failed")
    config = yaml.safe_load((directory / "files" / "config.yaml").read_text()) or {}
    return ReadBack(points, flatten({key: entry["value"] for key, entry in config.items()}), status)


def _seconds(time: Any) -> float:
    return time.seconds + time.nanos / 1e9


def records_of(directory: Path) -> list:
    """Return what SwanLab's own reader finds in the run file."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    (file,) = directory.glob("run-*.swanlab")
    reader = DataStoreReader()
    reader.open(file)
    try:
        return [Record.FromString(data) for data in reader]
    finally:
        reader.close()
