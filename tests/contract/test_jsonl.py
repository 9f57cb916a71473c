"""The JSONL tracker, read back line by line."""

from __future__ import annotations

import json
from pathlib import Path

from accelbus.testing import Point, ReadBack, SinkContract
from accelbus.values import flatten
from accelbus_sinks.jsonl import JSONLTracker


class TestJSONL(SinkContract):
    """Every line is JSON that any parser takes; numbers that are not finite are named on their line."""

    tracker_class = JSONLTracker

    def read(self, logging_dir: Path) -> ReadBack:
        points = []
        for text in (logging_dir / "metrics.jsonl").read_text().splitlines():
            line = json.loads(text, parse_constant=_refuse)
            values = {key: float(value) if key in line.get("non_finite", ()) else value for key, value in line["values"].items()}
            points += [Point(line["step"], key, value, line["time"]) for key, value in values.items()]
        config = logging_dir / "config.json"
        return ReadBack(
            points,
            flatten(json.loads(config.read_text(), parse_constant=_refuse)) if config.exists() else {},
            json.loads((logging_dir / "status.json").read_text())["status"] if (logging_dir / "status.json").exists() else None,
        )


def test_not_a_number_differs_from_null_and_from_text(tmp_path):
    """A reader can tell a NaN, a missing value and the word NaN, in lists too."""
    tracker = JSONLTracker("run", tmp_path)
    tracker.start()
    tracker.log({"loss": float("nan"), "word": "NaN", "nothing": None, "list": [1.0, float("-inf")]}, step=1)
    tracker.finish()
    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=_refuse)
    assert line["values"] == {"loss": "NaN", "word": "NaN", "nothing": None, "list": [1.0, "-Infinity"]}
    assert line["non_finite"] == ["loss", "list"]


def test_what_json_libraries_refuse_is_kept(tmp_path):
    """Integers beyond 64 bits and lone surrogates come back from a direct call as they went in."""
    tracker = JSONLTracker("run", tmp_path)
    tracker.start()
    tracker.log({"big": 2**100, "sur\ud800rogate": "\udfff"}, step=1)
    tracker.finish()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["values"] == {"big": 2**100, "sur\ud800rogate": "\udfff"}


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
