"""The SwanLab tracker, with the real library in its offline mode, read back with its own reader of run files."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("swanlab")

import yaml

from accelbus.blobs import BlobStore
from accelbus.media import TIME, Alert, Artifact, Audio, Histogram, Html, Image, Media, Table, Video, pack, unpack
from accelbus.testing import Arrived, Point, ReadBack, SinkContract, state_dir
from accelbus.tracking import Row
from accelbus.values import flatten
from accelbus_sinks._keys import KeyMap
from accelbus_sinks._step_text import read_step_text
from accelbus_sinks._swanlab_core import SwanLabCore
from accelbus_sinks._swanlab_names import key_of, name_of
from accelbus_sinks._swanlab_run import project_name
from accelbus_sinks.swanlab import SwanLabTracker
from tests.support.arrivals import swanlab as found
from tests.support.swanlab_jobs import STAGES, rows_of, tracker_of
from tests.support.swanlab_server import SwanLabServer


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

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        (directory,) = logging_dir.glob("run-*")
        names = KeyMap(state_dir(logging_dir) / "keys.json", name_of)
        return found.arrived(directory, records_of(directory), lambda name: key_of(names.key(name)))

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
            points.append(Point(record.media.step, key_of(names.key(record.media.key)), value, _seconds(record.media.timestamp)))
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


def job(name: str, base: Path, argument: str, **environ: str) -> tuple[int, dict]:
    """Return (exit status, report) of a job of `tests.support.swanlab_jobs`."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/nonexistent", **environ}
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.swanlab_jobs", name, str(base), argument]
    child = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False)
    assert child.returncode in {0, -signal.SIGKILL}, child.stderr.decode()
    return child.returncode, json.loads(child.stdout or b"{}")


@pytest.fixture
def tracker(tmp_path):
    """A started tracker, offline."""
    return opened(tmp_path)


def opened(base: Path, checkpoint: dict | None = None, **arguments: Any) -> SwanLabTracker:
    tracker = tracker_of(base, **{"mode": "offline", **arguments})
    tracker.restore(checkpoint or {})
    tracker.start()
    return tracker


def points_of(base: Path) -> list[tuple[int, str, Any]]:
    """Return what was stored, under SwanLab's names."""
    (directory,) = (base / "output").glob("run-*")
    return [
        (record.scalar.step, record.scalar.key, record.scalar.value.number) for record in records_of(directory) if record.HasField("scalar")
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_inside_start_loses_and_doubles_nothing(tmp_path, stage):
    """Wherever it dies on its way to go on with an earlier process's run, the next process goes on with it."""
    tracker = opened(tmp_path)
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log_batch(rows_of(range(3)))
    tracker.log_media("picture", Image(np.zeros((2, 2, 3), np.uint8)).to_media(None), 1)
    tracker.finish("failed")
    status, _ = job("killed_in_start", tmp_path, f"{stage} {json.dumps(tracker.checkpoint())}")
    assert status == -signal.SIGKILL
    again = opened(tmp_path, tracker.checkpoint())
    assert isinstance(again._core, SwanLabCore)
    again.log_batch(rows_of(range(3, 5)))
    again.finish("finished")
    assert [path.name for path in (tmp_path / "output").iterdir() if path.is_dir()] == ["run-r1"]
    found = read(tmp_path / "output", tmp_path / "state")
    assert [point[:3] for point in found.points if point.key == "loss"] == [(step, "loss", float(step)) for step in range(5)]
    assert [point[:3] for point in found.points if point.key == "note"] == [(step, "note", f"step {step}") for step in range(5)]
    assert (found.config, found.status) == ({"lr": 0.1}, "finished")
    assert len(list((tmp_path / "output" / "run-r1" / "media" / "image").iterdir())) == 1


def test_a_process_that_just_leaves_does_not_finish_the_run(tmp_path):
    """SwanLab would mark it a success at the end of the interpreter; the next process goes on."""
    status, checkpoint = job("left_alone", tmp_path, "")
    assert status == 0
    assert read(tmp_path / "output", tmp_path / "state").status is None
    again = opened(tmp_path, checkpoint)
    again.log_batch(rows_of(range(3, 5)))
    again.finish("killed")
    found = read(tmp_path / "output", tmp_path / "state")
    assert [point.step for point in found.points if point.key == "loss"] == [0, 1, 2, 3, 4]
    assert found.status == "failed"


def test_disabled_does_nothing(tmp_path):
    """SwanLab's mode for trying things out writes no run, and raises nothing."""
    tracker = opened(tmp_path, mode="disabled")
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log_batch(rows_of(range(3)))
    tracker.log_console(["line"])
    tracker.flush()
    tracker.finish("failed")
    assert not list((tmp_path / "output").glob("*/*.swanlab"))


def test_online_a_run_is_one_run_and_each_value_arrives_once(tmp_path):
    """Killed behind its cursor with values on their way, resumed, and resumed at an earlier step: all is there, nothing twice."""
    with SwanLabServer() as server:
        status, checkpoint = job("killed_online", tmp_path, "", **server.environ)
        assert status == -signal.SIGKILL
        assert len(server.curve("loss")) in {25, 26}
        status, report = job("resumed_online", tmp_path, json.dumps(checkpoint), **server.environ)
        assert status == 0
        assert list(server.runs) == ["r1"]
        assert report["url"].endswith("/@user/digits/runs/r1")
        assert sorted(server.curve("loss")) == [*((step, float(step)) for step in range(30)), (30, 30.5), (31, 31.5)]
        assert server.curve("attempt-1/loss") == [(28, 28.5), (29, 29.5)]
        assert {value["create_time"] for value in server.values if value["index"] == 7} == {"2001-09-09T01:46:47Z"}
        assert sorted(metric["index"] for metric in server.media if metric["key"] == "note") == [*range(32)]
        assert sorted(metric["index"] for metric in server.media if metric["key"] == "attempt-1/note") == [28, 29]
        assert b"step 17" in server.files.values()
        assert server.states == ["CRASHED"]
        assert server.configs[-1]["lr"]["value"] == 0.1
        run = server.runs["r1"]
        assert (run["name"], run["cluster"], run["description"]) == ("first", "sweep", "why")
        assert run["labels"] == [{"name": "baseline"}]


def test_a_wrong_key_is_an_error_at_once(tmp_path, monkeypatch):
    """A server that refuses the key is no reason to wait, or to go on in silence; neither is a missing key."""
    with SwanLabServer() as server:
        server.refusing = True
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Exception, match="API key"):
            opened(tmp_path, mode="online")
    monkeypatch.delenv("SWANLAB_API_KEY")
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="no API key"):
        opened(tmp_path, mode="online")


def test_what_the_server_refuses_is_said_for_the_books(tmp_path):
    """Each value with its row, once; SwanLab counts it as uploaded. Console lines, which nobody counts, are a word to the user."""
    with SwanLabServer() as server:
        server.unwanted = {"bad", "word", 'step 3: {"loss": Infinity}', "line 4"}
        status, report = job("refused_online", tmp_path, "", **server.environ)
        assert status == 0
        first, second, third, fourth = report["refused"]
        assert (first, fourth, report["then"]) == ([], [], [])
        assert {(attempt, step, key) for attempt, step, _, keys in second for key in keys} == {(3, 2, "bad"), (3, 2, "word")}
        assert all(reason.startswith("SwanLab's server: ") for _, _, reason, _ in second)
        assert [(attempt, step, keys) for attempt, step, _, keys in third] == [(0, 3, ["loss"])]
        assert [text[:40] for text in report["said"]] == ["SwanLab's server refused 1 log records, "] * len(report["said"])
        assert report["said"]
        assert server.curve("loss")[-1] == (4, 4.0)


def test_values_that_swanlab_would_skip_have_names_of_their_own(tracker, tmp_path):
    """A later attempt, a changed value, a changed value again; keys that look like those names stay apart."""
    tracker.log_batch([Row(1, {"loss": 1.0, "revised/loss": 9.0}, 1)])
    tracker.log_batch([Row(1, {"loss": 2.0}, 1), Row(1, {"loss": 3.0}, 1)])
    tracker.log_batch([Row(1, {"loss": 4.0}, 1)])
    tracker.log_batch([Row(1, {"loss": 5.0}, 1, attempt=2), Row(2, {"loss": 6.0}, 1, attempt=2)])
    tracker.finish()
    stored = points_of(tmp_path)
    revised = next(name for _, name, value in stored if value == 3.0)
    assert revised.startswith("revised/loss-")
    assert stored == [
        (1, "loss", 1.0),
        (1, "revised/loss", 9.0),
        (1, revised, 3.0),
        (1, "revised-2/loss", 4.0),
        (1, "attempt-2/loss", 5.0),
        (2, "loss", 6.0),
    ]


def test_what_swanlab_has_no_place_for_is_a_line_of_the_console(tracker, tmp_path):
    """Steps out of its range, and infinities, which its upload would turn into NaN."""
    tracker.log_batch([Row(-1, {"loss": 1.0, "note": "early"}, 1), Row(2**48, {"loss": 2.0}, 1), Row(3, {"loss": -math.inf, "lr": 0.5}, 1)])
    tracker.finish()
    lines = [record.log.line for record in records_of(tmp_path / "output" / "run-r1") if record.HasField("log")]
    assert lines == ['step -1: {"loss": 1.0, "note": "early"}', 'step 281474976710656: {"loss": 2.0}', 'step 3: {"loss": -Infinity}']
    assert points_of(tmp_path) == [(3, "loss", -math.inf), (3, "lr", 0.5)]


def test_a_key_may_have_numbers_and_text(tracker, tmp_path):
    """SwanLab has one kind of value per name; both are kept."""
    tracker.log_batch([Row(1, {"state": 1.0}, 1), Row(2, {"state": "done"}, 1), Row(3, {"state": 3.0}, 1)])
    tracker.finish()
    assert [point[:3] for point in read(tmp_path / "output", tmp_path / "state").points] == [
        (1, "state", 1.0),
        (3, "state", 3.0),
        (2, "state", "done"),
    ]


def test_a_file_that_cannot_be_written_is_said_and_written_by_the_next_process(tracker, tmp_path, monkeypatch):
    """SwanLab swallows such errors and counts the values as stored; here the call raises, and so do all after it."""
    tracker.log_batch(rows_of(range(3)))
    tracker.flush()
    store = tracker._core._core._store
    write = store.write

    def tear(data):
        store._fp.write(b"\x01\x02\x03")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write", tear)
    with pytest.raises(OSError, match="No space"):
        tracker.log_batch(rows_of(range(3, 5)))
    monkeypatch.setattr(store, "write", write)
    for call in (lambda: tracker.log_batch(rows_of(range(3, 5))), tracker.flush):
        with pytest.raises(OSError, match="new process"):
            call()
    tracker.tracker.finish()
    again = opened(tmp_path, tracker.checkpoint())
    again.log_batch(rows_of(range(3, 5)))
    again.finish()
    assert [point for point in points_of(tmp_path) if point[1] == "loss"] == [(step, "loss", float(step)) for step in range(5)]


def test_a_torn_end_is_cut_off(tmp_path):
    """What a power cut left of a record behind the cursor does not end the file for its readers."""
    tracker = opened(tmp_path)
    tracker.log_batch(rows_of(range(3)))
    tracker.finish()
    (file,) = (tmp_path / "output" / "run-r1").glob("*.swanlab")
    data = file.read_bytes()[: tracker.checkpoint()["offset"]]
    file.write_bytes(data[:-5])
    again = opened(tmp_path, tracker.checkpoint())
    again.log_batch(rows_of(range(3, 5)))
    again.finish()
    assert [point[0] for point in points_of(tmp_path)] == [0, 1, 2, 3, 4]


def test_an_unknown_swanlab_is_used_through_its_public_calls(tmp_path, monkeypatch):
    """Where the inside of SwanLab is not as known, values still arrive, and the tracker says that only the end makes them durable."""
    monkeypatch.setattr(SwanLabCore, "__init__", _unknown)
    tracker = opened(tmp_path)
    assert tracker.durable_after == "finish"
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log_batch([*rows_of(range(3)), Row(1, {"loss": 7.0}, 1)])
    tracker.log_batch([Row(1, {"loss": 8.0}, 1)])
    tracker.finish()
    found = read(tmp_path / "output", tmp_path / "state")
    losses = [point[:3] for point in found.points if point.key == "loss"]
    assert losses == [(0, "loss", 0.0), (1, "loss", 7.0), (2, "loss", 2.0), (1, "loss", 8.0)]
    assert (found.config, found.status) == ({"lr": 0.1}, "finished")
    assert {point.value for point in found.points if point.key == "note"} == {"step 0", "step 1", "step 2"}


def _unknown(self, run):
    raise AttributeError("_core")


def test_an_own_axis_loses_no_value(tracker, tmp_path):
    """``define_metric`` of SwanLab would leave out the second value at the same x."""
    tracker.define_metric("loss", axis="epoch")
    tracker.log_batch([Row(step, {"epoch": 1.0, "loss": float(step)}, 1) for step in range(3)])
    tracker.finish()
    assert [point for point in points_of(tmp_path) if point[1] == "loss"] == [(step, "loss", float(step)) for step in range(3)]
    columns = [record.column for record in records_of(tmp_path / "output" / "run-r1") if record.HasField("column")]
    assert {column.column_key: column.x_axis for column in columns} == {"loss": "epoch", "epoch": ""}


def test_configuration_and_summary_survive_a_restart(tmp_path):
    """The summary has its place in the configuration, which the next process keeps."""
    tracker = opened(tmp_path, config={"given": 1})
    tracker.store_init_configuration({"lr": 0.1, "allow_val_change": False})
    tracker.define_metric("eval/*", summary="max", goal="maximize")
    tracker.summarise({"best": 0.25})
    tracker.store_init_configuration({"lr": 0.1, "allow_val_change": False})
    tracker.finish()
    again = opened(tmp_path, tracker.checkpoint())
    again.finish()
    assert read(tmp_path / "output", tmp_path / "state").config == {
        "given": 1,
        "lr": 0.1,
        "allow_val_change": False,
        "summary/best": 0.25,
        "definitions/eval/*/summary": "max",
        "definitions/eval/*/goal": "maximize",
    }


def test_media_of_every_kind_arrive(tracker, tmp_path):
    """Those that SwanLab knows as its own kinds; the others, and what is too large, as files of the run."""
    (tmp_path / "model.bin").write_bytes(b"weights")
    blobs = BlobStore(tmp_path / "blobs", "test", quota=10**9)

    def log(key, value, step=1):
        media = value if isinstance(value, Media) else value.to_media(blobs)
        tracker.log_media(key, unpack(pack(media, blobs), tmp_path / "blobs"), step)

    log("picture", Image(np.zeros((4, 5, 3), np.uint8), "a caption"))
    log("picture", Image(np.ones((4, 5, 3), np.uint8)))
    log("sound", Audio(np.zeros(100, np.float32), 8000))
    log("clip", Video(np.zeros((2, 4, 4, 3), np.uint8)))
    log("page", Html("<p>é</p>"))
    log("weights", Histogram(np.arange(10.0), bins=5))
    log("table", Table(["a", "b"], [[1, "x"], [float("nan"), None]]))
    log("figure", Media("figure", "plotly", {}, b"{}"))
    log("large", Html("x" * 11 * 2**20))
    for step in (1, 2):
        log("model", Artifact(tmp_path / "model.bin", aliases=["best"]), step)
    log("!", Alert("loss is NaN", "at step 3", "error"))
    tracker.store_run_record({"argv": ["train.py"]})
    tracker.finish()

    directory = tmp_path / "output" / "run-r1"
    records = records_of(directory)
    media = {record.media.key: record.media for record in records if record.HasField("media")}
    assert set(media) == {"picture", "revised/picture", "sound", "clip", "page", "weights", "table"}
    assert media["picture"].value.items[0].caption == "a caption"
    for kind, key in (("image", "picture"), ("audio", "sound"), ("image", "clip"), ("html", "page"), ("echarts", "table")):
        assert (directory / "media" / kind / media[key].value.items[0].filename).is_file()
    chart = json.loads((directory / "media" / "echarts" / media["weights"].value.items[0].filename).read_text())
    assert chart["series"][0]["data"] == [2, 2, 2, 2, 2]
    saved = {record.save.name for record in records if record.HasField("save") and record.save.name not in {"config", "metadata"}}
    assert saved == {
        "run-record.json",
        "artifacts/model.bin/1/model.bin",
        "artifacts/model.bin/2/model.bin",
        "artifacts/figure/1/figure-1.json",
        "artifacts/large/1/large-1.html",
    }
    assert all((directory / "files" / name).resolve().is_file() for name in saved)
    assert [record.log.line for record in records if record.HasField("log")] == ["alert: loss is NaN: at step 3"]


def test_media_have_the_time_of_their_rank(tracker, tmp_path):
    """They are stamped when they were logged, not when they are delivered."""
    blobs = BlobStore(tmp_path / "blobs", "test", quota=10**9)
    for key, value in {"picture": Image(np.zeros((4, 5, 3), np.uint8)), "weights": Histogram([1.0, 2.0])}.items():
        media = unpack(pack(value.to_media(blobs), blobs), tmp_path / "blobs")
        media.meta[TIME] = 10**18
        tracker.log_media(key, media, 1)
    tracker.finish()
    records = records_of(tmp_path / "output" / "run-r1")
    assert {record.media.key: _seconds(record.media.timestamp) for record in records if record.HasField("media")} == {
        "picture": 1e9,
        "weights": 1e9,
    }


def test_nothing_is_captured_and_nothing_stays_behind(tmp_path):
    """No probe, no proxy of the terminal; signals, hooks and streams are as before when the run ends."""
    before = signal.getsignal(signal.SIGINT), sys.excepthook, sys.stdout, sys.stderr
    tracker = opened(tmp_path)
    assert (signal.getsignal(signal.SIGINT), sys.excepthook, sys.stdout, sys.stderr) == before
    tracker.finish()
    assert (signal.getsignal(signal.SIGINT), sys.excepthook, sys.stdout, sys.stderr) == before
    kinds = {record.WhichOneof("record_type") for record in records_of(tmp_path / "output" / "run-r1")}
    assert kinds <= {"start", "finish", "save"}


def test_arguments_come_before_the_environment_and_that_before_the_run(tmp_path, monkeypatch):
    """SwanLab's own variables are obeyed; names in an alphabet that it does not take stay apart."""
    monkeypatch.setenv("SWANLAB_EXP_NAME", "of the environment")
    tracker = opened(tmp_path, project="other", tags=["mine"])
    settings = tracker.tracker._ctx.config.settings
    assert (settings.project.name, settings.experiment.name, settings.experiment.tags) == ("other", "of the environment", ["mine"])
    tracker.finish()
    names = [project_name(text) for text in ("my proj", "a/b", "é", "è", "x" * 200, "")]
    assert names[:2] == ["my-proj", "a-b"]
    assert len(set(names)) == 6
    assert all(re.fullmatch(r"[0-9a-zA-Z_\-+.]{1,100}", name) for name in names)
