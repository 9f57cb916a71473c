"""The DVCLive tracker, read back with DVCLive's own readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("dvclive")

from dvclive.serialize import load_yaml
from dvclive.utils import parse_tsv

from accelbus.testing import Point, ReadBack, SinkContract, state_dir
from accelbus.values import flatten
from accelbus_sinks._keys import read_keys
from accelbus_sinks.dvclive import DVCLiveTracker


class TestDVCLive(SinkContract):
    """Every key is a table; tables have no types, so numbers are what looks like one."""

    tracker_class = DVCLiveTracker

    def read(self, logging_dir: Path) -> ReadBack:
        keys = {name: key for key, name in read_keys(state_dir(logging_dir) / "keys.json").items()}
        points = []
        for path in (logging_dir / "plots" / "metrics").rglob("*.tsv"):
            name = path.relative_to(logging_dir / "plots" / "metrics").as_posix().removesuffix(".tsv")
            for row in parse_tsv(path):
                time, step, value = row.values()
                points.append(Point(int(step), keys[name], _value(value), int(time) / 1000))
        points.sort(key=lambda point: point.time)
        params = logging_dir / "params.yaml"
        status = logging_dir / "status.json"
        return ReadBack(
            points,
            flatten(load_yaml(params)) if params.exists() else {},
            json.loads(status.read_text())["status"] if status.exists() else None,
        )


def _value(text):
    if text.startswith("["):
        return json.loads(text)
    if text in {"nan", "inf", "-inf"} or text.lstrip("-")[:1].isdigit():
        return int(text) if text.lstrip("-").isdigit() else float(text)
    return text
