"""The JSONL tracker, read back line by line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

from accelbus.media import Artifact, Figure, Histogram, Html, Image, Table
from accelbus.testing import Arrived, Point, ReadBack, SinkContract
from accelbus.tracking import Row, RunInfo
from accelbus.values import flatten
from accelbus_sinks.jsonl import JSONLTracker
from tests.support.arrivals import jsonl as found
from tests.support.killed_start import killed_starts
from tests.support.media import media


class TestJSONL(SinkContract):
    """Every line is JSON that any parser takes; numbers that are not finite are named on their line."""

    tracker_class = JSONLTracker

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        return found.arrived(logging_dir)

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


def test_media_are_files_with_a_line_each(tmp_path):
    """The line has the kind, the place, the caption and the time at which it was logged; files of different keys stay apart."""
    tracker = opened(tmp_path)
    tracker.log_batch([Row(6, {}, 0), Row(7, {"loss": 1.0}, 5 * 10**9, attempt=2)])
    for key, value in (
        ("samples/a", Image([[[255, 0, 0]]], caption="red")),
        ("samples a", Image([[[0, 0, 0]]])),
        ("weights", Histogram(np_histogram=([1, 2], [0.0, 0.5, 1.0]))),
        ("table", Table(["a", "b"], [[1, None], ["x", float("nan")]])),
        ("plotly", Figure(SimpleNamespace(to_json=lambda: '{"data": []}'))),
        ("page", Html("<b>hi</b>")),
    ):
        tracker.log_media(key, media(value, tmp_path, 6 * 10**9), 7)
    (tmp_path / "weights.pt").write_text("w")
    tracker.log_media("x", media(Artifact(tmp_path / "weights.pt", name="net", type="model", aliases=["best"]), tmp_path), 7)
    tracker.finish()
    out = tmp_path / "out"
    lines = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    assert [list(line.get("media", line["values"])) for line in lines] == [
        ["loss"], ["samples/a"], ["samples a"], ["weights"], ["table"], ["plotly"], ["page"], ["x"],
    ]  # fmt: skip
    assert lines[1] == {
        "step": 7,
        "time": 6.0,
        "attempt": 2,
        "values": {},
        "media": {"samples/a": {"kind": "image", "file": "files/samples_a-7.png", "caption": "red"}},
    }
    found = {key: said for line in lines[1:] for key, said in line["media"].items()}
    content = {key: (out / said["file"]).read_bytes() for key, said in found.items()}
    assert content["samples/a"] != content["samples a"]
    assert json.loads(content["weights"]) == {"counts": [1.0, 2.0], "edges": [0.0, 0.5, 1.0]}
    assert json.loads(content["table"]) == {"columns": ["a", "b"], "rows": [[1, None], ["x", "NaN"]]}
    assert json.loads(content["plotly"]) == {"data": []}
    assert content["page"] == b"<b>hi</b>"
    assert found["x"] == {
        "kind": "artifact",
        "file": "artifacts/net/step-7/weights.pt",
        "name": "net",
        "type": "model",
        "aliases": ["best"],
    }
    assert content["x"] == b"w"


def test_what_is_said_of_the_run_lies_beside(tmp_path):
    """Summary, definitions and circumstances are documents, alerts and console output files that grow."""
    tracker = opened(tmp_path)
    tracker.summarise({"best/loss": float("inf")})
    tracker.define_metric("eval/*", axis="epoch", goal="minimize")
    tracker.define_metric("loss", summary="min")
    tracker.store_run_record({"git": {"commit": "abc"}})
    tracker.log_batch([Row(3, {"loss": 1.0}, 0)])
    tracker.alert("loss is NaN", "", "error")
    tracker.log_console(["one", "two\n"])
    tracker.finish()
    out = tmp_path / "out"
    documents = {path.stem: json.loads(path.read_text(), parse_constant=_refuse) for path in out.glob("*.json")}
    del documents["status"]
    assert documents == {
        "summary": {"best/loss": "Infinity"},
        "definitions": {
            "eval/*": {"axis": "epoch", "summary": "", "goal": "minimize"},
            "loss": {"axis": "", "summary": "min", "goal": ""},
        },
        "run_record": {"git": {"commit": "abc"}},
    }
    alert = json.loads((out / "alerts.jsonl").read_text())
    assert (alert["step"], alert["level"], alert["title"]) == (3, "error", "loss is NaN")
    assert (out / "console.log").read_text() == "one\ntwo\n"


def test_killed_inside_start_leaves_one_run(tmp_path):
    """Wherever in ``start`` a process dies, the next one has the run, with each row once and nothing beside it that counts."""
    left = killed_starts(JSONLTracker, tmp_path)
    assert len(left) >= 5
    for directory in left:
        tracker = opened(directory)
        tracker.log({"loss": 1.0}, step=1)
        tracker.finish("finished")
        assert [json.loads(line)["values"] for line in (directory / "out" / "metrics.jsonl").read_text().splitlines()] == [{"loss": 1.0}]
        assert {path.name for path in (directory / "out").iterdir()} - {"metrics.superseded.jsonl"} == {"metrics.jsonl", "status.json"}


def test_alerts_and_console_output_are_there_once_after_a_crash(tmp_path):
    """What a killed process wrote after its cursor is cut off and comes again; without a cursor the files are set aside."""
    tracker = opened(tmp_path)
    tracker.alert("one", "", "info")
    tracker.flush()
    checkpoint = tracker.checkpoint()
    tracker.alert("two", "", "info")
    tracker.log_console(["lost"])
    tracker.flush()
    again = opened(tmp_path, checkpoint)
    again.alert("two", "", "info")
    again.finish()
    assert [json.loads(line)["title"] for line in (tmp_path / "out" / "alerts.jsonl").read_text().splitlines()] == ["one", "two"]
    assert (tmp_path / "out" / "console.log").read_text() == ""
    opened(tmp_path).finish()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "metrics.jsonl", "metrics.superseded.jsonl", "alerts.superseded.jsonl", "console.superseded.log", "status.json",
    }  # fmt: skip


def opened(tmp_path, checkpoint=None):
    tracker = JSONLTracker("run", tmp_path / "out")
    tracker.run_info = RunInfo("run", state_dir=tmp_path / "state", output_dir=tmp_path / "out")
    tracker.restore(checkpoint or {})
    tracker.start()
    return tracker


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
