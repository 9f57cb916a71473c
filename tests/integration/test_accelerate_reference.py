"""Accelerate's own tests of its trackers, with `accelbus.init` and `Run` in place of ``Accelerator``: real runs, read back.

In the order of ``tests/test_tracking.py`` there; what is different on purpose says so. Registration, selection and how trackers are made are in
``tests/unit/test_tracking.py``.
"""

from __future__ import annotations

import csv
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accelbus.reader.audit import audit
from accelbus.tracking import filter_trackers
from tests.support.job import Job, running_job

# The warning is of MLflow's use of SQLAlchemy.
pytestmark = [pytest.mark.sinks, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

CONFIG = '{"num_iterations": 12, "learning_rate": 1e-2, "some_boolean": False, "some_string": "some_value"}'
VALUES = '{"total_loss": 0.1, "iteration": 1, "my_text": "some_value"}'


@pytest.fixture
def job():
    """A job whose main rank waits for the trackers; they are offline."""
    offline = {"WANDB_MODE": "offline", "CLEARML_OFFLINE_MODE": "1", "SWANLAB_MODE": "offline", "COMET_START_ONLINE": "false"}
    with running_job(**offline, ACCELBUS_FINISH_TIMEOUT="60", HOME="/nonexistent", MPLCONFIGDIR="/tmp/accelbus-mpl") as one:
        del one.environ["ACCELBUS_LOG_WITH"]
        yield one


def train(job: Job, script: str, **environ: str) -> None:
    """Run *script* in one rank; everything reaches its tracker."""
    (rank,) = job.run(script, timeout=100, **environ)
    assert rank.process.returncode == 0, rank.stderr
    books = audit(job.run_dir)
    assert books.balanced, books.problems
    assert books.is_settled, (books, job.bus_log())


def output(job: Job, tracker: str) -> Path:
    return job.run_dir / tracker


def state(job: Job, tracker: str) -> Path:
    return job.run_dir / "sinks" / tracker / "state"


def test_tensorboard(job: Job) -> None:
    """Config of four types, values of three, a 0-d tensor: in ``<logging dir>/<project>``, and in the event file as plain records."""
    readers = pytest.importorskip("tests.support.tensorboard_readers")
    train(job, f"""
        import torch
        run = accelbus.init("test_project", config={CONFIG}, log_with="tensorboard")
        run.log({VALUES}, step=0)
        run.log({{"tensor": torch.tensor(1)}}, step=0)
        run.finish()
    """)  # fmt: skip
    directory = output(job, "tensorboard") / "test_project"
    found = {tag: value for file in directory.glob("events.out.tfevents.*") for tag, value in simple_values(file).items()}
    assert found == {"total_loss": pytest.approx(0.1), "iteration": 1.0, "tensor": 1.0}
    assert [(key, text) for _, key, text, _ in readers.texts(directory)] == [("my_text", "some_value")]
    assert json.loads((directory / "hparams.yml").read_text())["learning_rate"] == 1e-2
    assert readers.hyperparameters(readers.sessions(directory))["num_iterations"] == 12


def simple_values(path: Path) -> dict[str, float]:
    """Return {tag: value}, by the parser of Accelerate's test: length, its checksum, record, its checksum."""
    from tensorboard.compat.proto.event_pb2 import Event

    data, found, position = path.read_bytes(), {}, 0
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        event = Event.FromString(data[position + 12 : position + 12 + length])
        found |= {value.tag: value.simple_value for value in event.summary.value if value.WhichOneof("value") == "simple_value"}
        position += 12 + length + 4
    return found


def test_a_logging_directory_need_not_be_given() -> None:
    """On purpose: Accelerate raises without one, here every run has its own."""
    assert filter_trackers("tensorboard") == ["tensorboard"]


def test_wandb(job: Job) -> None:
    """Offline: config, tags of ``init_kwargs``, values with their step."""
    reader = pytest.importorskip("tests.support.wandb_reader")
    train(job, f"""
        kwargs = {{"wandb": {{"tags": ["my_tag"]}}}}
        with accelbus.init("test_project", config={CONFIG}, log_with="wandb", init_kwargs=kwargs) as run:
            run.log({VALUES}, step=0)
    """)  # fmt: skip
    (file,) = reader.files(job.run_dir)
    (row,) = reader.rows(file)
    assert {"total_loss": 0.1, "iteration": 1, "my_text": "some_value", "_step": 0}.items() <= row.items()
    assert reader.config(file) == {"num_iterations": 12, "learning_rate": 1e-2, "some_boolean": False, "some_string": "some_value"}
    (run,) = reader.of_kind(file, "run")
    assert (run.project, list(run.tags)) == ("test_project", ["my_tag"])


def test_mlflow(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values with and without a step, keyword arguments of ``log``, figures, files and directories by Accelerate's argument names.

    On purpose: text is kept (as tag and table), and a long hyperparameter is cut and whole in a file, where Accelerate drops both.
    """
    reader = pytest.importorskip("tests.support.mlflow_reader")
    uri = f"sqlite:///{job.root}/mlflow.db"
    train(job, """
        from matplotlib.figure import Figure
        config = {"lr": 0.1, "long": "x" * 6001}
        before = dict(config)
        with accelbus.init("test_project", config=config, log_with="mlflow") as run:
            assert config == before
            tracker = run.get_tracker("mlflow")
            run.log({"loss": 0.5, "accuracy": 1, "non_numeric": "text"}, step=10)
            run.log({"without_step": 1.0})
            run.log({"loss": 0.25}, step=11, log_kwargs={"mlflow": {"synchronous": True}})
            os.makedirs("folder")
            open("folder/dummy.txt", "w").write("content")
            tracker.log_figure(Figure(), artifact_file="dummy_figure.png")
            tracker.log_artifact(local_path="folder/dummy.txt", artifact_path="artifact_dir")
            tracker.log_artifacts("folder", artifact_path="all")
    """, MLFLOW_TRACKING_URI=uri)  # fmt: skip
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "test_project")
    run = reader.run_of(job.run_id)
    points = [(step, key, value) for step, key, value, _ in reader.metrics(run, state(job, "mlflow"))]
    assert sorted(points) == [(10, "accuracy", 1), (10, "loss", 0.5), (10, "without_step", 1), (11, "loss", 0.25)]
    assert run.data.tags["text/non_numeric"] == "text"
    assert run.data.params == {"lr": "0.1", "long": "x" * 5999 + "…"}
    files = set(reader.artifacts(run))
    assert {"dummy_figure.png", "artifact_dir/dummy.txt", "all/dummy.txt"} <= files


def test_comet(job: Job) -> None:
    """A tracker that was made by the script, offline: parameters, metrics with their step, text."""
    readers = pytest.importorskip("tests.support.comet_readers")
    train(job, f"""
        from accelbus.tracking import CometMLTracker
        tracker = CometMLTracker("test_project", online=False)
        with accelbus.init(config={CONFIG}, log_with=[tracker]) as run:
            run.log({VALUES}, step=0)
    """)  # fmt: skip
    (archive,) = readers.archives(output(job, "comet_ml"))
    expected = {"num_iterations": 12, "learning_rate": 1e-2, "some_boolean": False, "some_string": "some_value"}
    assert archive.parameters() == {**expected, "curr_step": 0}
    assert {(0, "iteration", 1.0), (0, "total_loss", 0.1)} < {point[:3] for point in archive.metrics()}  # and Comet's "process duration"
    assert archive.others()["my_text"] == "some_value"


def test_clearml(job: Job) -> None:
    """Configuration, titles and series, images of two and three dimensions, tables in three forms; offline.

    On purpose: values without a step belong to the last one; a single value of the run is said with ``summarise``.
    """
    pytest.importorskip("clearml")
    pytest.importorskip("pandas")
    train(job, f"""
        import numpy as np, pandas as pd
        with accelbus.init("test_project", config={CONFIG}, log_with="clearml", init_kwargs={{"clearml": {{"task_name": "test"}}}}) as run:
            run.log({{"should_be_under_train": 1, "eval_value": 2, "test_value": 3.1, "train_value": 4.1}}, step=1)
            run.summarise({{"loss": 1, "lr": 0.1}})
            tracker = run.get_tracker("clearml")
            tracker.log_images({{"image": np.zeros((4, 4), np.uint8), "other": np.zeros((4, 4, 3), np.uint8)}}, step=1)
            tracker.log_table("from lists", columns=["A", "B"], data=[[1, 2], [3, 4]], step=2)
            tracker.log_table("from rows", data=[{{"A": 1, "B": 2}}, {{"A": 3, "B": 4}}], step=2)
            tracker.log_table("from a frame", dataframe=pd.DataFrame({{"A": [1, 3], "B": [2, 4]}}), step=2)
    """)  # fmt: skip
    identity = json.loads((state(job, "clearml") / "clearml.json").read_text())
    folder = Path(identity["cache_dir"], "offline", identity["task_id"])
    events = [event for line in (folder / "metrics.jsonl").read_text().splitlines() for event in json.loads(line)]
    scalars = {(event["metric"], event["variant"]): event["value"] for event in events if event["type"] == "training_stats_scalar"}
    assert scalars == {
        ("should_be_under_train", "train"): 1, ("value", "eval"): 2, ("value", "test"): 3.1, ("value", "train"): 4.1,
        ("Summary", "loss"): 1, ("Summary", "lr"): 0.1,
    }  # fmt: skip
    assert sum(event["type"] == "training_debug_image" for event in events) == 2
    tables = [json.loads(event["plot_str"])["data"][0] for event in events if event["type"] == "plot"]
    assert [(table["header"]["values"], table["cells"]["values"]) for table in tables] == [(["A", "B"], [[1, 3], [2, 4]])] * 3
    task = json.loads((folder / "task.json").read_text())
    assert task["name"] == "test"
    assert json.loads(task["configuration"]["General"]["value"])["num_iterations"] == 12


def test_the_live_object_of_a_tracker(job: Job) -> None:
    """``get_tracker(name, unwrap=True)`` where the tracker lives in the main rank."""
    pytest.importorskip("clearml")
    train(job, """
        with accelbus.init("test_project", log_with="clearml", inline=["clearml"]) as run:
            assert len(run.get_tracker("clearml", unwrap=True).id) > 20
            run.log({"loss": 1.0}, step=1)
    """)  # fmt: skip


def test_swanlab(job: Job) -> None:
    """Offline: project, description, tags, configuration, what the script printed, numbers and pictures."""
    tests = pytest.importorskip("tests.contract.test_swanlab")
    train(job, f"""
        import numpy as np
        kwargs = {{"swanlab": {{"description": "my description", "tags": ["my_tag"]}}}}
        with accelbus.init("test_project", config={CONFIG}, log_with="swanlab", init_kwargs=kwargs, console=True) as run:
            print("a line of the script")
            run.log({{"total_loss": 0.1, "iteration": 1}}, step=0)
            run.get_tracker("swanlab").log_images({{"image": [np.zeros((4, 4, 3), np.uint8)]}}, step=0)
    """)  # fmt: skip
    (directory,) = output(job, "swanlab").glob("run-*")
    records = tests.records_of(directory)
    assert {record.scalar.key: record.scalar.value.number for record in records if record.HasField("scalar")} == {
        "total_loss": 0.1, "iteration": 1.0,
    }  # fmt: skip
    assert sum(record.HasField("media") for record in records) == 1
    assert "a line of the script" in [record.log.line for record in records if record.HasField("log")]
    (begin,) = [record.start for record in records if record.HasField("start")]
    assert (begin.project, begin.description, list(begin.tags)) == ("test_project", "my description", ["my_tag"])
    assert tests.read(output(job, "swanlab"), state(job, "swanlab")).config["learning_rate"] == 1e-2


CUSTOM = """
    import csv
    from accelerate.tracking import GeneralTracker

    class MyCustomTracker(GeneralTracker):
        name = "my_custom_tracker"
        requires_logging_directory = False
        columns = ["total_loss", "iteration", "my_text", "learning_rate", "num_iterations", "some_boolean", "some_string"]

        def __init__(self, path):
            super().__init__()
            self.path = path

        def start(self):
            self.write(dict(zip(self.columns, self.columns)))

        @property
        def tracker(self):
            return self.path

        def write(self, row):
            with open(self.path, "a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(row)

        def store_init_configuration(self, values):
            self.write(values)

        def log(self, values, step):
            self.write(values)
"""


def test_a_tracker_of_the_script_itself(job: Job) -> None:
    """A subclass of Accelerate's base, given as instance, whose ``log`` takes no keyword arguments: a row of the config, one of the values."""
    pytest.importorskip("accelerate")
    train(job, f"""{CUSTOM}
    path = os.path.join(os.environ["ROOT"], "log.csv")
    with accelbus.init("test", config={CONFIG}, log_with=MyCustomTracker(path), init_kwargs=None, log_kwargs=None) as run:
        run.log({VALUES}, step=0, log_kwargs=None)
    """)  # fmt: skip
    with (job.root / "log.csv").open(newline="") as file:
        config, values = csv.DictReader(file)
    assert {name: cell for name, cell in config.items() if cell} == {
        "learning_rate": "0.01", "num_iterations": "12", "some_boolean": "False", "some_string": "some_value",
    }  # fmt: skip
    assert {name: cell for name, cell in values.items() if cell} == {"total_loss": "0.1", "iteration": "1", "my_text": "some_value"}


def test_a_registered_tracker_gets_project_and_directory(job: Job) -> None:
    """By name; ``get_tracker`` knows it, its configuration and values arrive."""
    train(job, f"""
    class Registered(accelbus.GeneralTracker):
        name = "registered"
        requires_logging_directory = True

        def __init__(self, run_name, logging_dir, path):
            super().__init__()
            self.path, self.made_for = path, [run_name, logging_dir]

        @property
        def tracker(self):
            return self.path

        def start(self):
            self.say(*self.made_for)

        def say(self, *what):
            with open(self.path, "a") as file:
                print(*what, file=file)

        def store_init_configuration(self, values):
            self.say(values["num_iterations"])

        def log(self, values, step=None):
            self.say(step, *values)

    accelbus.register_tracker_class(Registered)
    kwargs = {{"registered": {{"path": os.path.join(os.environ["ROOT"], "said")}}}}
    with accelbus.init("test_project", config={CONFIG}, log_with="registered", init_kwargs=kwargs) as run:
        assert run.get_tracker("registered").name == "registered"
        run.log({{"loss": 1.0}}, step=3)
    """)  # fmt: skip
    assert (job.root / "said").read_text().splitlines() == [f"test_project {output(job, 'registered')}", "12", "3 loss"]


def test_dvclive(job: Job) -> None:
    """Two calls that count, one with a step: 0, 1, 3; parameters and text are kept."""
    pytest.importorskip("dvclive")
    from dvclive.serialize import load_yaml
    from dvclive.utils import parse_tsv

    train(job, f"""
        with accelbus.init("test", config={CONFIG}, log_with="dvclive") as run:
            run.log({VALUES})
            run.log({VALUES})
            run.log({VALUES}, step=3)
    """)  # fmt: skip
    out = output(job, "dvclive")
    expected = {"num_iterations": 12, "learning_rate": 1e-2, "some_boolean": False, "some_string": "some_value"}
    assert load_yaml(out / "params.yaml") == expected
    tables = {path.stem: [tuple(row.values())[1:] for row in parse_tsv(path)] for path in (out / "plots" / "metrics").rglob("*.tsv")}
    assert tables == {
        "total_loss": [("0", "0.1"), ("1", "0.1"), ("3", "0.1")],
        "iteration": [("0", "1"), ("1", "1"), ("3", "1")],
        "my_text": [("0", "some_value"), ("1", "some_value"), ("3", "some_value")],
    }
    latest: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    assert (latest["step"], latest["my_text"]) == (3, "some_value")


def test_making_a_tracker_starts_nothing(tmp_path: Path) -> None:
    """No process group, no run, no file: a tracker is opened by ``start``, in its own process."""
    script = f"""
import os, sys, torch
from accelbus.tracking import BUILT_IN, filter_trackers, load_tracker_class
made = []
for name in filter_trackers("all"):
    kind = load_tracker_class(name)
    made.append(kind("run", {str(tmp_path / "out")!r}) if kind.requires_logging_directory else kind("run"))
assert len(made) == len(filter_trackers("all"))
assert not torch.distributed.is_initialized()
assert "wandb" not in sys.modules or sys.modules["wandb"].run is None
assert "clearml" not in sys.modules or sys.modules["clearml"].Task.current_task() is None
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, check=True, timeout=100)
    assert not (tmp_path / "out").exists()
