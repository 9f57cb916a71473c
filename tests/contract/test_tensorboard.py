"""The TensorBoard tracker, read back with TensorBoard's own readers."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorboard")

import numpy as np
import PIL.Image

from accelbus.media import Artifact, Audio, Figure, Histogram, Html, Image, Table, Video
from accelbus.testing import Arrived, Point, ReadBack, SinkContract
from accelbus.tracking import Row
from accelbus_sinks.tensorboard import TensorBoardTracker
from tests.support import tensorboard_readers as readers
from tests.support.arrivals import tensorboard as found
from tests.support.killed_start import killed_starts
from tests.support.media import media


class TestTensorBoard(SinkContract):
    """Scalars are 32-bit floats; text and lists are in the Text tab."""

    tracker_class = TensorBoardTracker
    tolerance = 1e-6

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        return found.arrived(logging_dir)

    def read(self, logging_dir: Path) -> ReadBack:
        points = [Point(*point) for point in readers.scalars(logging_dir)]
        points += [
            Point(step, key, json.loads(text) if text.startswith("[") else text, time)
            for step, key, text, time in readers.texts(logging_dir)
        ]
        sessions = readers.sessions(logging_dir)
        return ReadBack(points, readers.hyperparameters(sessions), readers.status(sessions))


@pytest.fixture
def tracker(tmp_path):
    """A started tracker of the run ``run`` in ``tmp_path``."""
    return _started(tmp_path, "run")


def test_the_hparams_tab_shows_hyperparameters_and_curves_of_every_run(tmp_path):
    """Each run is one row of the tab, with its own hyperparameters, its last values as metrics, and no run beside it."""
    for name, lr in (("a", 0.1), ("b", 0.2)):
        tracker = _started(tmp_path, name)
        tracker.store_init_configuration({"lr": lr, "opt": {"name": "adam"}, name: True})
        tracker.log_batch([Row(step, {"loss": lr / step, "accuracy": 0.5}, step * 10**9) for step in (1, 2)])
        tracker.finish("finished" if name == "a" else "killed")

    assert readers.runs(tmp_path) == ["a", "b"]
    columns = readers.experiment(tmp_path)
    assert {info.name for info in columns.hparam_infos} == {"lr", "opt/name", "a", "b"}
    assert {info.name.tag for info in columns.metric_infos} == {"loss", "accuracy"}
    groups = sorted(readers.sessions(tmp_path), key=lambda group: group.name)
    assert [group.name for group in groups] == ["a", "b"]
    assert [readers.hyperparameters([group])["lr"] for group in groups] == [0.1, 0.2]
    assert [readers.status([group]) for group in groups] == ["finished", "failed"]
    losses = [metric.value for group in groups for metric in group.metric_values if metric.name.tag == "loss"]
    assert losses == pytest.approx([0.05, 0.1])


def test_hyperparameters_that_the_tab_cannot_hold_are_text(tracker, tmp_path):
    """Numbers that are not finite (they break the tab's JSON), lists, None, long texts and huge integers do not break it."""
    tracker.store_init_configuration(
        {"nan": math.nan, "list": [1, "two"], "none": None, "long": "x" * 5000, "seed": 2**60, "sur": "\ud800"}
    )
    tracker.finish()
    shown = readers.hyperparameters(readers.sessions(tmp_path))
    assert shown == {"nan": "NaN", "list": '[1, "two"]', "none": "None", "long": "x" * 1023 + "…", "seed": str(2**60), "sur": "\\ud800"}
    assert json.loads((tmp_path / "run" / "hparams.yml").read_text())["long"] == "x" * 5000


def test_all_scalars_of_a_row_are_one_event(tracker, tmp_path):
    """A step costs one record, whatever its number of values."""
    tracker.log_batch([Row(step, {"loss": 1.0, "accuracy": 0.5, "lr": 0.1}, step) for step in range(5)])
    tracker.finish()
    events = readers.events(next((tmp_path / "run").glob("*.accelbus")))
    assert [len(event.summary.value) for event in events] == [0, 3, 3, 3, 3, 3]
    assert events[0].file_version == "brain.Event:2"


@pytest.mark.skipif(find_spec("tensorboard_data_server") is None, reason="TensorBoard runs without its data server here")
def test_late_values_hide_nothing_from_the_data_server(tracker, tmp_path):
    """TensorBoard's data server drops a curve from a step that goes back; it still shows every point, each with its newest value."""
    tracker.log_batch([Row(step, {"loss": float(step)}, step) for step in range(10)])
    tracker.flush()
    tracker.log_batch([Row(4, {"loss": 40.0}, 4), Row(10, {"loss": 10.0}, 10), Row(2, {"loss": 20.0}, 2)])
    tracker.finish()
    expected = [(step, {4: 40.0, 2: 20.0}.get(step, float(step))) for step in range(11)]
    assert readers.data_server_scalars(tmp_path, "loss", len(expected)) == expected


def test_values_beyond_32_bit_floats_become_infinite_and_are_named_once(tracker, tmp_path, caplog):
    """TensorBoard's scalars end at 3.4e38; a value beyond is shown as infinity, with one warning for its key."""
    tracker.log_batch([Row(step, {"big": 1e300, "negative": -(10**400), "loss": 1.0}, step) for step in (1, 2)])
    tracker.finish()
    found = {(step, key): value for step, key, value, _ in readers.scalars(tmp_path)}
    assert (found[1, "big"], found[2, "negative"], found[2, "loss"]) == (math.inf, -math.inf, 1.0)
    assert sorted(message.split("'")[1] for message in caplog.messages) == ["big", "negative"]


def test_none_is_no_value(tracker, tmp_path):
    """A value that is None leaves no point, and does not disturb its neighbours."""
    tracker.log_batch([Row(1, {"loss": 1.0, "skipped": None}, 1), Row(2, {"skipped": None}, 2), Row(3, {}, 3)])
    tracker.finish()
    assert [(step, key) for step, key, _, _ in readers.scalars(tmp_path)] == [(1, "loss")]


def test_keys_that_change_with_every_row_cost_bounded_memory(tracker, tmp_path, monkeypatch):
    """Prepared layouts are forgotten when there are too many, and rows are right before and after."""
    monkeypatch.setattr("accelbus_sinks._tfevents.LAYOUT_KEYS_KEPT", 10)
    tracker.log_batch([Row(step, {f"key{step % 7}": float(step), "loss": 1.0}, step) for step in range(50)])
    tracker.finish()
    assert sorted((step, value) for step, key, value, _ in readers.scalars(tmp_path) if key != "loss") == [
        (step, float(step)) for step in range(50)
    ]
    assert len(tracker._encoder._layouts) < 10


def test_the_newest_file_sorts_last_though_the_clock_went_back(tmp_path, monkeypatch):
    """Readers take files by name, so a restart after a clock step still continues the run."""
    for now, step in ((2_000_000_000.0, 1), (1_000_000_000.0, 2)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        tracker = _started(tmp_path, "run")
        tracker.log_batch([Row(step, {"loss": float(step)}, step)])
        tracker.finish()
    files = sorted((tmp_path / "run").glob("*.accelbus"))
    assert [readers.events(file)[-1].step for file in files] == [1, 2]


def test_a_run_name_cannot_leave_the_logging_directory(tmp_path):
    """Names with slashes and dots become directories below."""
    for name in ("team/run", "../../run", "/run", ""):
        assert _started(tmp_path, name).tracker.resolve().is_relative_to(tmp_path)


def test_event_files_of_others_are_left_alone(tmp_path):
    """Starting anew sets aside our own files only."""
    other = tmp_path / "run" / "events.out.tfevents.2000000000.host.1.0"
    other.parent.mkdir()
    other.write_bytes(b"")
    tracker = TensorBoardTracker("run", tmp_path)
    tracker.restore({})
    tracker.start()
    assert other.exists()


def test_media_are_in_their_tabs(tracker, tmp_path):
    """Images, histograms and sound where TensorBoard has them, under their key and with their own time; a curve may have the same key."""
    for value, key in (
        (Image(np.zeros((4, 5, 3), np.uint8), caption="black"), "samples"),
        (Figure(figure()), "plot"),
        (Video(np.zeros((2, 6, 7, 3), np.uint8)), "clip"),
        (Histogram([1.0, 2.0, 2.0], bins=2), "loss"),
        (Audio(np.zeros(800), sample_rate=8000, caption="silence"), "sound\ud800"),
    ):
        tracker.log_media(key, media(value, tmp_path, 1_700_000_000_500_000_000), 7)
    tracker.log_batch([Row(7, {"loss": 1.0}, 1)])
    tracker.finish()

    images = readers.shown(tmp_path, "images")
    assert {tag: name for tag, (name, _) in images.items()} == {
        "samples/image_summary": "samples",
        "plot/image_summary": "plot",
        "clip/image_summary": "clip",
    }
    ((step, seconds, (width, height, png)),) = images["samples/image_summary"][1]
    assert (step, seconds, width, height) == (7, 1_700_000_000.5, b"5", b"4")
    assert PIL.Image.open(io.BytesIO(png)).size == (5, 4)
    assert images["clip/image_summary"][1][0][2][:2] == [b"7", b"6"]
    assert images["clip/image_summary"][1][0][2][2].startswith(b"GIF")
    ((_, _, bins),) = readers.shown(tmp_path, "histograms")["loss/histogram_summary"][1]
    assert bins.tolist() == [[1.0, 1.5, 1.0], [1.5, 2.0, 2.0]]
    ((tag, (name, points)),) = readers.shown(tmp_path, "audio").items()
    assert (tag, name) == ("sound\\ud800/audio_summary", "sound\\ud800")
    assert points[0][2][0].startswith(b"RIFF")
    assert ("samples/caption", "black") in {(key, text) for _, key, text, _ in readers.texts(tmp_path)}
    assert [value for _, key, value, _ in readers.scalars(tmp_path) if key == "loss"] == [1.0]


def test_what_has_no_tab_is_a_file_with_a_word_on_the_text_tab(tracker, tmp_path):
    """Tables are Markdown there; files, pages, plotly figures and sound that is no WAV lie below the run's directory."""
    (tmp_path / "net.pt").write_text("w")
    (tmp_path / "song.mp3").write_bytes(b"mp3")
    for value, key in (
        (Table(["a", "b"], [[1, "x|y"]]), "table"),
        (Artifact(tmp_path / "net.pt", name="net", type="model", aliases=["best"]), "model"),
        (Html("<b>hi</b>"), "page"),
        (Figure(SimpleNamespace(to_json=lambda: "{}")), "plotly"),
        (Audio(tmp_path / "song.mp3"), "song"),
    ):
        tracker.log_media(key, media(value, tmp_path), 3)
    tracker.finish()
    texts = {key: text for _, key, text, _ in readers.texts(tmp_path)}
    assert texts == {
        "table": "| a | b |\n| --- | --- |\n| 1 | x\\|y |",
        "model": "model **net** (best): `artifacts/net/step-3/net.pt`",
        "page": "html: `files/page-3.html`",
        "plotly": "figure: `files/plotly-3.json`",
        "song": "audio: `files/song-3.mp3`",
    }
    files = {path.name: path.read_bytes() for path in (tmp_path / "run" / "files").iterdir()}
    assert files == {"page-3.html": b"<b>hi</b>", "plotly-3.json": b"{}", "song-3.mp3": b"mp3"}


def test_the_hparams_tab_shows_the_summary_of_a_finished_run(tracker, tmp_path):
    """As metrics ``summary/…``; ``summary.json`` has them at once, and the last call counts."""
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log_batch([Row(9, {"loss": 1.0}, 1)])
    tracker.summarise({"best": 0.5})
    tracker.summarise({"best": 0.25, "verdict": "good"})
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"best": 0.25, "verdict": "good"}
    tracker.finish()
    (group,) = readers.sessions(tmp_path)
    assert {metric.name.tag: metric.value for metric in group.metric_values} == {"loss": 1.0, "summary/best": 0.25}
    assert [(step, text) for step, key, text, _ in readers.texts(tmp_path) if key == "summary/verdict"] == [(9, "good")]


def test_the_circumstances_of_a_run_and_its_alerts_are_on_the_text_tab(tmp_path):
    """A table, with long texts below it; once, however often it is told after a restart."""
    facts = {"command": "train.py --lr 0.1", "git": {"commit": "abc"}, "patch": "-a\n+b"}
    tracker = _started(tmp_path, "run")
    tracker.store_run_record(facts)
    tracker.log_batch([Row(4, {"loss": 1.0}, 1)])
    tracker.alert("loss is NaN", "stopping", "error")
    tracker.define_metric("loss", summary="min")
    tracker.log_console(["hello"])
    tracker.flush()
    again = _started(tmp_path, "run", tracker.checkpoint())
    again.store_run_record(facts)
    again.finish()
    texts = [(step, key, text) for step, key, text, _ in readers.texts(tmp_path)]
    assert texts == [
        (0, "run_record", "| | |\n|---|---|\n| command | train.py --lr 0.1 |\n| git/commit | abc |\n\n**patch**\n\n```\n-a\n+b\n```"),
        (4, "alerts", "**error: loss is NaN**\n\nstopping"),
    ]
    assert json.loads((tmp_path / "run" / "run_record.json").read_text()) == facts
    assert json.loads((tmp_path / "run" / "definitions.json").read_text())["loss"]["summary"] == "min"
    assert json.loads((tmp_path / "run" / "alerts.jsonl").read_text())["level"] == "error"
    assert (tmp_path / "run" / "console.log").read_text() == "hello\n"


def test_arguments_of_a_summary_writer_are_accepted_and_others_refused(tmp_path):
    """What Accelerate's users pass works; a typing error does not pass in silence."""
    assert TensorBoardTracker("run", tmp_path, flush_secs=60, max_queue=100)
    with pytest.raises(TypeError, match=r"'flush_sec' \(known: .*flush_secs"):
        TensorBoardTracker("run", tmp_path, flush_sec=60)


def test_neither_torch_nor_tensorflow_is_needed(tmp_path):
    """A whole run is written in a process that cannot import them."""
    script = f"""
import sys
sys.modules["torch"] = sys.modules["tensorflow"] = None
sys.path[:] = {sys.path!r}
from accelbus_sinks.tensorboard import TensorBoardTracker
tracker = TensorBoardTracker("run", {str(tmp_path)!r})
tracker.start()
tracker.store_init_configuration({{"lr": 0.1}})
tracker.log({{"loss": 1.0, "note": "text"}}, step=1)
tracker.finish()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert [(step, value) for step, _, value, _ in readers.scalars(tmp_path)] == [(1, 1.0)]


def test_killed_inside_start_leaves_one_run(tmp_path):
    """Wherever in ``start`` a process dies, the next one has the run, with each value once."""
    left = killed_starts(TensorBoardTracker, tmp_path)
    assert len(left) >= 5
    for directory in left:
        tracker = _started(directory / "out", "run")
        tracker.log({"loss": 1.0}, step=1)
        tracker.finish("finished")
        assert readers.runs(directory / "out") == ["run"]
        assert [(step, key, value) for step, key, value, _ in readers.scalars(directory / "out")] == [(1, "loss", 1.0)]


def _started(logging_dir, name, checkpoint=None):
    tracker = TensorBoardTracker(name, logging_dir)
    tracker.restore(checkpoint or {})
    tracker.start()
    return tracker


def figure():
    from matplotlib.figure import Figure

    drawn = Figure((1, 1))
    drawn.subplots().plot([1, 2])
    return drawn
