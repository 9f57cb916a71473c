"""The ClearML tracker, with the real library in its offline mode: what is read back is the session that ClearML would import."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("clearml")

from accelbus.blobs import BlobStore
from accelbus.media import TIME, Alert, Artifact, Audio, Histogram, Html, Image, Media, Table, Video, pack, unpack
from accelbus.testing import Arrived, Point, ReadBack, SinkContract, state_dir
from accelbus.tracking import Row, RunInfo
from accelbus.values import flatten
from accelbus_sinks._clearml_names import Curves, curve_of
from accelbus_sinks._step_text import read_step_text
from accelbus_sinks.clearml import ClearMLTracker
from tests.support.arrivals import clearml as found
from tests.support.clearml_jobs import tracker_of
from tests.support.clearml_server import ClearMLServer
from tests.support.job import QUICK, running_job

# ClearML's copy of pyhocon calls pyparsing by names that are going away.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """Offline, in children too; whatever a failed test left open is closed."""
    from clearml import Task

    monkeypatch.setenv("CLEARML_OFFLINE_MODE", "1")
    yield
    if (task := Task.current_task()) is not None:
        task.close()


class TestClearML(SinkContract):
    """Scalars keep the time of their row; text and numbers that are not finite are lines of the console."""

    tracker_class = ClearMLTracker
    one_run_per_process = True

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        return found.arrived(folder := folder_of(state_dir(logging_dir)), events_of(folder), Curves(state_dir(logging_dir) / "keys.json"))

    def read(self, logging_dir: Path) -> ReadBack:
        return read(state_dir(logging_dir))


def read(state: Path) -> ReadBack:
    """Return what the offline session of the run with its state in *state* holds, as ``Task.import_offline_session`` finds it."""
    folder = folder_of(state)
    task = json.loads((folder / "task.json").read_text())
    curves = Curves(state / "keys.json")
    points = []
    for event in events_of(folder):
        assert event["task"] == task["id"]
        if event["type"] == "training_stats_scalar":
            points.append(Point(event["iter"], curves.key(event["metric"], event["variant"]), event["value"], event["timestamp"] / 1000))
        elif event["type"] == "log" and (said := read_step_text(event["msg"])):
            step, values = said
            points += [Point(step, key, value, event["timestamp"] / 1000) for key, value in values.items()]
    config = (task.get("configuration") or {}).get("General")
    status = {"completed": "finished", "in_progress": None}.get(task.get("status"), task.get("status"))
    return ReadBack(points, flatten(json.loads(config["value"])) if config else {}, status)


def folder_of(state: Path) -> Path:
    """Return the folder of the run's offline session."""
    identity = json.loads((state / "clearml.json").read_text())
    return Path(identity["cache_dir"], "offline", identity["task_id"])


def events_of(folder: Path) -> list[dict]:
    """Return the session's events as ClearML reads them, line by line."""
    path = folder / "metrics.jsonl"
    return [event for line in path.read_text().splitlines() for event in json.loads(line)] if path.exists() else []


class Job:
    """Runs `tests.support.clearml_jobs`."""

    def __init__(self, **environ: str) -> None:
        self._environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/nonexistent", **environ}

    def start(self, name: str, path: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-m", "tests.support.clearml_jobs", name, str(path)]
        return subprocess.Popen(command, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, name: str, path: Path) -> dict:
        """Return what the job reports."""
        with self.start(name, path) as child:
            reported, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors.decode()
        return json.loads(reported)

    def run_and_be_killed(self, name: str, path: Path) -> None:
        with self.start(name, path) as child:
            _, errors = child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL, errors.decode()


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Where a tracker keeps everything, its cache too."""
    state = tmp_path / "state"
    for name, value in ClearMLTracker.environment(state, {}).items():
        monkeypatch.setenv(name, value)
    return state


@pytest.fixture
def tracker(state):
    """A started tracker."""
    tracker = tracker_of(state)
    tracker.start()
    return tracker


def test_a_kill_inside_start_leaves_one_session(state):
    """The next process goes on with the session that the first one had begun."""
    Job().run_and_be_killed("killed_inside_start", state)
    begun = [path.name for path in (state / "clearml" / "offline").iterdir() if path.is_dir()]
    tracker = tracker_of(state)
    tracker.start()
    assert [tracker.tracker.id] == begun
    assert (tracker.tracker.name, tracker.tracker.get_project_name()) == ("first", "digits")
    tracker.finish()


def test_online_a_run_is_one_task_whatever_happens(state, tmp_path):
    """Killed inside start, refused, fed twice, left alone and opened again: one task, each point once, the true status."""
    with ClearMLServer() as server:
        online = Job(**server.environ, CLEARML_OFFLINE_MODE="0", RANK="3", LOCAL_RANK="3", TORCHELASTIC_RUN_ID="x")
        online.run_and_be_killed("killed_inside_start", state)
        assert len(server.tasks) == 1
        report = online.run("whole_run", state)

        (task,) = server.tasks.values()
        assert report["task"] == task["id"]
        assert report["url"].startswith(server.address)
        assert "401" in report["refusal"]
        assert report["row_was_refused"]
        assert task["comment"] == "why"
        assert set(task["tags"]) == {"accelbus:run-1", "baseline", "group:sweep"}
        assert task["hyperparams"]["General"]["model/depth"]["value"] == "3"
        assert server.curves(task["id"]) == {
            **{("loss", "train", step): float(step) for step in range(3)},
            **{("loss", "eval", step): 0.5 for step in range(3)},
            ("Summary", "best", -(2**31)): 0.25,
        }
        assert 'step 1: {"note": "ok", "bad": NaN}' in server.texts(task["id"])
        # The first process that opened the task was killed; the second failed; the run was opened again by one that just left.
        assert server.statuses[task["id"]] == ["in_progress", "in_progress", "completed", "failed", "in_progress", "in_progress"]


def test_online_sessions_are_imported_and_agents_obeyed(state, tmp_path):
    """ClearML imports what was logged offline; what an agent's user changed is in ``config`` and is not undone by an update."""
    tracker = tracker_of(tmp_path / "offline")
    tracker.start()
    tracker.store_init_configuration({"lr": 0.5})
    tracker.log_batch([Row(1, {"loss": 1.0, "note": "text"}, 10**18)])
    tracker.finish("finished")
    with ClearMLServer() as server:
        parameters = {"lr": ("0.5", "float"), "model/depth": ("3", "int"), "seed": ("1", "int")}
        queue_a_task(server, parameters, {"lr": 0.1, "model": {"depth": 5, "name": "net"}, "seed": 1})
        session = str(folder_of(tmp_path / "offline"))
        report = Job(**server.environ, CLEARML_OFFLINE_MODE="0", SESSION=session).run("import_and_run_by_agent", state)

        imported = report["imported"]
        assert server.curves(imported) == {("loss", "train", 1): 1.0}
        assert 'step 1: {"note": "text"}' in server.texts(imported)
        assert server.tasks[imported]["configuration"]["General"]["value"] == '{\n  "lr": 0.5\n}'
        assert (report["task"], report["config"]) == ("t", {"lr": 0.5, "model": {"depth": 5, "name": "net"}, "seed": 1})
        assert set(server.tasks) == {imported, "t"}
        shown = {name: item["value"] for name, item in server.tasks["t"]["hyperparams"]["General"].items()}
        assert shown == {"lr": "0.5", "model/depth": "5", "model/name": "net", "seed": "1", "warmup": "10"}
        assert server.curves("t") == {("loss", "train", 1): 1.0}


def test_an_agents_task_configures_a_run_that_was_given_nothing(state):
    """What stands in the task is the configuration: both forms, nested, an edit of the hyperparameters over the object."""
    with ClearMLServer() as server:
        queue_a_task(server)
        report = Job(**server.environ, CLEARML_OFFLINE_MODE="0").run("configured_by_agent", state)
        assert report["config"] == {"lr": 0.5, "model": {"depth": 3, "name": "net"}, "betas": [0.9, 0.99]}


@pytest.mark.parametrize("config, resolved", [("None", {"lr": 0.5}), ("{'lr': 0.1, 'seed': 1}", {"lr": 0.5, "seed": 1})])
def test_every_rank_of_an_agents_job_has_what_was_set_in_the_web_interface(config, resolved):
    """``config_from="clearml"``, with a configuration of the script's own and without one."""
    with ClearMLServer() as server:
        queue_a_task(server)
        environ = {**server.environ, "CLEARML_OFFLINE_MODE": "0", "CLEARML_TASK_ID": "t", "CLEARML_LOG_TASK_TO_BACKEND": "0"}
        with running_job(**QUICK, **environ) as job:
            script = f"""
                import json
                run = accelbus.init(config={config}, log_with=["jsonl", "clearml"], config_from="clearml")
                say(json.dumps(run.config))
                run.finish()
            """
            for rank in job.run(script, ranks=2):
                assert rank.lines, rank.stderr
                assert {**json.loads(rank.lines[0]), **resolved} == json.loads(rank.lines[0])


PARAMETERS = {"lr": ("0.5", "float"), "model/depth": ("3", "int"), "betas": ("[0.9, 0.99]", "list")}
CLONED = {"lr": 0.1, "model": {"depth": 3, "name": "net"}, "betas": [0.9, 0.99]}


def queue_a_task(server, parameters=PARAMETERS, config=CLONED):
    """Put the task ``t`` on *server*, as somebody leaves it who has changed a clone: *parameters* over the *config* of its script."""
    server.projects["digits"] = "p"
    hyperparams = {name: {"section": "General", "name": name, "value": value, "type": kind} for name, (value, kind) in parameters.items()}
    server.tasks["t"] = {
        "id": "t",
        "name": "clone",
        "project": "p",
        "status": "queued",
        "hyperparams": {"General": hyperparams},
        "configuration": {"General": {"name": "General", "value": json.dumps(config), "type": "json"}},
    }


def test_a_start_that_failed_half_way_is_repeated(state, monkeypatch):
    """An identity that cannot be written, tags that the server refuses: the next start goes on with the same task."""
    tracker = tracker_of(state)
    with monkeypatch.context() as patch:
        patch.setattr("accelbus_sinks._clearml_task._write", _raise)
        with pytest.raises(OSError, match="full"):
            tracker.start()
    with monkeypatch.context() as patch:
        patch.setattr("clearml.Task.add_tags", _raise)
        with pytest.raises(OSError, match="full"):
            tracker.start()
    tracker.start()
    tracker.log_batch([Row(1, {"loss": 1.0}, 1)])
    tracker.finish()
    assert [path.name for path in (state / "clearml" / "offline").iterdir() if path.is_dir()] == [folder_of(state).name]
    assert [point[:3] for point in read(state).points] == [(1, "loss", 1.0)]


def _raise(*_: object) -> None:
    raise OSError(28, "disk full")


def test_a_torn_task_file_is_put_back(state):
    """ClearML writes ``task.json`` in place; what a crash leaves of it costs neither name nor configuration."""
    tracker = tracker_of(state)
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    tracker.finish("failed")
    (folder_of(state) / "task.json").write_text('{"exec')
    again = tracker_of(state)
    again.restore(tracker.checkpoint())
    again.start()
    assert (again.tracker.name, again.tracker.get_project_name()) == ("first", "digits")
    again.finish()
    assert read(state).config == {"lr": 0.1}


def test_nothing_is_captured_and_nothing_stays_behind(state):
    """Signals, hooks and the environment are as before; no process is forked; the repository and the command line are not looked at."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], sys.excepthook
    tracker = tracker_of(state)
    tracker.start()
    assert ([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], sys.excepthook) == before
    assert not multiprocessing.active_children()
    tracker.log_batch([Row(1, {"loss": 1.0}, 1)])
    tracker.finish()
    task = json.loads((folder_of(state) / "task.json").read_text())
    assert not task.get("script") or not task["script"].get("entry_point")
    assert set(task.get("hyperparams", {})) <= {"properties"}


def test_hyperparameters_are_flat_text_and_those_of_the_last_configuration(tracker, state):
    """What the table of hyperparameters shows is the newest configuration; a text that is too long is whole in an artifact."""
    tracker.store_init_configuration({"lr": 0.1, "old": 1})
    tracker.store_init_configuration({"lr": 0.2, "model": {"betas": [0.9, 0.99], "bias": None}, "prompt": "x" * 20_000})
    tracker.finish()
    task = json.loads((folder_of(state) / "task.json").read_text())
    shown = {name: item["value"] for name, item in task["hyperparams"]["General"].items()}
    assert {key: shown[key] for key in shown if key != "prompt"} == {"lr": "0.2", "model/betas": "[0.9, 0.99]", "model/bias": ""}
    assert len(shown["prompt"]) == 16 * 1024
    (artifact,) = task["execution"]["artifacts"]
    assert json.loads(Path(artifact["uri"]).read_text())["prompt"] == "x" * 20_000
    assert json.loads(task["configuration"]["General"]["value"])["prompt"] == "x" * 20_000


@pytest.mark.parametrize("status, state_of_task", [("finished", "completed"), ("preempted", "stopped"), ("lost", "failed")])
def test_an_offline_session_knows_how_the_run_ended(tracker, state, status, state_of_task):
    """The session's task has ClearML's own word for the status, and ours as reason."""
    tracker.finish(status)
    task = json.loads((folder_of(state) / "task.json").read_text())
    assert (task["status"], task["status_reason"]) == (state_of_task, status)


def test_names_come_from_arguments_then_the_environment_then_the_run(state, monkeypatch):
    """The precedence of Accelerate, and names that the server would find too short are made longer."""
    monkeypatch.setenv("CLEARML_PROJECT", "of the environment")
    monkeypatch.setenv("CLEARML_TASK", "t")
    tracker = ClearMLTracker("digits", project_name="of the argument")
    tracker.run_info = RunInfo("r", state_dir=state)
    tracker.start()
    assert (tracker.tracker.get_project_name(), tracker.tracker.name) == ("of the argument", "t__")
    tracker.finish()


def test_a_task_without_a_name_is_called_as_the_job_says(state):
    """The run id stands in for a display name that nobody gave: the name in ``init`` comes before it, as with Accelerate."""
    tracker = ClearMLTracker("digits")
    tracker.run_info = RunInfo("r-2026", name="r-2026", state_dir=state)
    tracker.start()
    assert tracker.tracker.name == "digits"
    tracker.finish()


def test_media_are_files_and_plots_of_the_session(tracker, state, tmp_path):
    """Every kind has a place; files are named after their step, so that a repetition replaces and nothing else does."""
    pixels = np.zeros((4, 5, 3), np.uint8)
    figure = '{"data": [], "layout": {"title": "t"}}'
    (tmp_path / "model.bin").write_bytes(b"weights")
    blobs = BlobStore(tmp_path / "blobs", "test", quota=10**9)

    def log(key, value, step=1):
        media = value if isinstance(value, Media) else value.to_media(blobs)
        tracker.log_media(key, unpack(pack(media, blobs), tmp_path / "blobs"), step)

    for step in (1, 2, 2):
        log("train/sample", Image(pixels, "a caption"), step)
    log("sound", Audio(np.zeros(100, np.float32), 8000))
    log("clip", Video(np.zeros((2, 4, 4, 3), np.uint8)))
    log("page", Html("<p>é</p>"))
    log("weights", Histogram(np.arange(10.0), bins=5))
    log("table", Table(["a", "b"], [[1, "x"], [float("nan"), None]]))
    log("figure", Media("figure", "plotly", {}, figure.encode()))
    for step in (1, 2):
        log("model", Artifact(tmp_path / "model.bin", aliases=["best"]), step)
    log("!", Alert("loss is NaN", "at step 3", "error"))
    tracker.finish()

    folder = folder_of(state)
    found = events_of(folder)
    samples = {(event["metric"], event["variant"], event["iter"]): event for event in found if event["type"] == "training_debug_image"}
    assert set(samples) == {("sample", "train", 1), ("sample", "train", 2), *((name, "train", 1) for name in ("sound", "clip", "page"))}
    for event in samples.values():
        assert (folder / "data" / event["key"]).is_file()
    assert (folder / "data" / samples["sample", "train", 2]["key"]).read_bytes().startswith(b"\x89PNG")
    plots = {event["metric"]: json.loads(event["plot_str"]) for event in found if event["type"] == "plot"}
    assert plots["weights"]["data"][0]["y"] == [2, 2, 2, 2, 2]
    assert plots["table"]["data"][0]["cells"]["values"] == [[1, "nan"], ["x", None]]
    assert plots["figure"] == json.loads(figure)
    assert [(event["level"], event["msg"]) for event in found if event["type"] == "log"][-1] == ("error", "alert: loss is NaN: at step 3")
    artifacts = {item["key"]: item for item in json.loads((folder / "task.json").read_text())["execution"]["artifacts"]}
    assert set(artifacts) == {"model.bin", "model.bin@1", "model.bin@2"}
    assert all(Path(item["uri"]).read_bytes() == b"weights" for item in artifacts.values())


def test_media_have_the_time_of_their_rank(tracker, state, tmp_path):
    """Debug samples, plots and captions are stamped when they were logged, not when they are delivered."""
    blobs = BlobStore(tmp_path / "blobs", "test", quota=10**9)
    for key, value in {"sample": Image(np.zeros((4, 5, 3), np.uint8), "a caption"), "weights": Histogram([1.0, 2.0])}.items():
        media = unpack(pack(value.to_media(blobs), blobs), tmp_path / "blobs")
        media.meta[TIME] = 1_000_000_000_000_000_000
        tracker.log_media(key, media, 1)
    tracker.finish()
    kinds = {"training_debug_image", "plot", "log"}
    found = {event["type"]: event["timestamp"] for event in events_of(folder_of(state)) if event["type"] in kinds}
    assert found == dict.fromkeys(kinds, 1_000_000_000_000)


def test_numbers_that_are_not_finite_never_become_zero(tracker, state):
    """They are text, beside the finite ones of their row; the user is told once."""
    tracker.tell_user = (said := []).append
    tracker.log_batch([Row(3, {"loss": float("nan"), "lr": 0.5, "worst": float("-inf")}, 1)])
    tracker.finish()
    found = [event for event in events_of(folder_of(state)) if event["type"] != "log" or event["msg"].startswith("step")]
    assert [(event["type"], event.get("value"), event.get("msg")) for event in found] == [
        ("training_stats_scalar", 0.5, None),
        ("log", None, 'step 3: {"loss": NaN, "worst": -Infinity}'),
    ]
    assert said == ["loss is not finite at step 3: ClearML has no such numbers, they are lines of the console"]


def test_definitions_are_a_configuration_object(tracker, state):
    """ClearML acts on none; a person finds them, all of them."""
    tracker.define_metric("eval/*", axis="epoch", summary="max", goal="maximize")
    tracker.define_metric("loss")
    tracker.finish()
    kept = json.loads((folder_of(state) / "task.json").read_text())["configuration"]["Metric definitions"]["value"]
    assert json.loads(kept) == {"eval/*": {"axis": "epoch", "summary": "max", "goal": "maximize"}, "loss": {}}


@pytest.mark.parametrize(
    "key, curve",
    [
        ("loss", ("loss", "train")),
        ("eval_loss", ("loss", "eval")),
        ("test_a_b", ("a_b", "test")),
        ("train_", ("train_", "train")),
        ("eval/loss", ("loss", "eval")),
        ("val/top/5", ("top/5", "val")),
        ("layer3/norm", ("layer3", "norm")),
        ("a/b/c", ("a/b", "c")),
        ("late/loss", ("late", "loss")),
        ("/x", ("/x", "train")),
        ("", ("-", "train")),
    ],
)
def test_keys_are_split_into_title_and_series(key, curve):
    """As with Accelerate for its prefixes, as with ClearML's TensorBoard binding for paths."""
    assert curve_of(key) == curve


def test_keys_of_one_curve_stay_apart(tmp_path):
    """``loss`` and ``train_loss`` would be one curve; the second gets a series of its own, the same after a restart."""
    curves = Curves(tmp_path / "keys.json")
    assert curves["train_loss"] == ("loss", "train")
    other = curves["loss"]
    assert other.title == "loss"
    assert other.series.startswith("train-")
    again = Curves(tmp_path / "keys.json")
    assert (again["loss"], again["train_loss"]) == (other, ("loss", "train"))
    assert (again.key(*other), again.key("loss", "train")) == ("loss", "train_loss")
