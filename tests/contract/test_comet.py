"""The Comet tracker offline, its archives read as ``comet upload`` reads them."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

pytest.importorskip("comet_ml")

import comet_ml
import numpy as np
import PIL.Image

from accelbus.errors import ConfigurationError
from accelbus.media import Artifact, Audio, Figure, Histogram, Html, Image, Table, Video
from accelbus.testing import Arrived, Point, ReadBack, SinkContract, state_dir
from accelbus.tracking import Row, RunInfo
from accelbus_sinks._comet_start import NO_CAPTURE, alone
from accelbus_sinks._keys import read_keys
from accelbus_sinks.comet import CometMLTracker
from tests.support import comet_readers as readers
from tests.support.arrivals import comet_ml as found
from tests.support.comet_readers import archives
from tests.support.media import media


class TestComet(SinkContract):
    """Numbers are metrics; text and lists are Others, text samples, and lines of a file."""

    tracker_class = CometMLTracker
    init_kwargs: ClassVar = {"online": False}

    arrivals = found.ARRIVALS

    def arrived(self, logging_dir: Path) -> Iterable[Arrived]:
        (archive,) = archives(logging_dir)
        keys = {name: key for key, name in read_keys(state_dir(logging_dir) / "keys.json").items()}
        return found.arrived(archive, lambda name: keys.get(name, name))

    def read(self, logging_dir: Path) -> ReadBack:
        keys = {name: key for key, name in read_keys(state_dir(logging_dir) / "keys.json").items()}
        points, config, others = [], {}, {}
        for archive in archives(logging_dir):
            points += [Point(step, keys.get(name, name), value, time) for step, name, value, time in archive.metrics()]
            config.update((keys.get(name, name), value) for name, value in archive.parameters().items())
            others.update(archive.others())
        for line in map(json.loads, archive.text("texts.jsonl").splitlines()):
            value = line["value"]
            points.append(Point(line["step"], line["key"], json.loads(value) if value.startswith("[") else value, line["time"]))
        config.pop("curr_step", None)
        return ReadBack(points, config, others["status"])


@pytest.fixture(autouse=True)
def _environment(tmp_path, monkeypatch):
    for name, value in CometMLTracker.environment(tmp_path, os.environ).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def tracker(tmp_path):
    """A started tracker that writes to ``tmp_path / "out"``."""
    return opened(tmp_path)


def opened(tmp_path, checkpoint=None, *, name="out", **kwargs):
    info = RunInfo(
        run_id=f"digits-{name}",
        project="digits",
        name="a name",
        group="a group",
        tags=("one", "two"),
        notes="some notes",
        state_dir=tmp_path / "state" / name,
        output_dir=tmp_path / name,
    )
    tracker = CometMLTracker("digits", **{"online": False, **kwargs})
    tracker.run_info = info
    tracker.restore(checkpoint or {})
    tracker.start()
    return tracker


def archive_of(tracker, status="finished"):
    """Finish and read."""
    tracker.finish(status)
    (archive,) = archives(Path(tracker.url).parent)
    return archive


def test_the_run_is_described_in_comets_own_fields(tracker):
    """Project, name, tags, group, notes and run id; the key of the experiment begins as the run id says."""
    archive = archive_of(tracker)
    assert archive.experiment["project_name"] == "digits"
    assert sorted(archive.experiment["tags"]) == ["one", "two"]
    others = archive.others()
    assert (others["Name"], others["group"], others["notes"], others["run id"]) == ("a name", "a group", "some notes", "digits-out")
    assert archive.experiment["offline_id"].startswith(hashlib.sha256(b"digits-out").hexdigest()[:16])


def test_nothing_is_captured_that_nobody_logged(tracker):
    """No code, git, environment, output or arguments of the worker, and no message that sets the step beside each metric."""
    tracker.log_batch([Row(step, {"loss": 1.0}, step) for step in range(10)])
    archive = archive_of(tracker)
    assert {message["type"] for message in archive.messages} == {"metric_msg", "log_other"}
    others = set(archive.others()) - {"sys.already_imported_modules"}  # of this test process
    assert others == {"Name", "group", "notes", "run id", "status", "offline_experiment"}


@pytest.mark.parametrize("status, crashed", [("finished", False), ("failed", True), ("killed", True), ("preempted", True)])
def test_a_run_that_did_not_finish_is_shown_as_crashed(tracker, status, crashed):
    """Comet knows two states; the word itself is an Other."""
    archive = archive_of(tracker, status)
    assert archive.others()["status"] == status
    assert archive.experiment["customer_error_reported"] is crashed
    assert (status in (archive.experiment["customer_error_message"] or "")) is crashed


def test_the_epoch_is_comets_second_axis(tracker):
    """From the row itself, or from the arguments of ``log``."""
    tracker.log_batch([Row(1, {"loss": 1.0, "epoch": 3}, 1), Row(2, {"loss": 1.0}, 2, log_kwargs={"epoch": 4})])
    tracker.log({"loss": 1.0}, step=3, epoch=5)
    tracker.log({"loss": 1.0}, step=4)
    metrics = [payload["metric"] for payload in archive_of(tracker).of("metric_msg")]
    assert [(metric["step"], metric["epoch"]) for metric in metrics if metric["metricName"] == "loss"] == [
        (1, 3),
        (2, 4),
        (3, 5),
        (4, None),
    ]


def test_long_configurations_are_complete_in_a_file(tracker):
    """Comet cuts values at 1,000 characters and names at 100."""
    tracker.store_init_configuration({"prompt": "x" * 5000, "n" * 150: 1, "lr": 0.1})
    archive = archive_of(tracker)
    parameters = archive.parameters()
    assert parameters["prompt"] == "x" * 999 + "…"
    assert max(map(len, parameters)) == 100
    assert json.loads(archive.text("config.json")) == {"prompt": "x" * 5000, "n" * 150: 1, "lr": 0.1}


def test_parameters_keep_to_the_servers_rate_and_are_sent_once(tracker, monkeypatch):
    """A configuration of tens of thousands goes out over several flushes, what is left at the end; what Comet has is not sent again."""
    for name, value in (("PARAMETERS_AT_ONCE", 2), ("PARAMETERS_PER_CALL", 6), ("PARAMETERS_PER_FLUSH", 4)):
        monkeypatch.setattr(f"accelbus_sinks.comet.{name}", value)
    sent, waited = [], []
    monkeypatch.setattr(tracker.tracker, "log_parameter", lambda name, value: sent.append((name, value)))
    monkeypatch.setattr(tracker, "_deliver", lambda experiment: None)
    monkeypatch.setattr(tracker._parameter_pace, "wait", waited.append)
    tracker._online = True
    config = {f"p{number}": number for number in range(12)}
    tracker.store_init_configuration(config)
    assert (len(sent), waited) == (6, [2, 2, 2])
    tracker.flush()
    assert len(sent) == 10
    tracker.store_init_configuration({**config, "p0": 7})
    assert sent[10:] == [("p0", 7), ("p10", 10), ("p11", 11)]
    tracker.flush()
    assert len(sent) == 13
    tracker._online = False
    tracker.finish()


def test_a_configuration_beyond_the_servers_rate_is_also_a_file(tracker):
    """It takes a while until all its parameters are there."""
    tracker.store_init_configuration({f"p{number}": number for number in range(2001)})
    archive = archive_of(tracker)
    assert len(json.loads(archive.text("config.json"))) == 2001
    assert len(archive.parameters()) == 2001


def test_every_text_is_in_the_file_and_the_first_ones_on_the_text_tab(tracker, monkeypatch):
    """Comet takes 500 text samples; the newest text of a key is an Other, at most 1,000 characters of it."""
    monkeypatch.setattr("accelbus_sinks._comet_texts.SAMPLES", 3)
    tracker.log_batch([Row(step, {"note": f"text {step}" + "x" * 2000}, step * 10**9) for step in range(5)])
    archive = archive_of(tracker)
    samples = [asset for asset in archive.assets() if asset.kind == "text-sample"]
    assert [(asset.step, asset.metadata["key"], asset.data.decode()[:6]) for asset in samples] == [
        (n, "note", f"text {n}") for n in range(3)
    ]
    assert [json.loads(line)["step"] for line in archive.text("texts.jsonl").splitlines()] == list(range(5))
    assert archive.others()["note"] == ("text 4" + "x" * 2000)[:999] + "…"


def test_a_metric_with_more_values_than_comet_keeps_is_named_once(tracker, monkeypatch):
    """The user learns that ``comet upload`` will take a sample, and how to have more."""
    monkeypatch.setattr("accelbus_sinks.comet.VALUES_PER_METRIC", 5)
    tracker.tell_user = (said := []).append
    tracker.log_batch([Row(step, {"loss": 1.0}, step) for step in range(8)])
    assert len(list(archive_of(tracker).metrics())) == 8
    assert said == [
        "'loss' has more than 5 values, of which Comet keeps a sample; set COMET_OFFLINE_SAMPLING_SIZE for `comet upload` to send more"
    ]


def test_media_arrive_as_what_they_are(tracker, tmp_path):
    """Images, histograms, tables, figures, sound, video and HTML have their own kinds; the key is with each."""
    values = {
        "image": Image(np.zeros((4, 5, 3), np.uint8), caption="black"),
        "histogram": Histogram([1.0, 2.0, 2.0, -3.0]),
        "empty": Histogram([math.nan]),
        "table": Table(["a", "b"], [[1, "x"], [None, "y"]]),
        "no rows": Table(["a", "b"], []),
        "plot": Figure(figure()),
        "plotly": Figure(SimpleNamespace(to_json=lambda: '{"data": []}')),
        "sound": Audio(np.zeros(800), sample_rate=8000),
        "video": Video(np.zeros((2, 4, 4, 3), np.uint8)),
        "page": Html("<b>hi</b>"),
    }
    for key, value in values.items():
        tracker.log_media(key, media(value, tmp_path), 7)
    archive = archive_of(tracker)
    assets = {asset.name: asset for asset in archive.assets()}
    assert {name: asset.kind for name, asset in assets.items()} == {
        "image": "visualization",
        "histogram": "histogram3d",
        "empty.json": "asset",
        "table-7.csv": "asset",
        "no rows-7.csv": "asset",
        "plot": "visualization",
        "plotly.plotly.json": "asset",
        "sound.wav": "audio",
        "video.gif": "video",
    }
    assert {asset.step for asset in assets.values()} == {7}
    assert assets["image"].metadata == {"key": "image", "caption": "black"}
    assert PIL.Image.open(io.BytesIO(assets["image"].data)).size == (5, 4)
    assert sum(count for _, count in json.loads(assets["histogram"].data)["index_values"]) == 4
    assert assets["table-7.csv"].data.decode().split() == ["a,b", "1,x", ",y"]
    assert assets["sound.wav"].data.startswith(b"RIFF")
    assert assets["video.gif"].data.startswith(b"GIF")
    assert "<b>hi</b>" in archive.of("html")[0]["html"]


def test_files_and_directories_are_assets_and_models_are_models(tracker, tmp_path):
    """Offline Comet has no artifacts; name, type and aliases stay with the file."""
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.txt").write_text("a")
    (tmp_path / "weights.pt").write_text("w")
    tracker.log_media("x", media(Artifact(folder, name="data", type="dataset"), tmp_path), 1)
    tracker.log_media("y", media(Artifact(tmp_path / "weights.pt", name="net", type="model", aliases=["best"]), tmp_path), 2)
    tracker.log_media("z", media(Artifact(folder, name="whole", type="model"), tmp_path), 2)
    assets = archive_of(tracker).assets()
    assert [(asset.kind, asset.name, asset.data) for asset in assets] == [
        ("asset", "folder/sub/a.txt", b"a"),
        ("model-element", "weights.pt", b"w"),
        ("model-element", "sub/a.txt", b"a"),
    ]
    assert assets[1].metadata == {"name": "net", "type": "model", "aliases": ["best"]}


def test_what_is_said_of_the_whole_run_arrives(tracker):
    """Summary values, definitions, circumstances, output and alerts."""
    tracker.summarise({"best/loss": 0.25, "verdict": "good", "nan": math.nan})
    tracker.define_metric("eval/*", axis="epoch", summary="min", goal="minimize")
    tracker.store_run_record({"command": ["train.py"], "git": {"commit": "abc"}, "packages": {"torch": "2.13"}})
    tracker.log_console(["one", "two\n"])
    tracker.alert("loss is NaN", "at step 3", "error")
    archive = archive_of(tracker)
    others = archive.others()
    assert (others["best/loss"], others["verdict"], others["nan"]) == (0.25, "good", "NaN")
    assert others["metric eval/*"] == "axis=epoch, summary=min, goal=minimize"
    assert others["alert/error"] == "loss is NaN: at step 3"
    assert {item["system_info"]["key"]: item["system_info"]["value"] for item in archive.of("system_info")} == {
        "command": '["train.py"]',
        "git/commit": "abc",
    }
    assert [(item["name"], item["version"]) for item in archive.of("log_dependency")] == [("torch", "2.13")]
    assert json.loads(archive.text("run_record.json"))["git"] == {"commit": "abc"}
    assert archive.of("standard_output")[0]["output"] == "one\ntwo\n"


def test_a_resumed_run_adds_an_archive_to_the_same_experiment(tmp_path):
    """Uploaded in order they are one experiment; the crash of a later attempt removes nothing of the earlier one."""
    first = opened(tmp_path, mode="create")
    first.log_batch([Row(1, {"loss": 1.0, "note": "one"}, 1)])
    first.finish("failed")
    killed(tmp_path, first.checkpoint())
    second = opened(tmp_path, first.checkpoint(), mode="create")
    second.log_batch([Row(2, {"loss": 2.0, "note": "two"}, 2)])
    second.finish()
    found = archives(tmp_path / "out")
    assert len({archive.experiment["offline_id"] for archive in found}) == 1
    assert [[(step, value) for step, _, value, _ in archive.metrics()] for archive in found] == [[(1, 1.0)], [(2, 2.0)]]
    assert [json.loads(line)["value"] for line in found[1].text("texts.jsonl").splitlines()] == ["one", "two"]


def test_processes_that_are_killed_leave_nothing_behind(tmp_path):
    """Inside ``start`` or after their last ``log``: the next one makes the run's only archive, and no temporary data stays."""
    killed(tmp_path, {}, after_ms=(1, 2, 5, 10, 0))
    tracker = opened(tmp_path)
    tracker.log_batch([Row(step, {"loss": 1.0}, step) for step in range(3)])
    archive = archive_of(tracker)
    assert [step for step, *_ in archive.metrics()] == [0, 1, 2]
    assert [path.name for path in (tmp_path / "state" / "out" / "temporary").iterdir()] == []


def test_archives_of_others_are_left_alone(tmp_path):
    """In a directory that several runs share only what this run made is removed."""
    other = opened(tmp_path, name="other", offline_directory=str(tmp_path / "shared"), experiment_key="a" * 32)
    other.log_batch([Row(1, {"loss": 1.0}, 1)])
    other.finish()
    tracker = opened(tmp_path, name="mine", offline_directory=str(tmp_path / "shared"), experiment_key="a" * 32)
    tracker.finish()
    assert [len(list(archive.metrics())) for archive in archives(tmp_path / "shared")] == [1, 0]


def test_an_experiment_of_the_same_process_goes_on(tracker, tmp_path):
    """Comet would end it when the tracker starts: a training script may have one of its own."""
    with tempfile.TemporaryDirectory() as directory:
        config = comet_ml.ExperimentConfig(offline_directory=directory, **NO_CAPTURE)
        with alone(None):
            own = comet_ml.start(online=False, experiment_config=config)
        opened(tmp_path, name="second").finish()
        assert not own.ended
        own.end()
    tracker.finish()


def test_an_error_quotes_what_comet_said(tracker, tmp_path):
    """Comet logs why it takes nothing and returns None; who reads the exception does not see that log."""
    logging.getLogger("comet_ml").error("Failed to log the asset:\n the file is %s", "too large")
    with pytest.raises(RuntimeError, match=r"did not take 'x': Failed to log the asset: the file is too large$"):
        tracker._checked(None, "x")
    with pytest.raises(RuntimeError, match=r"logs/comet_ml.log"):
        tracker._checked(None, "x")
    tracker.finish()
    assert tracker.said not in logging.getLogger("comet_ml").handlers


def test_what_comet_could_not_write_is_an_error_of_finish(tracker, monkeypatch):
    """Comet only logs that its disk is full; the run must be delivered again."""

    def no_space(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("comet_ml.streamer.handlers.offline_handler.compact_json_dump", no_space)
    tracker.log_batch([Row(1, {"loss": 1.0}, 1)])
    with pytest.raises(OSError, match="No space left"):
        tracker.finish()


def test_the_directory_of_the_environment_is_meant_from_where_the_job_was_started(tmp_path, monkeypatch):
    """A worker runs in another directory."""
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", "archives")
    tracker = opened(tmp_path)
    assert Path(tracker.url).parent == tmp_path / "archives"
    tracker.finish()


def test_a_server_that_refuses_the_key_is_an_error_of_start(tmp_path, monkeypatch):
    """At once, with the server's words; Comet's own answer is an experiment that takes nothing."""

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(401)
            self.send_header("content-length", "25")
            self.end_headers()
            self.wfile.write(b'{"msg": "Invalid API key"}'[:25])

        do_GET = do_POST

        def log_message(self, *_args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("COMET_URL_OVERRIDE", f"http://127.0.0.1:{server.server_port}/clientlib/")
        monkeypatch.setenv("COMET_API_KEY", "wrong")
        with pytest.raises(Exception, match="401"):
            opened(tmp_path, online=True)
        server.shutdown()


def test_online_without_a_key_says_what_to_do(tmp_path, monkeypatch):
    """At once, before anything is asked of the network."""
    monkeypatch.delenv("COMET_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"COMET_API_KEY.*\"online\": False"):
        opened(tmp_path, online=True)


class Online:
    """A server of Comet's on this machine, and what it was sent."""

    def __init__(self, tmp_path, monkeypatch):
        self._received = tmp_path / "received.jsonl"
        self._port = 0
        self.begin()
        monkeypatch.setenv("COMET_URL_OVERRIDE", f"http://127.0.0.1:{self._port}/clientlib/")
        monkeypatch.setenv("COMET_API_KEY", "key")
        monkeypatch.setenv("COMET_HTTP_SESSION_RETRY_TOTAL", "0")

    def begin(self):
        command = [sys.executable, str(Path(readers.__file__).with_name("comet_server.py")), str(self._port), str(self._received)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._port = int(self._process.stdout.readline())

    def end(self):
        self._process.kill()
        self._process.communicate()

    def received(self, path):
        """Bodies of the requests to *path*."""
        lines = map(json.loads, self._received.read_text().splitlines())
        return [json.loads(line["body"]) for line in lines if line["path"].endswith(path)]

    def metrics(self):
        values = [value for batch in self.received("batch/logger/experiment/metric") for value in batch["values"]]
        return [(value["step"], value["metricValue"], value["timestamp"]) for value in values if value["metricName"] == "loss"]


@pytest.fixture
def online(tmp_path, monkeypatch):
    server = Online(tmp_path, monkeypatch)
    yield server
    server.end()


def test_online_everything_is_with_the_server_after_a_flush(tmp_path, online):
    """With its own time; a process that dies is followed by one that goes on with the same experiment."""
    tracker = opened(tmp_path, online=True)
    assert tracker.durable_after == "flush"
    assert tracker.url.startswith("http://comet/")
    tracker.log_batch([Row(step, {"loss": float(step), "note": "text"}, step * 10**9) for step in range(3)])
    tracker.flush()
    assert online.metrics() == [(step, float(step), step * 1000) for step in range(3)]
    tracker.tracker.end()
    second = opened(tmp_path, tracker.checkpoint(), online=True)
    second.log_batch([Row(3, {"loss": 3.0}, 3 * 10**9)])
    second.finish("killed")
    assert len(online.metrics()) == 4
    assert len({request["experimentKey"] for request in online.received("add/run")}) == 1
    others = {request["key"]: request["value"] for request in online.received("log-other")}
    assert (others["status"], others["note"]) == ("killed", "text")
    assert [request["error"] for request in online.received("update-status") if request["hasCrashed"]] == ["the run ended as killed"]


def test_a_flush_without_a_connection_is_an_error(tmp_path, online):
    """Comet itself says that all is well, and keeps what it could not send in a temporary file."""
    tracker = opened(tmp_path, online=True)
    tracker.log_batch([Row(0, {"loss": 0.0}, 0)])
    tracker.flush()
    online.end()
    tracker.log_batch([Row(1, {"loss": 1.0}, 0)])
    with pytest.raises(ConnectionError):
        tracker.flush()
    online.begin()
    give_up = time.monotonic() + 30
    while True:
        try:
            tracker.flush()
        except ConnectionError:
            assert time.monotonic() < give_up
        else:
            break
    assert sorted(step for step, *_ in online.metrics()) == [0, 1]
    tracker.finish()


def killed(tmp_path, checkpoint, after_ms=(0,)):
    """Start in other processes, one after the other, and log; kill each so long into its start, or after the log."""
    script = f"""
import os, signal, sys
from pathlib import Path
sys.path[:] = {sys.path!r}
import comet_ml
from tests.contract import test_comet as test
from accelbus.tracking import Row
for after_ms in {after_ms!r}:
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        continue
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, after_ms / 1000)
    tracker = test.opened(Path({str(tmp_path)!r}), {checkpoint!r}, mode="create")
    tracker.log_batch([Row(step, {{"loss": -1.0}}, step) for step in range(100)])
    tracker.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def figure():
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib.figure import Figure

    drawn = Figure((1, 1))
    drawn.subplots().plot([1, 2])
    return drawn
