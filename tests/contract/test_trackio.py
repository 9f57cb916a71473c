"""The Trackio tracker, read back with Trackio's own reader."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path

import pytest

# Before the tracker: Trackio chooses its directory when it is imported.
pytest.importorskip("tests.support.trackio_reader")

import numpy as np
from trackio import fragments
from trackio.sqlite_storage import SQLiteStorage

import accelbus
from accelbus.blobs import BlobStore
from accelbus.testing import Arrived, Point, ReadBack, SinkContract, state_dir
from accelbus.tracking import Row, RunInfo
from accelbus_sinks import trackio as tracker_module
from accelbus_sinks.trackio import TrackioTracker
from tests.support import trackio_reader as reader
from tests.support.arrivals import trackio as found
from tests.support.trackio_server import TrackioServer

EPOCH_NS = 1_767_139_200_000_000_000


class TestTrackio(SinkContract):
    """Rows are in the local database, exactly once, with their own times."""

    tracker_class = TrackioTracker

    @pytest.fixture
    def logging_dir(self, tmp_path: Path) -> Path:
        return tmp_path / uuid.uuid4().hex[:8]

    def has_stored(self, text: str, tmp_path: Path) -> bool:
        return super().has_stored(text, reader.DIRECTORY)

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        return found.arrived("contract", f"contract-{logging_dir.name}", state_dir(logging_dir) / "keys.json")

    def read(self, logging_dir: Path) -> ReadBack:
        run_id = f"contract-{logging_dir.name}"
        points = [Point(*point) for point in reader.points("contract", run_id, state_dir(logging_dir) / "keys.json")]
        config = reader.config("contract", run_id)
        status = config.get("accelbus/status")
        return ReadBack(points, config, None if status == "running" else status)


@pytest.fixture(autouse=True)
def _directory(monkeypatch):
    """Other processes use the same directory."""
    monkeypatch.setenv("TRACKIO_DIR", str(reader.DIRECTORY))


@pytest.fixture
def run_id():
    return f"run-{uuid.uuid4().hex[:8]}"


# What arrives


def test_text_that_reads_like_a_number_stays_text(run_id, tmp_path):
    """Trackio stores a NaN as the word; the word itself is stored so that its readers do not take it for the number."""
    tracker = _started(tmp_path, run_id)
    tracker.log_batch([_row(1, nan=math.nan, word="NaN", minus="-Infinity", text="nan")])
    tracker.finish("finished")
    (row,) = reader.rows("project", run_id)
    assert math.isnan(row["nan"])
    assert [row[key] for key in ("word", "minus", "text")] == [
        {"_type": "trackio.markdown", "_value": "NaN"}, {"_type": "trackio.markdown", "_value": "-Infinity"}, "nan",
    ]  # fmt: skip


def test_the_configuration_is_flat_and_complete(run_id, tmp_path):
    """Nested names are joined, reserved ones moved away, tags, notes, summary and status beside them; nothing is added by accident."""
    tracker = _started(tmp_path, run_id, {"tags": ("a", "b"), "notes": "why", "group": "sweep"}, config={"given": 1})
    tracker.store_init_configuration({"model": {"depth": 3}, "_private": 1, "betas": [0.5, 1], "clip": math.inf})
    tracker.summarise({"best": 0.9})
    tracker.define_metric("eval/*", axis="epoch", goal="minimize")
    tracker.log_batch([_row(1, loss=1.0)])
    tracker.finish("killed")
    config = reader.config("project", run_id)
    assert {key: value for key, value in config.items() if not key.startswith("_")} == {
        "given": 1, "model/depth": 3, "logged/_private": 1, "betas": "[0.5, 1]", "clip": math.inf, "summary/best": 0.9, "metric/eval/*": "axis=epoch, goal=minimize",
        "accelbus/status": "killed", "accelbus/tags": "a, b", "accelbus/notes": "why",
    }  # fmt: skip
    assert config["_Group"] == "sweep"


def test_every_kind_of_media_is_trackios_own(run_id, tmp_path):
    """Images, histograms, tables, HTML, sound, moving pictures and figures are Trackio's data types, with files at the row's step."""
    plotly = pytest.importorskip("plotly.graph_objects")
    pixels = np.zeros((3, 8, 8, 3), np.uint8)
    values = {
        "image": accelbus.Image(pixels[0], caption="zero"),
        "histogram": accelbus.Histogram([1.0, 2.0, 2.0], bins=4),
        "table": accelbus.Table(["a", "b"], [[1, "x"], [2.5, None]]),
        "html": accelbus.Html("<b>bold</b>"),
        "audio": accelbus.Audio(np.zeros(100, np.float32), 8000, caption="silence"),
        "video": accelbus.Video(pixels, fps=2),
        "figure": accelbus.Figure(plotly.Figure([{"y": [1, 2]}])),
    }
    tracker = _started(tmp_path, run_id)
    for key, value in values.items():
        tracker.log_media(key, _media(tmp_path, value), 7)
    tracker.finish("finished")
    stored = {key: value for row in reader.rows("project", run_id) for key, value in row.items() if isinstance(value, dict)}
    assert {key: value["_type"].removeprefix("trackio.") for key, value in stored.items()} == {
        "image": "image", "histogram": "histogram", "table": "table", "html": "html", "audio": "audio", "video": "video", "figure": "html",
    }  # fmt: skip
    assert {row["step"] for row in reader.rows("project", run_id)} == {7}
    assert (stored["image"]["caption"], stored["audio"]["caption"]) == ("zero", "silence")
    assert (sum(stored["histogram"]["values"]), len(stored["histogram"]["bins"])) == (3, 5)
    assert stored["table"]["_value"] == [{"a": 1, "b": "x"}, {"a": 2.5, "b": None}]
    files = {key: reader.DIRECTORY / "media" / value["file_path"] for key, value in stored.items() if "file_path" in value}
    assert files["audio"].read_bytes()[:4] == b"RIFF"
    assert files["video"].read_bytes()[:3] == b"GIF"
    assert "<b>bold</b>" in files["html"].read_text()
    assert not (tmp_path / "state" / "media").exists()


def test_files_are_artifacts_and_alerts_are_alerts(run_id, tmp_path):
    """Files keep type, aliases and metadata; what Trackio has no kind for becomes one; alerts have their level."""
    file = tmp_path / "weights.bin"
    file.write_bytes(b"weights")
    odd = tmp_path / "clip.avi"
    odd.write_bytes(b"RIFF....AVI ")
    tracker = _started(tmp_path, run_id)
    name = f"model {run_id}"
    tracker.log_media("model", _media(tmp_path, accelbus.Artifact(file, name, "model", ["best one"], {"epoch": 3})), 1)
    tracker.log_media(f"clip{run_id}", _media(tmp_path, accelbus.Video(odd)), 1)
    tracker.log_media("alert", _media(tmp_path, accelbus.Alert("title", "text", "error")), 1)
    tracker.finish("finished")
    model = SQLiteStorage.get_artifact_manifest("project", f"model-{run_id}", "best-one")
    assert (model["type"], model["metadata"], [entry["path"] for entry in model["manifest"]]) == ("model", {"epoch": 3}, ["weights.bin"])
    assert SQLiteStorage.get_artifact_manifest("project", f"clip{run_id}", None)["type"] == "video"
    (alert,) = [alert for alert in SQLiteStorage.get_alerts("project") if alert["run"] == run_id]
    assert (alert["title"], alert["text"], alert["level"]) == ("title", "text", "error")


# Exactly once


def test_runs_of_one_name_are_apart(tmp_path, run_id):
    """The name is only shown: a restart goes on with its own run, not with another one that is called the same."""
    for number in (1, 2):
        tracker = _started(tmp_path / str(number), f"{run_id}-{number}", {"name": "same"})
        tracker.log_batch([_row(1, loss=float(number))])
        tracker.finish("finished")
    for number in (1, 2):
        assert [row["loss"] for row in reader.rows("project", f"{run_id}-{number}")] == [number]


def test_a_batch_whose_writing_failed_half_way_is_stored_once(run_id, tmp_path, monkeypatch):
    """An error after Trackio has committed makes delivery repeat the flush; nothing is doubled."""
    tracker = _started(tmp_path, run_id)
    tracker.log_batch([_row(step, loss=float(step)) for step in range(3)])
    with monkeypatch.context() as patch:
        patch.setattr(SQLiteStorage, "write_trace_sessions", _raise)
        with pytest.raises(OSError, match="disk"):
            tracker.flush()
    tracker.flush()
    tracker.finish("finished")
    assert [row["loss"] for row in reader.rows("project", run_id)] == [0, 1, 2]


def test_a_row_that_trackio_does_not_take_is_an_error(run_id, tmp_path, monkeypatch):
    """Trackio ignores what it cannot insert; the flush that should have made it durable says so, and works when Trackio does."""
    tracker = _started(tmp_path, run_id)
    tracker.log_batch([_row(step, loss=float(step)) for step in range(3)])
    with monkeypatch.context() as patch:
        patch.setattr(SQLiteStorage, "bulk_log", lambda **arguments: None)
        with pytest.raises(OSError, match="has not taken 3 of 3 rows"):
            tracker.flush()
    tracker.finish("finished")
    assert [row["loss"] for row in reader.rows("project", run_id)] == [0, 1, 2]


def test_a_point_that_changes_back_is_the_last_one(run_id, tmp_path):
    """The same value again for a step is no repetition if there was another one between."""
    tracker = _started(tmp_path, run_id)
    tracker.log_batch([_row(1, loss=loss) for loss in (3.0, 4.0, 3.0)])
    tracker.finish("finished")
    assert [row["loss"] for row in reader.rows("project", run_id)] == [3, 4, 3]


@pytest.mark.parametrize("at", ["trackio.init", "tracker_module.StoreWriter.cut", "TrackioTracker._store_config"])
def test_killed_inside_start_leaves_one_run(run_id, tmp_path, at):
    """A process that dies when Trackio has started, or later in its start, is followed by one that has the only run."""
    script = f"""
import os, signal, sys
sys.path[:] = {sys.path!r}
from pathlib import Path
from tests.contract.test_trackio import TrackioTracker, _started, tracker_module
import trackio
real = {at}

def die_behind(*given, **arguments):
    real(*given, **arguments)
    os.kill(os.getpid(), signal.SIGKILL)

{at} = die_behind
_started(Path({str(tmp_path)!r}), {run_id!r})
"""
    killed = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    tracker = _started(tmp_path, run_id)
    tracker.log_batch([_row(1, loss=1.0)])
    tracker.finish("finished")
    names = [record["name"] for record in SQLiteStorage.get_run_records("project") if run_id in (record["name"], record["id"])]
    assert names == [run_id]


def test_lines_instead_of_a_database_are_taken_once(run_id, tmp_path, monkeypatch):
    """On file systems that are no place for a database Trackio keeps lines: times, configuration, and repeated rows come out right."""
    monkeypatch.setenv("TRACKIO_STORAGE_MODE", "jsonl")
    first = _started(tmp_path, run_id)
    first.store_init_configuration({"lr": 0.1})
    first.log_batch([_row(step, loss=float(step)) for step in range(3)])
    first.flush()
    cursor = first.checkpoint()
    first.log_batch([_row(3, loss=3.0)])
    first.flush()
    second = _started(tmp_path, run_id, checkpoint=cursor)
    second.store_init_configuration({"lr": 0.1})
    second.log_batch([_row(step, loss=float(step)) for step in (3, 4)])
    second.finish("failed")
    fragments.import_inbox_dir()
    points = [point for point in reader.points("project", run_id) if point[1] == "loss"]
    assert points == [(step, "loss", step, EPOCH_NS / 1e9 + step) for step in range(5)]
    assert (reader.config("project", run_id)["lr"], reader.config("project", run_id)["accelbus/status"]) == (0.1, "failed")


def test_trackios_own_queue_is_waited_for(run_id, tmp_path, monkeypatch):
    """A run that Trackio sends elsewhere goes through its queue; a flush ends when the queue is empty."""
    monkeypatch.setattr(tracker_module, "can_write_directly", lambda run: False)
    tracker = _started(tmp_path, run_id)
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log_batch([_row(step, loss=float(step), word="NaN") for step in range(50)])
    tracker.log_media("sample", _media(tmp_path, accelbus.Image(np.zeros((4, 4), np.uint8))), 49)
    tracker.flush()
    rows = reader.rows("project", run_id)
    assert [row["loss"] for row in rows if "loss" in row] == list(range(50))
    assert rows[-1]["sample"]["_type"] == "trackio.image"
    tracker.finish("finished")
    assert reader.config("project", run_id)["lr"] == 0.1


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "token")
    with TrackioServer() as server:
        yield server


def test_a_server_that_refuses_the_token_is_an_error_of_start(run_id, tmp_path, server):
    """Trackio itself would say nothing, keep every row on this machine, and look as if all was well."""
    server.refusing = True
    with pytest.raises(ConnectionError, match=f"{server.address} takes no rows: .*401"):
        _started(tmp_path, run_id, server_url=server.address)


def test_a_flush_does_not_take_what_is_kept_on_disk_for_sent(run_id, tmp_path, server, monkeypatch):
    """A server that begins to refuse: the flush says why, and works when the server does; each row arrives once."""
    monkeypatch.setattr("accelbus_sinks._trackio_writers._QUEUE_SECONDS", 2.0)
    tracker = _started(tmp_path, run_id, server_url=server.address)
    tracker.log_batch([_row(1, loss=1.0)])
    tracker.flush()
    server.refusing = True
    tracker.log_batch([_row(2, loss=2.0)])
    with pytest.raises(ConnectionError, match="401"):
        tracker.flush()
    server.refusing = False
    monkeypatch.setattr("accelbus_sinks._trackio_writers._QUEUE_SECONDS", 30.0)
    tracker.flush()
    tracker.finish("finished")
    assert [(log["step"], log["metrics"]["loss"]) for log in server.logs if "loss" in log["metrics"]] == [(1, 1.0), (2, 2.0)]


def test_what_a_killed_process_could_not_send_comes_once(run_id, tmp_path, server, monkeypatch):
    """It is on this machine, and behind the cursor: the next process is fed it again, and forgets the rest."""
    monkeypatch.setattr("accelbus_sinks._trackio_writers._QUEUE_SECONDS", 2.0)
    first = _started(tmp_path, run_id, server_url=server.address)
    server.refusing = True
    first.log_batch([_row(1, loss=1.0)])
    with pytest.raises(ConnectionError, match="401"):
        first.flush()
    _left_alone(first.tracker)
    server.refusing = False
    second = _started(tmp_path, run_id, server_url=server.address)
    second.log_batch([_row(1, loss=1.0)])
    monkeypatch.setattr("accelbus_sinks._trackio_writers._QUEUE_SECONDS", 30.0)
    second.tracker._has_local_buffer = True  # as after another failure: what is pending on this machine is sent, too
    second.flush()
    second.finish("finished")
    assert [(log["step"], log["metrics"]["loss"]) for log in server.logs if "loss" in log["metrics"]] == [(1, 1.0)]


def test_lines_that_could_not_be_sent_are_an_error_until_a_new_process(run_id, tmp_path, server, monkeypatch):
    """Where Trackio keeps lines it never sends those again: only rows that are fed anew arrive."""
    monkeypatch.setenv("TRACKIO_STORAGE_MODE", "jsonl")
    tracker = _started(tmp_path, run_id, server_url=server.address)
    server.refusing = True
    tracker.log_batch([_row(1, loss=1.0)])
    for _ in range(2):
        with pytest.raises(OSError, match=r"could not send everything .* a new process"):
            tracker.flush()
    _left_alone(tracker.tracker)


def _left_alone(run):
    """Let the thread of *run* end without sending, as a SIGKILL does."""
    run._stop_flag.set()
    run._has_local_buffer = False
    run._client_thread.join(timeout=30)
    assert not run._client_thread.is_alive()


# Where and under what name


@pytest.mark.parametrize("project", ["registry-models", "model_artifacts", "run_configs"])
def test_a_project_name_that_trackio_reserves_is_changed(project, run_id, tmp_path, caplog):
    """A name that would collide with Trackio's own files does not stop a run."""
    tracker = _started(tmp_path, run_id, project=project)
    tracker.log_batch([_row(1, loss=1.0)])
    tracker.finish("finished")
    assert [row["loss"] for row in reader.rows(f"project-{project}-runs", run_id)] == [1]
    assert f"project-{project}-runs" in caplog.text


def test_a_name_with_slashes_leaves_no_directory(run_id, tmp_path):
    """Names become part of the paths of media."""
    tracker = _started(tmp_path, run_id, {"name": f"../../{run_id}"})
    tracker.log_media("sample", _media(tmp_path, accelbus.Image(np.zeros((4, 4), np.uint8))), 1)
    tracker.finish("finished")
    (row,) = reader.rows("project", run_id)
    media = reader.DIRECTORY / "media"
    assert (media / row["sample"]["file_path"]).resolve().is_relative_to(media / "project")


def test_trackios_directory_stays_unless_it_cannot_be(tmp_path):
    """``trackio show`` looks in the home directory: only without one do runs go elsewhere, and never against the user's word."""
    state = tmp_path / "state"
    nowhere = tmp_path / "file" / "home"
    nowhere.parent.touch()
    assert TrackioTracker.environment(state, {"HOME": str(tmp_path)}) == {}
    assert TrackioTracker.environment(state, {"HOME": str(nowhere)}) == {"TRACKIO_DIR": str(state / "trackio")}
    assert TrackioTracker.environment(state, {"HOME": str(nowhere), "TRACKIO_DIR": "/anywhere"}) == {}
    assert TrackioTracker.environment(state, {"HOME": str(nowhere), "HF_HOME": str(tmp_path)}) == {}


def _started(path, run_id, info=None, checkpoint=None, *, project="project", **arguments):
    tracker = TrackioTracker(project, **arguments)
    info = {"name": run_id, **(info or {})}
    tracker.run_info = RunInfo(run_id, project, state_dir=path / "state", output_dir=path / "trackio", resumed=bool(checkpoint), **info)
    tracker.restore(checkpoint or {})
    tracker.start()
    return tracker


def _row(step, **values):
    return Row(step, values, EPOCH_NS + step * 10**9)


def _media(path, wrapper):
    media = wrapper.to_media(BlobStore(path / "blobs", uuid.uuid4().hex, quota=2**30))
    media.directory = str(path / "blobs")
    return media


def _raise(*arguments, **more):
    raise OSError("the disk is full")
