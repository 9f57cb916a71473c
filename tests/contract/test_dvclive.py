"""The DVCLive tracker, read back with DVCLive's own readers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("dvclive")

import dvc.repo
import numpy as np
import PIL.Image
from dvclive import Live
from dvclive.serialize import load_yaml
from dvclive.utils import parse_tsv

from accelbus.media import Artifact, Audio, Histogram, Html, Image, Table, Video
from accelbus.testing import Arrived, Point, ReadBack, SinkContract, state_dir
from accelbus.tracking import Row, RunInfo
from accelbus.values import flatten
from accelbus_sinks._keys import read_keys
from accelbus_sinks.dvclive import DVCLiveTracker
from tests.support.arrivals import dvclive as found
from tests.support.media import media


class TestDVCLive(SinkContract):
    """Every key is a table; tables have no types, so numbers are what looks like one."""

    tracker_class = DVCLiveTracker

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        return found.arrived(logging_dir)

    def read(self, logging_dir: Path) -> ReadBack:
        params = logging_dir / "params.yaml"
        status = logging_dir / "status.json"
        return ReadBack(
            self.read_with(logging_dir, state_dir(logging_dir)),
            flatten(load_yaml(params)) if params.exists() else {},
            json.loads(status.read_text())["status"] if status.exists() else None,
        )

    @staticmethod
    def read_with(logging_dir: Path, state: Path) -> list[Point]:
        keys = {name: key for key, name in read_keys(state / "keys.json").items()}
        points = []
        for path in (logging_dir / "plots" / "metrics").rglob("*.tsv"):
            name = path.relative_to(logging_dir / "plots" / "metrics").as_posix().removesuffix(".tsv")
            for row in parse_tsv(path):
                time, step, value = row.values()
                points.append(Point(int(step), keys[name], _value(value), int(time) / 1000))
        return sorted(points, key=lambda point: point.time)


def _value(text):
    if text.startswith("["):
        return json.loads(text)
    if text in {"nan", "inf", "-inf"} or text.lstrip("-")[:1].isdigit():
        return int(text) if text.lstrip("-").isdigit() else float(text)
    return text


@pytest.fixture
def tracker(tmp_path):
    """A started tracker that writes to ``tmp_path / "out"``."""
    return opened(tmp_path)


def opened(tmp_path, checkpoint=None, **kwargs):
    tracker = DVCLiveTracker("digits", **kwargs)
    tracker.run_info = RunInfo("digits-1", "digits", "digits-1", state_dir=tmp_path / "state", output_dir=tmp_path / "out")
    tracker.restore(checkpoint or {})
    tracker.start()
    return tracker


def summary(directory):
    return json.loads((directory / "metrics.json").read_text())


def test_tables_are_byte_by_byte_those_of_log_metric(tracker, tmp_path, monkeypatch):
    """Whatever reads DVCLive's tables reads these."""
    values = {
        "loss": 0.1,
        "train/loss": 1e-30,
        "count": 2**53 + 1,
        "note": 'tab\there, "quoted"\nand a line',
        "nan": float("nan"),
        "inf": float("-inf"),
    }
    tracker.log_batch([Row(step, values, 1_700_000_000_123_000_000) for step in (1, 2)])
    tracker.finish()
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.1234)
    monkeypatch.chdir(tmp_path)
    live = Live(dir=str(tmp_path / "plain"), save_dvc_exp=False, dvcyaml=False)
    for live.step in (1, 2):
        for key, value in values.items():
            live.log_metric(key, value, timestamp=True)
    plain = files(tmp_path / "plain" / "plots" / "metrics")
    assert files(tmp_path / "out" / "plots" / "metrics") == plain
    assert len(plain) == 6


def test_the_summary_has_the_newest_value_of_every_key(tracker, tmp_path):
    """By attempt and step, not by arrival; a key below another one keeps its value, too."""
    tracker.log_batch([Row(5, {"a": 5.0, "a/b": 0.5, "c/d": 1}, 0), Row(3, {"a": 3.0}, 0)])
    tracker.summarise({"best/a": 0.25, "worst": float("inf")})
    tracker.flush()
    assert summary(tmp_path / "out") == {"a": 5.0, "a/b": 0.5, "c": {"d": 1}, "best": {"a": 0.25}, "worst": "inf", "step": 5}
    tracker.log_batch([Row(4, {"a": 4.0}, 0, attempt=1)])
    tracker.finish()
    assert (summary(tmp_path / "out")["a"], summary(tmp_path / "out")["step"]) == (4.0, 4)


def test_a_resumed_run_keeps_the_summary_and_its_step(tmp_path):
    """Also when nothing is logged after the resume."""
    first = opened(tmp_path)
    first.log_batch([Row(step, {"loss": float(step), "x/y": 1}, step) for step in range(4)])
    first.finish("failed")
    second = opened(tmp_path, first.checkpoint())
    second.finish()
    assert summary(tmp_path / "out") == {"loss": 3.0, "x": {"y": 1}, "step": 3}
    third = opened(tmp_path, second.checkpoint())
    third.log_batch([Row(2, {"loss": 20.0}, 9, attempt=1)])
    third.finish()
    assert summary(tmp_path / "out") == {"loss": 20.0, "x": {"y": 1}, "step": 2}
    table = parse_tsv(tmp_path / "out" / "plots" / "metrics" / "loss.tsv")
    assert [(row["step"], row["loss"]) for row in table] == [("0", "0.0"), ("1", "1.0"), ("2", "2.0"), ("3", "3.0"), ("2", "20.0")]


def test_parameters_of_all_kinds_come_back(tracker, tmp_path):
    """Nested, with lists, None and numbers that are not finite; a later configuration replaces the first."""
    tracker.store_init_configuration({"old": 1})
    config = {"lr": 0.1, "model": {"depth": 3}, "betas": [0.9, 0.99], "none": None, "inf": math.inf, "seed": 2**60, "sur": "\ud800"}
    tracker.store_init_configuration(config)
    tracker.finish()
    assert load_yaml(tmp_path / "out" / "params.yaml") == {**config, "sur": "\\ud800"}


def test_media_are_files_that_dvc_shows(tracker, tmp_path):
    """Images in a folder for each key, histograms as plots, tables as CSV; everything else is a file."""
    for value, key in (
        (Image(np.zeros((4, 5, 3), np.uint8), caption="black"), "samples/first"),
        (Histogram([1.0, 2.0, 2.0], bins=2), "weights"),
        (Table(["a", "b"], [[1, "x,y"], [None, "z"]]), "table"),
        (Audio(np.zeros(800), sample_rate=8000), "sound"),
        (Video(np.zeros((2, 4, 4, 3), np.uint8)), "video"),
        (Html("<b>hi</b>"), "page"),
    ):
        tracker.log_media(key, media(value, tmp_path), 7)
    (tmp_path / "weights.pt").write_text("w")
    tracker.log_media("x", media(Artifact(tmp_path / "weights.pt", name="net", type="model"), tmp_path), 7)
    tracker.alert("loss is NaN", "at step 7", "error")
    tracker.log_console(["one", "two"])
    tracker.finish()
    out = tmp_path / "out"
    with PIL.Image.open(out / "plots" / "images" / "samples" / "first" / "7.png") as image:
        assert image.size == (5, 4)
    assert parse_tsv(out / "plots" / "metrics" / "samples" / "first" / "caption.tsv")[0]["caption"] == "black"
    bins = json.loads((out / "plots" / "custom" / "weights" / "7.json").read_text())
    assert [(row["bin"], row["count"]) for row in bins] == [(1.25, 1.0), (1.75, 2.0)]
    assert (out / "files" / "table-7.csv").read_text() == 'a,b\n1,"x,y"\n,z\n'
    assert (out / "files" / "sound-7.wav").read_bytes()[:4] == b"RIFF"
    assert (out / "files" / "video-7.gif").read_bytes()[:3] == b"GIF"
    assert (out / "files" / "page-7.html").read_text() == "<b>hi</b>"
    assert (out / "artifacts" / "net" / "step-7" / "weights.pt").read_text() == "w"
    assert json.loads((out / "alerts.jsonl").read_text())["title"] == "loss is NaN"
    assert (out / "console.log").read_text() == "one\ntwo\n"


def test_what_is_said_of_the_run_is_in_documents(tracker, tmp_path):
    """Circumstances, definitions and the status."""
    tracker.store_run_record({"git": {"commit": "abc"}})
    tracker.define_metric("eval/*", axis="epoch", summary="min")
    tracker.finish("preempted")
    documents = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")}
    assert documents["run_record"] == {"git": {"commit": "abc"}}
    assert documents["definitions"] == {"eval/*": {"axis": "epoch", "summary": "min", "goal": ""}}
    assert documents["status"]["status"] == "preempted"


def test_a_key_may_be_a_folder_and_a_table(tracker, tmp_path):
    """Names that would be the same path stay apart."""
    keys = [
        "a",
        "a/b",
        "a.tsv/b",
        "A",
        "step",
        "x/step",
        "x/timestamp",
        "x/step_",
        "..",
        "é" * 200,
        "deep/" * 2000,
        "deep/" * 2001,
        "a/" * 40,
    ]
    tracker.log_batch([Row(1, {key: float(index) for index, key in enumerate(keys)}, 1)])
    tracker.finish()
    found = TestDVCLive().read_with(tmp_path / "out", tmp_path / "state")
    assert {point.key: point.value for point in found} == {key: float(index) for index, key in enumerate(keys)}


def test_a_flush_that_fails_is_repeated_without_doubling_anything(tracker, tmp_path, monkeypatch):
    """A full disk leaves half of the lines in some files; the next flush cuts them off first."""
    tracker.log_batch([Row(1, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, 1)])
    sync, failures = os.fsync, iter([OSError(28, "No space left on device")] * 2)

    def full(descriptor):
        for failure in failures:
            raise failure
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            tracker.flush()
    tracker.log_batch([Row(2, {"a": 2.0, "b": 2.0, "c": 2.0, "d": 2.0}, 2)])
    tracker.finish()
    for path in (tmp_path / "out" / "plots" / "metrics").iterdir():
        assert path.read_text() == f"timestamp\tstep\t{path.stem}\n0\t1\t1.0\n0\t2\t2.0\n"


def test_processes_that_are_killed_leave_each_point_once(tmp_path):
    """Inside ``start`` or after their last ``log``."""
    script = f"""
import os, signal, sys
from pathlib import Path
sys.path[:] = {sys.path!r}
import dvclive, dvc.repo
from tests.contract import test_dvclive as test
from accelbus.tracking import Row
for after_ms in (1, 5, 20, 50, 0):
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        continue
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, after_ms / 1000)
    tracker = test.opened(Path({str(tmp_path)!r}))
    tracker.log_batch([Row(step, {{"loss": -1.0, "only/before": 1}}, step) for step in range(100)])
    tracker.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
    tracker = opened(tmp_path)
    tracker.log_batch([Row(step, {"loss": 1.0}, step) for step in range(3)])
    tracker.finish()
    assert files(tmp_path / "out" / "plots" / "metrics") == {"loss.tsv": b"timestamp\tstep\tloss\n0\t0\t1.0\n0\t1\t1.0\n0\t2\t1.0\n"}


def test_a_git_repository_around_the_run_is_left_alone(tmp_path, monkeypatch):
    """DVCLive would make a DVC repository of it, with a commit's worth of new files."""
    git(tmp_path)
    monkeypatch.chdir(tmp_path)
    tracker = opened(tmp_path)
    tracker.log_batch([Row(1, {"loss": 1.0}, 1)])
    tracker.finish()
    assert {path.name for path in tmp_path.iterdir()} == {".git", "readme", "out", "state"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # DVC's own libraries
def test_an_experiment_is_saved_where_the_user_wants_it(tmp_path, monkeypatch):
    """``save_dvc_exp=True`` in the repository in which the job was started; DVC itself reads curves, metrics and parameters."""
    git(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    tracker = opened(tmp_path, save_dvc_exp=True, dvcyaml="dvc.yaml", exp_name="mine")
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log_batch([Row(step, {"train/loss": float(step)}, step) for step in range(3)])
    tracker.log_media("x", media(Artifact(tmp_path / "readme", name="notes", type="dataset"), tmp_path), 2)
    tracker.finish()
    with dvc.repo.Repo(str(tmp_path)) as repo:
        assert next(iter(repo.experiments.ls().values()))[0][0] == "mine"
        assert repo.metrics.show()[""]["data"]["dvclive/metrics.json"]["data"] == {"train": {"loss": 2.0}, "step": 2}
        assert repo.params.show()[""]["data"]["dvclive/params.yaml"]["data"] == {"lr": 0.1}
        plots = repo.plots.show()["workspace"]["sources"]["data"]
    (curve,) = (content["data"] for name, content in plots.items() if name.endswith("loss.tsv"))
    assert [(row["step"], row["loss"]) for row in curve] == [("0", "0.0"), ("1", "1.0"), ("2", "2.0")]
    assert (tmp_path / "dvclive" / "artifacts" / "notes" / "step-2" / "readme.dvc").exists()


def test_a_live_that_is_given_is_written_through(tmp_path, monkeypatch):
    """Its tables may have begun without times, and go on as they are."""
    monkeypatch.chdir(tmp_path)
    live = Live(dir=str(tmp_path / "given"), save_dvc_exp=False, dvcyaml=False)
    live.log_metric("loss", 0.0)
    tracker = DVCLiveTracker(live=live)
    tracker.restore({})
    tracker.start()
    tracker.log_batch([Row(step, {"loss": float(step)}, 1) for step in (1, 2)])
    tracker.flush()
    tracker.finish()
    assert [tuple(row.values()) for row in parse_tsv(tmp_path / "given" / "plots" / "metrics" / "loss.tsv")] == [
        ("0", "0.0"),
        ("1", "1.0"),
        ("2", "2.0"),
    ]


def test_values_that_are_not_to_be_plotted_are_in_the_summary_only(tracker, tmp_path):
    """``plot=False`` among the arguments of ``log``, as with ``log_metric``."""
    tracker.log_batch([Row(1, {"loss": 1.0}, 1, log_kwargs={"plot": False})])
    tracker.finish()
    assert summary(tmp_path / "out") == {"loss": 1.0, "step": 1}
    assert not files(tmp_path / "out" / "plots")


def files(directory):
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def git(directory):
    """Make a repository with one commit."""
    (directory / "readme").write_text("hello\n")
    for command in (["init", "-q"], ["add", "readme"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=directory, check=True)
