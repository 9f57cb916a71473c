"""The Aim tracker with repositories of files, read back with Aim's readers."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("aim")

from aim import Repo
from aim.sdk.errors import MissingRunError
from aim.storage.context import Context

from accelbus.blobs import BlobStore
from accelbus.media import TIME, Artifact, Audio, Figure, Histogram, Image, Table, Video
from accelbus.testing import Arrived, Point, ReadBack, SinkContract, state_dir
from accelbus.tracking import Row, RunInfo
from accelbus.values import flatten
from accelbus_sinks.aim import AimTracker
from tests.support import aim_reader as reader
from tests.support.arrivals import aim as found


@pytest.fixture(scope="module")
def empty_repository(tmp_path_factory):
    """A repository without runs: to make one takes Aim a second or more."""
    directory = tmp_path_factory.mktemp("aim")
    Repo.from_path(str(directory), init=True)
    return directory


class TestAim(SinkContract):
    """Numbers are metrics, text and lists are texts; a point that comes again is replaced."""

    tracker_class = AimTracker
    replaces_attempts = True

    @pytest.fixture(autouse=True)
    def _repositories(self, empty_repository):
        self.empty_repository = empty_repository

    def open(self, logging_dir, checkpoint):
        prepare(self.empty_repository, logging_dir)
        return super().open(logging_dir, checkpoint)

    def _child(self, logging_dir, script):
        prepare(self.empty_repository, logging_dir)
        return super()._child(logging_dir, script)

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        run = reader.run_of(logging_dir, f"contract-{logging_dir.name}")
        return found.arrived(run, reader.keys(state_dir(logging_dir)), logging_dir / "artifacts")

    def read(self, logging_dir: Path) -> ReadBack:
        run = reader.run_of(logging_dir, f"contract-{logging_dir.name}")
        points = [Point(*point) for point in reader.points(run, state_dir(logging_dir))]
        return ReadBack(points, flatten(run.get("hparams", {})), run["accelbus", "status"])

    def has_stored(self, text: str, tmp_path: Path) -> bool:
        run = reader.run_of(tmp_path / "output", "contract-output")
        return text in json.dumps(run.get("__system_params", {})) or text in dict(printed(run)).values()


def prepare(empty_repository, logging_dir):
    """Copy the *empty_repository* to where a tracker would make one."""
    if not logging_dir.exists():
        shutil.copytree(empty_repository, logging_dir)


def test_a_process_killed_inside_start_leaves_one_run(repository, tmp_path):
    """The next process makes the same one: its hash follows from our run id."""
    script = f"""
import os
from pathlib import Path
from accelbus.tracking import RunInfo
from accelbus_sinks.aim import AimTracker
AimTracker._describe = lambda *_: os.kill(os.getpid(), 9)
tracker = AimTracker("project", {str(repository)!r})
tracker.run_info = RunInfo("run", state_dir=Path({str(tmp_path)!r}))
tracker.start()
"""
    child = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False, timeout=60
    )
    assert child.returncode == -signal.SIGKILL
    (left,) = reader.hashes(repository)
    tracker = opened(repository, tmp_path)
    tracker.log_batch([row(1, {"loss": 1.0})])
    tracker.finish("finished")
    assert reader.hashes(repository) == [left]
    assert reader.points(reader.run_of(repository, "run"), tmp_path)[0][:3] == (1, "loss", 1.0)


def test_locks_that_a_killed_process_left_hold_up_nobody(repository, tmp_path):
    """Also those of another host, and of a process id that another process has now: Aim alone would wait minutes, or refuse."""
    opened(repository, tmp_path).finish()
    (run_hash,) = reader.hashes(repository)
    locks = repository / ".aim" / "locks"
    (locks / "structured_db_lock").write_text("1\nanother-host\n")
    (locks / f"{run_hash}.softlock").write_text(f"{uuid.getnode()}-{os.getppid()}-1.0")
    began = time.monotonic()
    tracker = opened(repository, tmp_path)
    tracker.log_batch([row(1, {"loss": 1.0})])
    tracker.finish()
    assert time.monotonic() - began < 20


def test_a_key_may_be_number_and_text(repository, tmp_path):
    """Aim takes one type per name, so the second one gets a name of its own, in every process."""
    tracker = opened(repository, tmp_path)
    tracker.log_batch([row(1, {"status": 1.0}), row(2, {"status": "done"})])
    tracker.finish()
    tracker = opened(repository, tmp_path)
    tracker.log_batch([row(3, {"status": "gone"}), row(4, {"status": 2.0})])
    tracker.finish()
    found = [point[:3] for point in reader.points(reader.run_of(repository, "run"), tmp_path)]
    assert sorted(found) == [(1, "status", 1.0), (2, "status", "done"), (3, "status", "gone"), (4, "status", 2.0)]


def test_no_key_is_taken_for_aims_own_names(repository, tmp_path):
    """What the run prints is Aim's series ``logs``; a key of that name is another series."""
    tracker = opened(repository, tmp_path)
    tracker.log_batch([row(1, {"logs": 1.0, "": 2.0})])
    tracker.log_console(["epoch 1"])
    tracker.finish()
    run = reader.run_of(repository, "run")
    assert sorted(point[:3] for point in reader.points(run, tmp_path)) == [(1, "", 2.0), (1, "logs", 1.0)]
    assert printed(run) == [(0, "epoch 1")]


def test_ranks_and_subsets_are_contexts(repository, tmp_path):
    """A key that ends in a rank is that rank's context; ``context`` and ``epoch`` of ``log_kwargs`` are passed on."""
    tracker = opened(repository, tmp_path)
    tracker.log_batch([row(1, {"loss/rank0": 1.0, "loss/rank3": 3.0, "loss": 2.0, "rank1": 0.0})])
    tracker.log_batch([row(1, {"loss": 4.0})._replace(log_kwargs={"context": {"subset": "val"}, "epoch": 7})])
    tracker.log({"loss": 5.0}, step=2, context={"subset": "val"})
    tracker.finish()
    run = reader.run_of(repository, "run")
    found = {(name, *context.items()): [value for _, value, _ in items] for _, name, context, items in reader.sequences(run)}
    assert found == {
        ("loss", ("rank", 0)): [1.0], ("loss", ("rank", 3)): [3.0], ("loss",): [2.0], ("rank1",): [0.0], ("loss", ("subset", "val")): [4.0, 5.0],
    }  # fmt: skip
    _, (_, epoch, _) = next(iter(run.get_metric("loss", Context({"subset": "val"})).data.items()))
    assert epoch == 7


def test_the_last_value_is_that_of_the_newest_point(repository, tmp_path):
    """Aim goes on to show the first value of a step that is stored again."""
    tracker = opened(repository, tmp_path)
    tracker.log_batch([row(1, {"loss": 3.0}), row(2, {"loss": 2.0}), row(2, {"loss": 1.0}), row(1, {"loss": 4.0})])
    tracker.finish()
    (info,) = reader.run_of(repository, "run").collect_sequence_info("metric")["metric"]
    assert (info["values"]["last"], info["values"]["last_step"]) == (1.0, 2)


def test_media_are_objects_of_aims_or_files(repository, tmp_path):
    """Pictures, sound, distributions and figures are shown; what Aim has no kind for is a text or a file; each once."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").write_bytes(b"\x01\x02")
    store = BlobStore(tmp_path / "blobs", "test", quota=1 << 20)
    wrapped = {
        "samples": Image(np.full((4, 6, 3), 200, np.uint8), caption="a cat"),
        "clip": Video(np.zeros((3, 8, 8, 3), np.uint8)),
        "curve": Figure(_Plotly()),
        "weights": Histogram([1.0, 2.0, 2.0], bins=2),
        "uneven": Histogram(np_histogram=([1, 2], [0.0, 1.0, 10.0])),
        "beep": Audio(np.zeros(8), sample_rate=8000, caption="a beep"),
        "confusion": Table(columns=["truth", "share"], data=[["cat", 0.5]]),
        "model": Artifact(model, name="../best model", type="model", aliases=["best"]),
    }
    tracker = opened(repository, tmp_path)
    for _ in range(2):  # as after a crash
        for key, wrapper in wrapped.items():
            media = wrapper.to_media(store)
            media.directory = str(tmp_path / "blobs")
            tracker.log_media(key, media, 5)
    tracker.alert("NaN", "loss is NaN", "error")
    tracker.finish()

    run = reader.run_of(repository, "run")
    images = sequence(run, "images")
    assert {name: [step for step, _, _ in items] for name, items in images.items()} == {"samples": [5], "clip": [5]}
    assert (images["samples"][0][1].caption, images["samples"][0][1].to_pil_image().size) == ("a cat", (6, 4))
    assert images["clip"][0][1].format == "GIF"
    ((_, beep, _),) = sequence(run, "audios")["beep"]
    assert beep.json() == {"caption": "a beep", "format": "wav"}
    ((_, weights, _),) = sequence(run, "distributions")["weights"]
    assert (weights.weights.tolist(), weights.range) == ([1.0, 2.0], [1.0, 2.0])
    ((_, curve, _),) = sequence(run, "figures")["curve"]
    assert json.loads(curve.data)["data"][0]["type"] == "scatter"
    ((_, table, _),) = sequence(run, "texts")["confusion"]
    assert table.data.startswith("| truth | share |")
    ((_, (alert, *_)),) = run.get_log_records().data.items()
    assert (alert.message, alert.level) == ("NaN: loss is NaN", logging.ERROR)
    assert sorted(run.artifacts) == ["best model/step_5/model/weights.bin", "uneven/step_5/uneven-5.json"]
    assert run["files", "../best model"] == {"path": "best model/step_5/model", "type": "model", "aliases": ["best"]}
    assert (repository / "artifacts" / run.hash / "best model" / "step_5" / "model" / "weights.bin").read_bytes() == b"\x01\x02"


def test_media_have_the_time_of_their_rank(repository, tmp_path):
    """Not that of the row before them."""
    tracker = opened(repository, tmp_path)
    tracker.log_batch([row(1, {"loss": 1.0})])
    media = Image(np.zeros((4, 6, 3), np.uint8)).to_media(BlobStore(tmp_path / "blobs", "test", quota=1 << 20))
    media.directory = str(tmp_path / "blobs")
    media.meta[TIME] = 10**18
    tracker.log_media("sample", media, 5)
    tracker.finish()
    assert [seconds for _, _, seconds in sequence(reader.run_of(repository, "run"), "images")["sample"]] == [1e9]


def test_a_run_without_a_name_is_called_as_the_job_says(repository, tmp_path):
    """The run id stands in for a display name that nobody gave: the name in ``init`` comes before it, as with Accelerate."""
    tracker = opened(repository, tmp_path, name="run")
    tracker.finish()
    assert reader.run_of(repository, "run").name == "project"


def test_what_the_run_says_of_itself_is_recorded(repository, tmp_path):
    """Name, experiment, tags and notes in their places, the record where Aim shows it, printed lines each once."""
    info = {"name": "a name", "group": "a group", "tags": ("baseline",), "notes": "a note"}
    tracker = opened(repository, tmp_path, **info)
    tracker.store_run_record(
        {"argv": ["train.py"], "packages": {"torch": "2.13"}, "git": {"commit": "abc", "branch": "main"}, "host": "node1"}
    )
    tracker.log_console(["epoch 1", "\udfff"])
    checkpoint = tracker.checkpoint()
    tracker.log_console(["comes again"])
    tracker.define_metric("eval/*", summary="max", goal="maximize")
    tracker._run.close()
    tracker = opened(repository, tmp_path, checkpoint, **info)
    tracker.log_console(["comes again"])
    tracker.summarise({"best": 0.9})
    tracker.summarise({"best": 0.95, "word": "good"})
    tracker.define_metric("loss", summary="min")
    tracker.finish("preempted")
    run = reader.run_of(repository, "run")
    assert (run.name, run.experiment, run.description, sorted(run.tags)) == ("a name", "project", "a note", ["a group", "baseline"])
    assert run["__system_params", "packages"] == {"torch": "2.13"}
    assert run["__system_params", "git_info", "commit", "hash"] == "abc"
    assert (run["run_record", "host"], run["summary"]) == ("node1", {"best": 0.95, "word": "good"})
    assert set(run["definitions"]) == {"eval/*", "loss"}
    assert run["accelbus"] == {"run_id": "run", "status": "preempted"}
    assert printed(run) == [(0, "epoch 1"), (1, "\\udfff"), (2, "comes again")]


def test_parameters_that_aim_cannot_hold_are_text(repository, tmp_path):
    """Huge integers and lone surrogates; an empty name would be read back as a number."""
    tracker = opened(repository, tmp_path)
    tracker.store_init_configuration({"seed": 2**70, "sur": "\ud800", "": {"": 1, "unnamed": 2}, "list": [2**70, (1, None)], "none": None})
    tracker.finish()
    assert reader.run_of(repository, "run")["hparams"] == {
        "seed": str(2**70), "sur": "\\ud800", "unnamed": {"unnamed": 1, "unnamed_": 2}, "list": [str(2**70), [1, None]], "none": None,
    }  # fmt: skip


def test_runs_may_share_a_repository(repository, tmp_path, monkeypatch):
    """Named by ``repo``, relative to the job's directory, they are fed in turns and keep their points."""
    monkeypatch.setenv("PWD", str(repository.parent))
    names = ("one", "two")
    trackers = [opened(tmp_path / "unused", tmp_path / name, run_id=name, repo=repository.name) for name in names]
    for step in range(3):
        for number, tracker in enumerate(trackers):
            tracker.log_batch([row(step, {"loss": 10.0 * number + step})])
    for number, name in enumerate(names):
        trackers[number].finish()
        found = [value for _, _, value, _ in reader.points(reader.run_of(repository, name), tmp_path / name)]
        assert found == [10.0 * number, 10.0 * number + 1, 10.0 * number + 2]
    assert not (tmp_path / "unused").exists()


def test_a_run_of_aims_is_continued_by_its_hash(repository, tmp_path):
    """``run_hash`` leads to a run that somebody else made; one that is not there is an error, and no other run."""
    made = opened(repository, tmp_path, run_id="first")
    run_hash = made.tracker.hash
    made.finish()
    tracker = opened(repository, tmp_path, run_id="second", run_hash=run_hash)
    tracker.log_batch([row(1, {"loss": 1.0})])
    tracker.finish()
    assert reader.hashes(repository) == [run_hash]
    with pytest.raises(MissingRunError):
        opened(repository, tmp_path, run_hash="0" * 24)


def test_an_unknown_argument_is_refused(tmp_path):
    """A typing error does not pass in silence."""
    with pytest.raises(TypeError, match=r"'experimnt' \(known: .*experiment"):
        AimTracker("project", tmp_path, experimnt="x")


class _Plotly:
    """A figure as far as `accelbus.Figure` looks at it."""

    def to_json(self):
        return '{"data": [{"type": "scatter", "x": [1, 2], "y": [3, 4]}], "layout": {}}'


@pytest.fixture
def repository(empty_repository, tmp_path):
    """A repository of the test's own, without runs."""
    prepare(empty_repository, tmp_path / "repository")
    return tmp_path / "repository"


def opened(directory, state, checkpoint=None, *, run_id="run", name="", group="", tags=(), notes="", **arguments):
    """Return a started tracker of *run_id*."""
    tracker = AimTracker("project", directory, **arguments)
    tracker.run_info = RunInfo(run_id, "project", name, group, tags, notes, state_dir=state, output_dir=directory)
    tracker.restore(checkpoint or {})
    tracker.start()
    return tracker


def row(step, values):
    """Return a row with a time of long ago."""
    return Row(step, values, 1_700_000_000_000_000_000)


def sequence(run, kind):
    """Return {name: [(step, object, seconds)]} of one kind."""
    return {name: items for found, name, _, items in reader.sequences(run) if found == kind}


def printed(run):
    """Return [(number, line)] of the console."""
    logs = run.get_terminal_logs()
    return [(number, line.data) for number, (line, *_) in logs.data.items()] if logs else []
