"""The W&B tracker, offline, read back from W&B's own files; and against a server on this machine."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("wandb")

import numpy as np

import accelbus
from accelbus.testing import Arrived, Point, ReadBack, SinkContract, state_dir
from accelbus.values import flatten
from accelbus_sinks.wandb import EXIT_CODES, WandBTracker
from tests.support import wandb_reader as reader, wandb_server
from tests.support.arrivals import wandb as found
from tests.support.wandb_runs import in_another_process, media, online, row, started, upload


class TestWandB(SinkContract):
    """Every row has its true step as ``accelbus/step``; W&B's own steps rise by themselves."""

    tracker_class = WandBTracker
    init_kwargs: ClassVar = {"mode": "offline"}

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        return found.arrived(logging_dir, state_dir(logging_dir) / "keys.json")

    def read(self, logging_dir: Path) -> ReadBack:
        (file,) = reader.files(logging_dir)
        own = [row["_step"] for row in reader.rows(file)]
        assert own == sorted(set(own))
        points = [Point(*point) for point in reader.points(file, state_dir(logging_dir) / "keys.json")]
        exits = reader.of_kind(file, "exit")
        assert len(exits) <= 1
        statuses = {code: status for status, code in EXIT_CODES.items()}
        return ReadBack(points, flatten(reader.config(file)), statuses[exits[0].exit_code] if exits else None)


@pytest.fixture(autouse=True)
def _environment(tmp_path, monkeypatch):
    for name, value in WandBTracker.environment(tmp_path / "state", os.environ).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def tracker(tmp_path):
    """A started tracker of a new run in ``tmp_path``, offline."""
    return started(tmp_path, {})


# Steps


def test_a_run_in_order_has_its_steps_as_those_of_wandb(tracker, tmp_path):
    """Rows in step order are under W&B's native step, and no other axis is asked for."""
    tracker.log_batch([row(step, loss=float(step)) for step in (0, 10, 20)])
    tracker.flush()
    tracker.log_batch([row(30, loss=30.0)])
    tracker.finish("finished")
    (file,) = reader.files(tmp_path)
    assert [row["_step"] for row in reader.rows(file)] == [0, 10, 20, 30]
    assert not [metric for metric in reader.of_kind(file, "metric") if metric.step_metric]


def test_a_late_row_takes_a_free_step_and_all_curves_the_true_one_as_axis(tracker, tmp_path):
    """A value for an earlier step is kept at its step, on the axis that every row has; the rest keeps W&B's step where it can."""
    tracker.define_metric("accuracy", summary="max")
    tracker.log_batch([row(0, loss=0.0), row(10, loss=10.0, accuracy=0.5), row(5, loss=5.0), row(20, loss=20.0)])
    tracker.finish("finished")
    (file,) = reader.files(tmp_path)
    assert [(row["_step"], row[reader.STEP], row["loss"]) for row in reader.rows(file)] == [
        (0, 0, 0), (10, 10, 10), (11, 5, 5), (20, 20, 20),
    ]  # fmt: skip
    axes = {metric.glob_name or metric.name: metric.step_metric for metric in reader.of_kind(file, "metric") if metric.step_metric}
    assert axes == {"*": reader.STEP, "accuracy": reader.STEP}


def test_a_late_value_is_not_the_last_one(tracker, tmp_path):
    """The summary of a curve stays its newest value, whatever comes last."""
    tracker.log_batch([row(10, loss=1.0, lr=0.5), row(5, loss=9.0)])
    tracker.finish("finished")
    summary = reader.summary(reader.files(tmp_path)[0])
    assert (summary["loss"], summary["lr"]) == (1, 0.5)


def test_a_key_may_have_another_axis_and_summary(tracker, tmp_path):
    """Definitions by pattern reach the keys they fit, also when these come later, and a best value that is late counts."""
    tracker.define_metric("eval/*", axis="epoch", summary="best", goal="maximize")
    tracker.log_batch([row(step, **{"eval/accuracy": accuracy, "epoch": step / 10}) for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7))])
    tracker.finish("finished")
    (file,) = reader.files(tmp_path)
    (metric,) = [metric for metric in reader.of_kind(file, "metric") if metric.name == "eval/accuracy"]
    assert (metric.step_metric, metric.summary.max) == ("epoch", True)
    assert reader.summary(file)["eval/accuracy"] == {"max": 0.9}


def test_rows_go_alone_where_wandb_is_built_differently(tmp_path, monkeypatch):
    """Without the internals by which many rows are handed over together, each goes by itself, and nothing is different in the file."""
    written = []
    for name in ("together", "alone"):
        tracker = started(tmp_path / name, {})
        tracker.log_batch([row(step, loss=float(step)) for step in (0, 1, 5, 3)])
        if name == "alone":
            monkeypatch.setattr("accelbus_sinks._wandb_together.INTERNALS", ("_gone",))
        tracker.finish("finished")
        (file,) = reader.files(tmp_path / name)
        written.append([(row["_step"], row[reader.STEP], row["loss"]) for row in reader.rows(file)])
    assert written == [[(0, 0, 0), (1, 1, 1), (5, 5, 5), (6, 3, 3)]] * 2


def test_values_and_media_of_one_step_are_one_row(tracker, tmp_path):
    """What comes for a step before the next flush joins its row, so that W&B's steps stay the true ones."""
    for step in range(3):
        tracker.log_batch([row(step, loss=1.0)])
        tracker.log_batch([row(step, accuracy=0.5)])
    for step in range(3):
        tracker.log_media("sample", media(tmp_path, accelbus.Image(np.zeros((4, 4, 3), np.uint8))), step)
    tracker.finish("finished")
    rows = reader.rows(reader.files(tmp_path)[0])
    assert [(row["_step"], row["loss"], row["accuracy"], row["sample"]["_type"]) for row in rows] == [
        (step, 1, 0.5, "image-file") for step in range(3)
    ]


def test_a_row_beyond_wandbs_limit_is_several(tracker, tmp_path, monkeypatch):
    """W&B leaves out lines of about 10 MB without an error; each value comes, at its true step, and the next row too."""
    monkeypatch.setattr("accelbus_sinks._wandb_rows.ROW_BYTES", 1000)
    values = {f"key/{number}": float(number) for number in range(50)} | {"text": "x" * 200, "list": [0.5] * 20}
    tracker.log_batch([row(7, **values), row(8, loss=1.0)])
    tracker.finish("finished")
    rows = reader.rows(reader.files(tmp_path)[0])
    assert len(rows) > 3
    assert {row[reader.STEP] for row in rows[:-1]} == {7}
    merged = {key: value for row in rows[:-1] for key, value in row.items() if not key.startswith(("_", "accelbus/"))}
    assert merged == values
    assert (rows[-1][reader.STEP], rows[-1]["loss"]) == (8, 1.0)
    assert max(len(json.dumps(row)) for row in rows) < 1500


def test_text_beyond_wandbs_limit_is_whole_in_a_file(tracker, tmp_path):
    """W&B takes no value of 1 MB: the row has the beginning, the run's files the whole, and the user is told once for each."""
    said = []
    tracker.tell_user = said.append
    tracker.log_batch([row(7, **{"sample/text": "x" * 2_000_000, "short": "y"})])
    tracker.log_text("later", "z" * 2_000_000, 7)
    tracker.finish("finished")
    (file,) = reader.files(tmp_path)
    (found,) = reader.rows(file)
    assert (found["short"], len(found["sample/text"]), len(found["later"])) == ("y", 250_000, 250_000)
    texts = {path.name: len(path.read_text()) for path in (file.parent / "files" / "accelbus-texts").iterdir()}
    assert texts == {"sample%2Ftext-7.txt": 2_000_000, "later-7.txt": 2_000_000}
    assert len(said) == 2


def test_many_rows_do_not_wait_for_a_flush(tracker, tmp_path, monkeypatch):
    """Memory is bounded when rows come faster than flushes."""
    monkeypatch.setattr("accelbus_sinks._wandb_outbox.MOST_ROWS", 40)
    monkeypatch.setattr("accelbus_sinks._wandb_outbox.FEWEST_ROWS", 20)
    for begin in range(0, 100, 10):
        tracker.log_batch([row(step, loss=1.0) for step in range(begin, begin + 10)])
        assert len(tracker._started._waiting) <= 50
    tracker.finish("finished")
    assert [row["_step"] for row in reader.rows(reader.files(tmp_path)[0])] == list(range(100))


def test_a_row_that_wandb_refuses_is_reported_and_holds_up_no_other(tracker, tmp_path):
    """What W&B cannot take in any try is said once, under the keys of the script, for a dead letter; the rows behind it go on."""
    tracker.log_batch([row(step, loss=1.0) for step in range(3)])
    tracker.log_batch([row(3, _step=4.0, epoch=1.0)])
    for waiting in (tracker._started._waiting[1], tracker._started._waiting[3]):
        waiting.media["later"] = _Unforeseen()
    for _ in range(4):
        with pytest.raises(TypeError):
            tracker.flush()
    tracker.flush()
    reported = tracker.refused_rows()
    assert tracker.refused_rows() == []
    tracker.finish("finished")
    assert [row["_step"] for row in reader.rows(reader.files(tmp_path)[0])] == [0, 2]
    assert [(refused.step, refused.keys) for refused in reported] == [(1, ("loss", "later")), (3, ("_step", "epoch", "later"))]
    assert "TypeError: nobody foresaw it" in reported[0].reason


class _Unforeseen:
    def take(self):
        raise TypeError("nobody foresaw it")


def test_best_without_a_goal_is_said(tracker):
    """Nobody can know what is best: the last value is the summary, and the user is told."""
    said = []
    tracker.tell_user = said.append
    tracker.define_metric("loss", summary="best", goal="minimize")
    assert said == []
    tracker.define_metric("score", summary="best")
    assert len(said) == 1
    assert "'score'" in said[0]


# What a run says of itself


def test_the_configuration_is_part_of_the_start(tracker, tmp_path):
    """Offline, W&B is started with the configuration, so that it is there from the first byte on; later ones are updates."""
    tracker.store_init_configuration({"lr": 0.1, "model": {"depth": [1, 2]}, "clip": math.inf, "nan": math.nan, "_wandb": 1})
    tracker.store_init_configuration({"lr": 0.2})
    tracker.finish("finished")
    (file,) = reader.files(tmp_path)
    (run,) = reader.of_kind(file, "run")
    first = {item.key: json.loads(item.value_json) for item in run.config.update if item.key != "_wandb"}
    assert first == {"lr": 0.1, "model": {"depth": [1, 2]}, "clip": "Infinity", "nan": "NaN", "logged/_wandb": 1}
    assert reader.config(file)["lr"] == 0.2


def test_a_configuration_beyond_the_limit_is_cut_and_complete_in_a_file(tracker, tmp_path):
    """20 MB of configuration do not stop a run."""
    tracker.store_init_configuration({"lr": 0.1, "huge": "y" * 20_000_000, "list": [0.5] * 30_000, "text": "x" * 5000})
    tracker.finish("finished")
    (file,) = reader.files(tmp_path)
    config = reader.config(file)
    assert (config["lr"], config["text"], len(config["huge"]), config["list"][:9]) == (0.1, "x" * 5000, 10_000, "[0.5, 0.5")
    full = json.loads((file.parent / "files" / "accelbus-config.json").read_text())
    assert (len(full["huge"]), len(full["list"])) == (20_000_000, 30_000)


def test_the_run_is_known_by_its_own_names(tmp_path):
    """Project, id, name, group, tags and notes are W&B's; what the user gave W&B comes before them."""
    info = {"name": "big", "group": "sweep", "tags": ("a", "b"), "notes": "why", "run_id": "proj/1a?2b"}
    tracker = started(tmp_path, {}, info, tags=["mine"], job_type="eval")
    tracker.finish("finished")
    (run,) = reader.of_kind(reader.files(tmp_path)[0], "run")
    assert (run.project, run.display_name, run.run_group, run.notes, list(run.tags), run.job_type) == (
        "project", "big", "sweep", "why", ["mine"], "eval",
    )  # fmt: skip
    assert run.run_id.startswith("proj-1a-2b-")


def test_summary_record_console_and_alerts_are_in_the_run(tracker, tmp_path):
    """Each goes to W&B's place for it."""
    tracker.summarise({"best/accuracy": 0.9, "note": "text"})
    tracker.store_run_record({"argv": ["train.py", "--lr"], "git": {"commit": "abc"}, "packages": {"numpy": "2", "a": "1"}, "patch": None})
    tracker.log_console(["one", "two"])
    tracker.log_media("alert", media(tmp_path, accelbus.Alert("x" * 100, "text", "warning")), 1)
    tracker.finish("preempted")
    (file,) = reader.files(tmp_path)
    assert {"best/accuracy": 0.9, "note": "text"}.items() <= reader.summary(file).items()
    files = file.parent / "files"
    assert json.loads((files / "wandb-metadata.json").read_text()) == {"program": "train.py", "args": ["--lr"], "git": {"commit": "abc"}}
    assert json.loads((files / "accelbus-run.json").read_text())["packages"]["numpy"] == "2"
    assert (files / "requirements.txt").read_text() == "a==1\nnumpy==2\n"
    saved = {item.path for record in reader.of_kind(file, "files") for item in record.files}
    assert saved == {"wandb-metadata.json", "accelbus-run.json", "requirements.txt"}
    assert reader.of_kind(file, "output_logger")[0].line == "one\ntwo\n"
    (alert,) = reader.of_kind(file, "alert")
    assert (alert.title, alert.text, alert.level) == ("x" * 63, "text", "WARN")
    assert len(reader.of_kind(file, "preempting")) == 1


def test_nothing_of_this_process_is_recorded(tracker, tmp_path):
    """W&B's own capture would describe the worker: no system metrics, console, git, code, packages or metadata."""
    tracker.log_batch([row(1, loss=1.0)])
    tracker.finish("finished")
    (file,) = reader.files(tmp_path)
    kinds = {record.WhichOneof("record_type") for record in reader.records(file)}
    assert kinds <= {"header", "run", "telemetry", "metric", "summary", "history", "exit"}
    assert list((file.parent / "files").iterdir()) == []
    assert not reader.of_kind(file, "run")[0].HasField("git")


# Media


def test_every_kind_of_media_is_wandbs_own(tracker, tmp_path):
    """Images, histograms, tables, HTML, sound, moving pictures and figures arrive as W&B's data types, with their captions and files."""
    plotly = pytest.importorskip("plotly.graph_objects")
    pixels = np.zeros((3, 8, 8, 3), np.uint8)
    values = {
        "../image": accelbus.Image(pixels[0], caption="zero"),
        "histogram": accelbus.Histogram([1.0, 2.0, 2.0], bins=4),
        "table": accelbus.Table(["a", "b"], [[1, "x"], [2.5, None]]),
        "html": accelbus.Html("<b>bold</b>"),
        "audio": accelbus.Audio(np.zeros(100, np.float32), 8000, caption="silence"),
        "video": accelbus.Video(pixels, fps=2),
        "figure": accelbus.Figure(plotly.Figure([{"y": [1, 2]}])),
    }
    tracker.log_batch([row(1, loss=1.0)])
    for key, value in values.items():
        tracker.log_media(key, media(tmp_path, value), 1)
    tracker.finish("finished")
    (file,) = reader.files(tmp_path)
    (found,) = reader.rows(file)
    types = {key: value["_type"] for key, value in found.items() if isinstance(value, dict)}
    assert types == {
        "--/image": "image-file", "histogram": "histogram", "table": "table-file", "html": "html-file", "audio": "audio-file",
        "video": "video-file", "figure": "plotly-file",
    }  # fmt: skip
    assert (found["--/image"]["caption"], found["audio"]["caption"]) == ("zero", "silence")
    files = file.parent / "files"
    assert all(
        (files / value["path"]).resolve().is_relative_to(files) for value in found.values() if isinstance(value, dict) and "path" in value
    )
    assert (files / found["audio"]["path"]).read_bytes()[:4] == b"RIFF"
    assert (files / found["video"]["path"]).read_bytes()[:3] == b"GIF"
    assert sum(found["histogram"]["values"]) == 3
    assert json.loads((files / found["table"]["path"]).read_text()) == {"columns": ["a", "b"], "data": [[1, "x"], [2.5, None]]}
    assert not (tmp_path / "state" / "media").exists()


def test_files_are_artifacts_with_their_type_and_aliases(tracker, tmp_path):
    """A file and a directory become artifacts whose content is kept for the upload; what has no type of W&B's becomes one too."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "part.txt").write_text("one")
    tracker.log_media("model", media(tmp_path, accelbus.Artifact(folder / "part.txt", "my model", "model", ["best"], {"epoch": 3})), 1)
    tracker.log_media("data", media(tmp_path, accelbus.Artifact(folder, type="dataset")), 1)
    odd = tmp_path / "clip.avi"
    odd.write_bytes(b"RIFF....AVI ")
    tracker.log_media("clip", media(tmp_path, accelbus.Video(odd)), 1)
    tracker.finish("finished")
    found = reader.of_kind(reader.files(tmp_path)[0], "artifact")
    assert [(artifact.name, artifact.type, sorted(artifact.aliases)) for artifact in found] == [
        ("my-model", "model", ["best", "latest"]), ("data", "dataset", ["latest"]), ("clip", "video", ["latest"]),
    ]  # fmt: skip
    assert json.loads(found[0].metadata) == {"epoch": 3}
    (content,) = found[0].manifest.contents
    assert Path(content.local_path).read_text() == "one"
    assert content.path == "part.txt"


# Restarts


def test_a_run_over_several_processes_is_one_upload(tmp_path):
    """After a crash, a finish and a resume at an earlier step, W&B's own ``sync`` uploads every row once, and the last exit code."""
    first = started(tmp_path, {})
    first.store_init_configuration({"lr": 0.1, "seed": 1})
    first.log_batch([row(step, loss=float(step)) for step in range(5)])
    first.log_media("sample", media(tmp_path, accelbus.Image(np.zeros((4, 4), np.uint8))), 4)
    first.flush()
    cursor = first.checkpoint()
    first.log_batch([row(5, loss=-1.0)])
    first.finish("killed")  # what it says beyond the cursor does not count
    second = started(tmp_path, cursor)
    second.store_init_configuration({"lr": 0.2, "seed": 1})
    second.log_batch([row(step, loss=float(step)) for step in (5, 6)])
    second.finish("failed")
    third = started(tmp_path, second.checkpoint())
    third.log_batch([row(step, 1, loss=10.0 + step) for step in (4, 5, 6, 7)])
    third.finish("finished")

    (file,) = reader.files(tmp_path)
    assert [(row[reader.STEP], row["loss"]) for row in reader.rows(file)] == [
        (0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (4, 14), (5, 15), (6, 16), (7, 17),
    ]  # fmt: skip
    assert reader.config(file) == {"lr": 0.2, "seed": 1}
    assert not (tmp_path / "state" / "sessions").exists()
    with wandb_server.running() as server:
        upload(file.parent, server, tmp_path)
        assert [(row["_step"], row[reader.STEP], row["loss"]) for row in server.rows][-4:] == [
            (7, 4, 14),
            (8, 5, 15),
            (9, 6, 16),
            (10, 7, 17),
        ]
        assert len(server.rows) == 11
        assert (server.exit_code, server.config["lr"], server.config["seed"]) == (0, 0.2, 1)
        assert any(name.startswith("media/images/sample_4_") for name in server.files)


def test_a_best_value_is_the_best_over_restarts(tmp_path):
    """W&B counts a minimum from a process's start; the run's is from its own."""
    first = started(tmp_path, {})
    first.define_metric("loss", summary="min")
    first.log_batch([row(1, loss=0.25), row(2, loss=0.5)])
    first.flush()
    cursor = first.checkpoint()
    first.finish("killed")
    second = started(tmp_path, cursor)
    second.define_metric("loss", summary="min")
    second.log_batch([row(3, loss=0.75)])
    second.finish("finished")
    assert reader.summary(reader.files(tmp_path)[0])["loss"] == {"min": 0.25}


def test_killed_inside_start_leaves_one_run(tmp_path):
    """A process that dies while W&B starts is followed by one that has the only run."""
    script = """
import wandb
init = wandb.init
def init_and_die(**arguments):
    init(**arguments)
    die()
wandb.init = init_and_die
started(path, {}).store_init_configuration({})
"""
    in_another_process(tmp_path, script, status=-signal.SIGKILL)
    tracker = started(tmp_path, {})
    tracker.log_batch([row(1, loss=1.0)])
    tracker.finish("finished")
    (file,) = reader.files(tmp_path)
    assert [row["loss"] for row in reader.rows(file)] == [1]


def test_the_death_of_wandbs_service_loses_nothing(tmp_path):
    """W&B's own process is killed, with rows on disk, rows in its memory and rows on their way: each is there once, media too."""
    script = """
import accelbus, numpy
tracker = started(path, {})
tracker.store_init_configuration({"lr": 0.1})
tracker.log_batch([row(step, loss=float(step)) for step in range(10)])
tracker.flush()
tracker.log_batch([row(step, loss=float(step)) for step in range(10, 15)])
tracker.log_media("sample", media(path, accelbus.Image(numpy.zeros((4, 4), numpy.uint8))), 14)
tracker.log_batch([row(15, loss=15.0)])
kill_service()
tracker.log_batch([row(16, loss=16.0)])
tracker.log_batch([row(17, loss=17.0)])
tracker.flush()
kill_service()
tracker.finish("finished")
"""
    in_another_process(tmp_path, script)
    (file,) = reader.files(tmp_path)
    rows = reader.rows(file)
    assert [(row["_step"], row["loss"]) for row in rows] == [(step, step) for step in range(18)]
    assert (file.parent / "files" / rows[14]["sample"]["path"]).exists()
    assert reader.config(file) == {"lr": 0.1}
    assert [record.exit_code for record in reader.of_kind(file, "exit")] == [0]


def test_a_killed_process_leaves_all_that_was_flushed(tmp_path):
    """300 rows and a flush, then SIGKILL of the tracker and of W&B's service: 300 rows. W&B by itself keeps none of them."""
    script = """
tracker = started(path, {})
tracker.log_batch([row(step, loss=float(step)) for step in range(300)])
tracker.flush()
kill_service()
die()
"""
    in_another_process(tmp_path, script, status=-signal.SIGKILL)
    (file,) = reader.files(tmp_path)
    assert [row["loss"] for row in reader.rows(file)] == list(range(300))


# With a server


@pytest.fixture
def server():
    """A server of W&B's on this machine."""
    with wandb_server.running() as server:
        yield server


def test_a_run_goes_on_on_the_server(server, tmp_path):
    """Killed with rows that were flushed and not uploaded, and started again: the server has each row once, in one run, and its end."""
    server.hold_after = 5
    script = """
tracker = started(path, {}, mode="online")
tracker.store_init_configuration({"lr": 0.1})
tracker.log_batch([row(step, loss=float(step)) for step in range(10)])
tracker.flush()
report(tracker.checkpoint())
kill_service()
die()
"""
    killed = in_another_process(tmp_path, script, status=-signal.SIGKILL, **online(server))
    uploaded = len(server.rows)
    server.hold_after = None
    script = f"""
tracker = started(path, json.loads({killed.stdout!r}), mode="online")
tracker.store_init_configuration({{"lr": 0.1}})
tracker.log_batch([row(step, loss=float(step)) for step in range(10, 12)])
report(tracker.url)
tracker.finish("failed")
"""
    went_on = in_another_process(tmp_path, script, **online(server))
    assert uploaded < 10
    assert [(row["_step"], row[reader.STEP], row["loss"]) for row in server.rows] == [(step, step, step) for step in range(12)]
    assert (server.exit_code, server.config["lr"]) == (1, 0.1)
    assert {run["name"] for run in server.runs} == {tmp_path.name}
    assert json.loads(went_on.stdout) == f"{server.url}/team/project/runs/{tmp_path.name}"


def test_a_refused_key_is_an_error_at_the_start(server, tmp_path):
    """An answer of 401 is said within seconds, by an exception of the start that names it, and leaves no directory behind."""
    server.refuse = 401
    script = """
try:
    started(path, {}, mode="online")
except Exception as error:
    report(str(error))
"""
    refused = in_another_process(tmp_path, script, **online(server))
    assert b"401" in refused.stdout
    assert not list(tmp_path.glob("wandb/run-*"))
