"""What each tracker has stored, found with its own reader: a bench that measures lost points measures nothing.

The same for what our sink wrote and for what plain calls of the library wrote. Names of metrics are plain words here, which every
tracker keeps as they are.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

STEP = "accelbus/step"
"""W&B's metric with the true step of a row of ours."""

COMETS_OWN = {"process duration"}


class Found(NamedTuple):
    """One stored number."""

    step: int
    key: str
    value: float


class Stored(NamedTuple):
    """Where to look: directories that a side was given."""

    output: Path
    """Where the tracker writes what a person opens."""
    state: Path
    """Private to the tracker: its caches."""


def points(tracker: str, where: Stored) -> list[Found]:
    """Return every number that *tracker* has stored in *where*."""
    return [Found(int(step), key, float(value)) for step, key, value in READERS[tracker](where)]


def check(found: list[Found], expected: dict[tuple[int, str], float], tracker: str) -> None:
    """Raise AssertionError unless each point of *expected* was *found* once, with its value (TensorBoard's have 32 bits)."""
    stored = {(step, key): value for step, key, value in found}
    assert len(found) == len(stored), f"{tracker}: {len(found) - len(stored)} points are there twice"
    missing = expected.keys() - stored.keys()
    assert not missing, f"{tracker}: {len(missing)} of {len(expected)} points are missing, {min(missing)} among them"
    assert len(stored) == len(expected), f"{tracker}: {len(stored) - len(expected)} points that nobody logged"
    wrong = [point for point, value in expected.items() if abs(stored[point] - value) > 1e-6 * abs(value)]
    assert not wrong, f"{tracker}: {wrong[0]} is {stored[wrong[0]]}, expected {expected[wrong[0]]}"


Points = Iterator[tuple[int, str, float]]


def _tensorboard(where: Stored) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for directory in {path.parent for path in where.output.rglob("*tfevents*")}:
        found = EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload()
        for tag in found.Tags()["scalars"]:
            yield from ((event.step, tag, event.value) for event in found.Scalars(tag))


def _wandb(where: Stored) -> Points:
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = where.output.rglob("offline-run-*/*.wandb")
    for data in _wandb_records(path.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            step = row.pop(STEP, row["_step"])
            yield from ((step, key, value) for key, value in row.items() if not key.startswith("_"))


def _wandb_records(data: bytes) -> Iterator[bytes]:
    """W&B brings no reader for its file: a LevelDB log of 32 KiB blocks."""
    position, record = 7, b""
    while position < len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
        _, length, kind = struct.unpack_from("<IHB", data, position)
        chunk = data[position + 7 : position + 7 + length]
        position += 7 + length
        record = chunk if kind in {1, 2} else record + chunk
        if kind in {1, 4}:
            yield record


def _trackio(where: Stored) -> Points:
    from trackio.sqlite_storage import SQLiteStorage

    for project in SQLiteStorage.get_projects():
        for record in SQLiteStorage.get_run_records(project):
            for row in SQLiteStorage.get_logs(project, run_id=record["id"], max_points=None):
                step = row.pop("step")
                yield from ((step, key, value) for key, value in row.items() if isinstance(value, int | float))


def _mlflow(where: Stored) -> Points:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments):
        for key in run.data.metrics:
            yield from ((metric.step, key, metric.value) for metric in client.get_metric_history(run.info.run_id, key))


def _comet(where: Stored) -> Points:
    for path in where.output.glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            for line in archive.read("messages.json").splitlines():
                message = json.loads(line)
                metric = message["payload"].get("metric")
                if message["type"] == "metric_msg" and metric["metricName"] not in COMETS_OWN:
                    yield metric["step"], metric["metricName"], float(metric["metricValue"])


def _aim(where: Stored) -> Points:
    from aim import Repo
    from aim.sdk.index_manager import RepoIndexManager
    from aim.storage.context import Context

    repo = Repo.from_path(str(where.output))
    manager = RepoIndexManager.get_index_manager(repo)
    for path in Path(where.output, ".aim", "meta", "chunks").iterdir():
        manager.index(path.name)
    repo.container_pool.clear()
    for run in repo.iter_runs():
        for info in run.collect_sequence_info(("metric",))["metric"]:
            sequence = run.get_metric(info["name"], Context(info["context"]))
            yield from ((step, info["name"], value) for step, (value, *_) in sequence.data.items())


def _clearml(where: Stored) -> Points:
    (path,) = where.state.glob("clearml/offline/*/metrics.jsonl")
    for line in path.read_text().splitlines():
        for event in json.loads(line):
            if event["type"] == "training_stats_scalar":
                yield event["iter"], event["metric"], event["value"]


def _swanlab(where: Stored) -> Points:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    (path,) = where.output.glob("run-*/run-*.swanlab")
    reader: Any = DataStoreReader()
    reader.open(path)
    try:
        for data in reader:
            record: Any = Record.FromString(data)
            if record.HasField("scalar"):
                yield record.scalar.step, record.scalar.key, record.scalar.value.number
    finally:
        reader.close()


def _dvclive(where: Stored) -> Points:
    from dvclive.utils import parse_tsv

    directory = where.output / "plots" / "metrics"
    for path in directory.rglob("*.tsv"):
        key = path.relative_to(directory).as_posix().removesuffix(".tsv")
        yield from ((int(row["step"]), key, float(row[key.rpartition("/")[2]])) for row in parse_tsv(path))


READERS: dict[str, Callable[[Stored], Points]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "mlflow": _mlflow,
    "comet_ml": _comet,
    "aim": _aim,
    "clearml": _clearml,
    "swanlab": _swanlab,
    "dvclive": _dvclive,
}
