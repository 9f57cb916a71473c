"""The MLflow tracker with a database of MLflow's, read back with its client."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mlflow")

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from accelbus.blobs import BlobStore
from accelbus.media import Artifact, Audio, Figure, Histogram, Image, Table
from accelbus.testing import Arrived, Point, ReadBack, SinkContract, state_dir
from accelbus.tracking import Row, RunInfo
from accelbus_sinks._mlflow_places import make_database
from accelbus_sinks.mlflow import MLflowTracker
from tests.support import mlflow_reader as reader
from tests.support.arrivals import mlflow as found

# MLflow's use of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Address of a database for all tests, as the tracker makes it: that takes MLflow seconds."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    make_database(uri)
    return uri


@pytest.fixture(autouse=True)
def experiment(database, monkeypatch, request):
    """Name of the test's own experiment in the database."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.nodeid)
    return request.node.nodeid


class TestMLflow(SinkContract):
    """Numbers are metrics, text and lists a table; infinities are stored as the largest float."""

    tracker_class = MLflowTracker
    keeps_replaced = True

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        return found.arrived(reader.run_of(f"contract-{logging_dir.name}"), state_dir(logging_dir))

    def read(self, logging_dir: Path) -> ReadBack:
        run = reader.run_of(f"contract-{logging_dir.name}")
        state = state_dir(logging_dir)
        points = [Point(*point) for point in (*reader.metrics(run, state), *reader.texts(run))]
        return ReadBack(points, reader.config(run, state), run.info.status.lower())

    def has_stored(self, text: str, tmp_path: Path) -> bool:
        run = reader.run_of("contract-output")
        return any(text.encode() in (reader.artifact(run, path) or b"") for path in reader.artifacts(run))


def test_a_row_that_is_sent_again_is_stored_once(tmp_path):
    """Rows whose call failed half way, or whose answer was lost, come again and add nothing; NaN and infinities neither."""
    tracker = opened(tmp_path)
    rows = [row(step, {"loss": float(step), "nan": math.nan, "inf": math.inf}) for step in range(500)]
    log_batch = tracker._run.client.log_batch
    tracker._run.client.log_batch = failing_at(log_batch, 1)
    with pytest.raises(ConnectionError):
        tracker.log_batch(rows)
    tracker._run.client.log_batch = log_batch
    tracker.log_batch(rows)
    tracker.log_batch(rows[-10:])
    tracker.finish()
    assert len(reader.metrics(reader.run_of("run"), tmp_path)) == 1500


def test_values_that_are_not_finite_come_back_as_documented(tmp_path):
    """NaN is NaN; infinities are the largest float in MLflow's databases, with their sign."""
    tracker = opened(tmp_path)
    tracker.log_batch([row(1, {"nan": math.nan, "inf": math.inf, "minus": -math.inf})])
    tracker.finish()
    found = reader.run_of("run").data.metrics
    assert math.isnan(found["nan"])
    assert (found["inf"], found["minus"]) == (sys.float_info.max, -sys.float_info.max)


def test_the_newest_value_of_a_point_is_what_mlflow_shows(tmp_path):
    """A late value that lowers a point is newer than the one before, though its row carries the same time."""
    tracker = opened(tmp_path)
    tracker.log_batch([row(7, {"loss": 2.0}), row(7, {"loss": 1.0})])
    tracker.finish()
    assert reader.run_of("run").data.metrics == {"loss": 1.0}


def test_a_database_that_is_made_is_whole_and_its_artifacts_beside_it(database):
    """Nothing is left of how it was made, and MLflow's own default experiment does not point into the worker's directory."""
    directory = Path(database.removeprefix("sqlite:///")).parent
    assert {path.name for path in directory.iterdir()} <= {"mlflow.db", "mlruns"}
    assert MlflowClient().get_experiment("0").artifact_location == str(directory / "mlruns" / "0")


def test_a_process_killed_inside_start_leaves_one_run(tmp_path, database, experiment):
    """The run it made, and had told nobody of, is found by the next process, for there is a tag that says whose it is."""
    script = f"""
import os
from pathlib import Path
from accelbus.tracking import RunInfo
from accelbus_sinks import mlflow
mlflow.OpenRun = lambda *_: os.kill(os.getpid(), 9)
tracker = mlflow.MLflowTracker("project")
tracker.run_info = RunInfo("run", state_dir=Path({str(tmp_path)!r}))
tracker.start()
"""
    child = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False, timeout=60
    )
    assert child.returncode == -signal.SIGKILL
    (left,) = reader.runs()
    tracker = opened(tmp_path)
    tracker.log_batch([row(1, {"loss": 1.0})])
    tracker.finish("finished")
    (run,) = reader.runs()
    assert (run.info.run_id, run.info.status, run.data.metrics) == (left.info.run_id, "FINISHED", {"loss": 1.0})


def test_an_attempt_that_begins_at_an_earlier_step_goes_on_in_the_same_run(tmp_path):
    """After the first process has finished: nothing is lost, nothing doubled, and the newer values are shown."""
    first = opened(tmp_path)
    first.log_batch([row(step, {"loss": 1.0}) for step in range(10)])
    first.flush()
    first.finish("preempted")
    assert reader.run_of("run").info.status == "KILLED"
    second = opened(tmp_path, first.checkpoint())
    assert reader.run_of("run").info.status == "RUNNING"
    second.log_batch([row(step, {"loss": 0.5}, attempt=1) for step in range(5, 12)])
    second.finish("finished")
    run = reader.run_of("run")
    newest = {step: value for step, _, value, _ in reader.metrics(run, tmp_path)}
    assert newest == dict.fromkeys(range(5), 1.0) | dict.fromkeys(range(5, 12), 0.5)
    assert (run.info.status, run.data.tags["accelbus.status"]) == ("FINISHED", "finished")


@pytest.mark.parametrize(
    "status, shown", [("finished", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED"), ("preempted", "KILLED"), ("lost", "KILLED")]
)
def test_the_run_ends_with_its_status(tmp_path, status, shown):
    """MLflow has three words for it; a tag has ours."""
    opened(tmp_path).finish(status)
    run = reader.run_of("run")
    assert (run.info.status, run.data.tags["accelbus.status"]) == (shown, status)


def test_parameters_that_change_go_to_tags(tmp_path):
    """MLflow's parameters are for ever: the first value stays, the newest is a tag, a value that changed back too, and a new process knows."""
    tracker = opened(tmp_path)
    tracker.store_init_configuration({"lr": 0.1, "model": {"depth": 2}, "none": None})
    tracker.store_init_configuration({"lr": 0.2, "model": {"depth": 2}, "none": None, "new": True})
    tracker = opened(tmp_path)
    tracker.store_init_configuration({"lr": 0.1, "model": {"depth": 2}, "none": None, "new": True})
    tracker.finish()
    run = reader.run_of("run")
    assert run.data.params == {"lr": "0.1", "model/depth": "2", "none": "None", "new": "True"}
    assert {name: text for name, text in run.data.tags.items() if name.startswith("config/")} == {"config/lr": "0.1"}


def test_a_large_configuration_is_cut_and_complete_in_a_file(tmp_path):
    """Hundreds of parameters, long and oddly named ones, are all there; what was cut is whole in the artifact."""
    config = {f"layer{number}": {"a(b)": number} for number in range(250)} | {"prompt": "损" * 10_000, "": 1}
    tracker = opened(tmp_path)
    tracker.store_init_configuration(config)
    tracker.finish()
    run = reader.run_of("run")
    assert len(run.data.params) == 252
    assert reader.config(run, tmp_path)["layer7/a(b)"] == 7
    assert run.data.params["prompt"] == "损" * 5999 + "…"
    assert json.loads(reader.artifact(run, "accelbus/config.json")) == config


def test_parameters_that_a_server_refuses_are_named_and_in_the_file(tmp_path, caplog):
    """A server may have tighter limits than this version of MLflow: the others are stored, and rows go on."""
    tracker = opened(tmp_path)
    log_batch = tracker._run.client.log_batch

    def refusing(run_id, *, params=(), **others):
        if any(len(param.value) > 500 for param in params):
            raise MlflowException("too long", error_code=INVALID_PARAMETER_VALUE)
        log_batch(run_id, params=params, **others)

    tracker._run.client.log_batch = refusing
    tracker.store_init_configuration({"lr": 0.1, "prompt": "x" * 600, "depth": 2})
    tracker.finish()
    assert reader.run_of("run").data.params == {"lr": "0.1", "depth": "2"}
    assert "1 parameters are only in accelbus/config.json, 'prompt' among them" in caplog.text


def test_a_deleted_experiment_is_restored(tmp_path, experiment):
    """Its name cannot be given again, so what is delivered goes where it went before."""
    opened(tmp_path).finish()
    client = MlflowClient()
    client.delete_experiment(client.get_experiment_by_name(experiment).experiment_id)
    opened(tmp_path / "other", run_id="other").finish()
    assert {run.data.tags["accelbus.run_id"] for run in reader.runs()} == {"run", "other"}


def test_a_deleted_run_is_left_alone(tmp_path):
    """Who deleted it meant it: there is an error that says how to bring it back, and no second run."""
    first = opened(tmp_path)
    MlflowClient().delete_run(first.tracker.info.run_id)
    with pytest.raises(RuntimeError, match=f"mlflow runs restore --run-id {first.tracker.info.run_id}"):
        opened(tmp_path)


def test_names_with_quotes_are_names(tmp_path, monkeypatch):
    """Of experiments: found again, too."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f'it\'s "{tmp_path.name}"')
    for run_id in ("one", "two"):
        opened(tmp_path / run_id, run_id=run_id).finish()
    assert len(reader.runs()) == 2


def test_project_name_group_tags_and_notes_have_their_places(tmp_path):
    """Those of the tracker's own arguments come before those of the run."""
    info = {"name": "a name", "group": "a group", "tags": ("baseline",), "notes": "a note"}
    opened(tmp_path, **info, run_id="plain").finish()
    opened(
        tmp_path / "own", run_id="own", arguments={"run_name": "own name", "description": "own note", "tags": '{"a": 1}'}, **info
    ).finish()
    plain, own = reader.run_of("plain"), reader.run_of("own")
    assert (plain.info.run_name, plain.data.tags["mlflow.note.content"]) == ("a name", "a note")
    assert (plain.data.tags["accelbus.group"], plain.data.tags["baseline"]) == ("a group", "true")
    assert (own.info.run_name, own.data.tags["mlflow.note.content"], own.data.tags["a"]) == ("own name", "own note", "1")


def test_a_run_of_mlflow_is_continued_by_its_id_also_as_a_child(tmp_path):
    """``run_id`` leads to it, ``nested_run`` with the tag of its parent puts it below another run."""
    parent = opened(tmp_path / "parent", run_id="parent")
    made = MlflowClient().create_run(parent.tracker.info.experiment_id)
    tags = {"mlflow.parentRunId": parent.tracker.info.run_id}
    child = opened(tmp_path, run_id="child", arguments={"run_id": made.info.run_id, "nested_run": True, "tags": tags})
    child.log_batch([row(1, {"loss": 1.0})])
    child.finish()
    run = reader.run_of("child")
    assert (run.info.run_id, run.data.metrics) == (made.info.run_id, {"loss": 1.0})
    assert run.data.tags["mlflow.parentRunId"] == parent.tracker.info.run_id


def test_artifacts_go_where_they_were_asked_to(tmp_path):
    """``logging_dir`` is where an experiment that is made keeps them; without it they are beside the database."""
    tracker = opened(tmp_path, arguments={"logging_dir": str(tmp_path / "artifacts")})
    tracker.store_init_configuration({"lr": 0.1})
    tracker.finish()
    assert list((tmp_path / "artifacts").rglob("config.json"))


def test_media_are_where_mlflow_looks_for_them(tmp_path):
    """Images in its image charts, tables as tables, figures, histograms and files as artifacts, alerts as tags; each once."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").write_bytes(b"\x01\x02")
    store = BlobStore(tmp_path / "blobs", "test", quota=1 << 20)
    wrapped = {
        "samples/α": Image(np.full((4, 6, 3), 200, np.uint8), caption="a cat"),
        "thin": Image(np.zeros((1, 2000), np.uint8)),
        "curve": Figure(_Plotly()),
        "confusion": Table(columns=["truth", "share"], data=[["cat", 0.5], ["dog", math.nan]]),
        "weights": Histogram([1.0, 2.0, 2.0], bins=2),
        "beep": Audio(np.zeros(8), sample_rate=8000),
        "model": Artifact(model, name="best model", type="model", aliases=["best"], metadata={"epoch": 3}),
    }
    tracker = opened(tmp_path)
    for _ in range(2):  # as after a crash
        log_all(tracker, wrapped, store, tmp_path / "blobs")
        tracker.alert("NaN", "loss is NaN", "error")
    tracker.finish()

    run = reader.run_of("run")
    found = sorted(reader.artifacts(run))
    images = [path for path in found if path.startswith("images/")]
    assert [path.rpartition("+")[2].rpartition(".")[2] for path in images] == ["webp", "png"]
    assert all(path.startswith("images/samples~_+step+5+") for path in images)
    assert [path for path in found if not path.startswith(("images/", "accelbus/"))] == [
        "figures/curve/step_5.html",
        "files/beep/step_5/beep-5.wav",
        "files/best model/step_5/model/weights.bin",
        "files/thin/step_5/thin-5.png",
        "histograms/weights/step_5.json",
        "tables/confusion/step_5.json",
        "texts.json",
    ]
    table = MlflowClient().load_table(run.info.experiment_id, "tables/confusion/step_5.json", run_ids=[run.info.run_id])
    assert table.columns.tolist() == ["truth", "share"]
    assert table["share"].isna().tolist() == [False, True]
    assert json.loads(reader.artifact(run, "histograms/weights/step_5.json")) == {"counts": [1.0, 2.0], "edges": [1.0, 1.5, 2.0]}
    assert run.data.tags["alert/NaN"] == "error: loss is NaN"
    assert json.loads(run.data.tags["file/best model"]) == {
        "path": "files/best model/step_5", "type": "model", "aliases": ["best"], "metadata": {"epoch": 3},
    }  # fmt: skip
    assert ("samples/α/caption", "a cat") in [(key, text) for _, key, text, _ in reader.texts(run)]


def test_paths_in_mlflows_own_words_are_kept(tmp_path):
    """``artifact_file`` and ``artifact_path`` are where MLflow has them; those that lead out of the run, or lie about the format, are not."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "dummy.txt").write_text("content")
    store = BlobStore(tmp_path / "blobs", "test", quota=1 << 20)
    wrapped = {
        "page": Figure(_Plotly(), place="plots/page.html"),
        "drawing": Figure(_Plotly(), place="plots/drawing.svg"),
        "file": Artifact(folder / "dummy.txt", place="artifact_dir/dummy.txt"),
        "all": Artifact(folder, name="all", place="all"),
        "out": Artifact(folder / "dummy.txt", name="out", place="../out/dummy.txt"),
    }
    tracker = opened(tmp_path)
    for _ in range(2):  # as after a crash
        log_all(tracker, wrapped, store, tmp_path / "blobs")
    tracker.finish()
    assert sorted(path for path in reader.artifacts(reader.run_of("run")) if not path.startswith("accelbus/")) == [
        "all/dummy.txt",
        "artifact_dir/dummy.txt",
        "figures/drawing/step_5.html",
        "files/out/step_5/dummy.txt",
        "plots/page.html",
    ]


def test_what_the_run_says_of_itself_is_recorded(tmp_path):
    """The record in MLflow's own tags and as artifacts, the console as a file, single values as metrics to sort by."""
    tracker = opened(tmp_path)
    tracker.store_run_record(
        {
            "argv": ["train.py", "--lr", "1"], "command": "python train.py", "host": "node1", "packages": {"torch": "2.13.0"},
            "git": {"commit": "abc", "branch": "main", "remote": "https://host/repo"}, "patch": "diff --git\n", "gpus": None,
        }
    )  # fmt: skip
    tracker.log_console(["epoch 1", "\udfff"])
    tracker.flush()
    checkpoint = tracker.checkpoint()
    tracker.log_console(["comes again"])
    tracker.flush()
    tracker = opened(tmp_path, checkpoint)
    tracker.log_console(["comes again"])
    tracker.summarise({"best": 0.9, "word": "good"})
    tracker.summarise({"best": 0.95, "word": "better"})
    tracker.define_metric("eval/*", axis="epoch", summary="max", goal="maximize")
    tracker.finish()
    run = reader.run_of("run")
    tags = run.data.tags
    assert (tags["mlflow.source.name"], tags["mlflow.source.git.commit"], tags["mlflow.source.git.branch"]) == ("train.py", "abc", "main")
    assert (tags["mlflow.source.git.repoURL"], tags["accelbus.host"], tags["summary/word"]) == ("https://host/repo", "node1", "better")
    assert tags["metric/eval/_"] == "axis=epoch, summary=max, goal=maximize"
    assert run.data.metrics == {"summary/best": 0.95}
    assert json.loads(reader.artifact(run, "accelbus/run.json"))["argv"] == ["train.py", "--lr", "1"]
    assert reader.artifact(run, "accelbus/requirements.txt") == b"torch==2.13.0\n"
    assert reader.artifact(run, "accelbus/changes.patch") == b"diff --git\n"
    assert reader.artifact(run, "console.log") == b"epoch 1\n\\udfff\ncomes again\n"


def test_artifacts_that_cannot_be_sent_stop_no_metrics(tmp_path, caplog):
    """A store that is not there is a warning while the run goes on; what is not sent is sent at the end, or by the next process."""
    tracker = opened(tmp_path)
    put = tracker._run.client.log_artifact
    tracker._run.client.log_artifact = failing_at(put, 0)
    tracker.log_batch([row(1, {"loss": 1.0, "note": "text"})])
    tracker.flush()
    assert "texts.jsonl cannot be sent yet: gone" in caplog.text
    with pytest.raises(ConnectionError):
        tracker.finish("finished")
    checkpoint = tracker.checkpoint()
    tracker = opened(tmp_path, checkpoint)
    tracker.finish("finished")
    assert [point[:3] for point in reader.texts(reader.run_of("run"))] == [(1, "note", "text")]


@pytest.mark.parametrize("answer", [401, 500, None])
def test_a_server_that_refuses_or_is_not_there_is_an_error_soon(tmp_path, monkeypatch, answer):
    """With MLflow's own settings it would take minutes: delivery would end the process before it says what is wrong."""
    for name, value in MLflowTracker.environment(tmp_path, {}).items():
        monkeypatch.setenv(name, value)
    with answering(answer) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        began = time.monotonic()
        with pytest.raises(MlflowException, match=str(answer or "refused")):
            opened(tmp_path)
    assert time.monotonic() - began < 20


class _Plotly:
    """A figure as far as `accelbus.Figure` looks at it."""

    def to_json(self):
        return '{"data": [{"type": "scatter", "x": [1, 2], "y": [3, 4]}], "layout": {}}'


def opened(state, checkpoint=None, *, run_id="run", arguments=None, **info):
    """Return a started tracker of *run_id*."""
    tracker = MLflowTracker("project", **(arguments or {}))
    tracker.run_info = RunInfo(run_id, "project", state_dir=state, output_dir=state / "output", **info)
    tracker.restore(checkpoint or {})
    tracker.start()
    return tracker


def log_all(tracker, wrapped, store, blobs):
    """Log what is *wrapped* at step 5, as delivery does; large values go through *store*, which is in the directory *blobs*."""
    for key, wrapper in wrapped.items():
        media = wrapper.to_media(store)
        media.directory = str(blobs)
        tracker.log_media(key, media, 5)


def row(step, values, attempt=0):
    """Return a row whose time follows from its attempt."""
    return Row(step, values, 1_700_000_000_000_000_000 + attempt * 10**12, attempt)


def failing_at(function, call):
    """Return *function*, but not from the call of that number on."""
    calls = itertools.count()

    def failing(*arguments, **keywords):
        if next(calls) >= call:
            raise ConnectionError("gone")
        return function(*arguments, **keywords)

    return failing


@contextmanager
def answering(status):
    """Address of a server that answers everything with *status*, or of a port where nobody listens."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(status)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if status is None:
        server.server_close()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        return
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
