"""What is in MLflow, found with MLflow's client."""

from __future__ import annotations

import ast
import json
import math
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from accelbus_sinks._keys import read_keys

FEW: Final = 100


def runs() -> list[Run]:
    """Return all runs of the experiment that the environment names, deleted ones too, the oldest first."""
    client = MlflowClient()
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL, order_by=["start_time ASC"]))


def run_of(run_id: str) -> Run:
    """Return the one run with our *run_id*."""
    (found,) = [run for run in runs() if run.data.tags["accelbus.run_id"] == run_id]
    return found


def metrics(run: Run, state: Path) -> list[tuple[int, str, float, float]]:
    """Return (step, key, value, seconds), of each key in the order of timestamps: the last one of a step is the newest."""
    keys = {name: key for key, name in read_keys(state / "metric-names.jsonl").items()}
    # MLflow asks the database once for each metric, which takes too long for thousands.
    found = _histories(run) if len(run.data.metrics) < FEW else _rows(run)
    return [(step, keys[name], _finite_or_not(value), time_ms / 1000) for step, name, value, time_ms in found]


def _histories(run: Run) -> Iterator[tuple[int, str, float, int]]:
    client = MlflowClient()
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            yield metric.step, metric.key, metric.value, metric.timestamp


def _rows(run: Run) -> list[tuple[int, str, float, int]]:
    query = "SELECT step, key, CASE is_nan WHEN 1 THEN 'nan' ELSE value END, timestamp FROM metrics WHERE run_uuid = ? ORDER BY timestamp"
    with closing(sqlite3.connect(os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///"))) as database:
        return [(step, key, float(value), time) for step, key, value, time in database.execute(query, (run.info.run_id,))]


def texts(run: Run) -> list[tuple[int, str, Any, float]]:
    """Return (step, key, text or list, seconds) of the table of texts."""
    table = json.loads(artifact(run, "texts.json") or '{"data": []}')
    return [(step, key, value, seconds) for step, seconds, _, key, value in table["data"]]


def config(run: Run, state: Path) -> dict[str, Any]:
    """Return the hyperparameters as Python values, in their newest state."""
    params = {name: key for key, name in read_keys(state / "param-names.jsonl").items()}
    tags = {name: key for key, name in read_keys(state / "tag-names.jsonl").items()}
    found = {params[name]: text for name, text in run.data.params.items()}
    found |= {tags[name][len("config/") :]: text for name, text in run.data.tags.items() if tags.get(name, "").startswith("config/")}
    return {key: _parsed(text) for key, text in found.items()}


def artifact(run: Run, path: str) -> bytes | None:
    """Return the content of an artifact, None when there is none."""
    client = MlflowClient()
    directory = path.rpartition("/")[0] or None
    if path not in [file.path for file in client.list_artifacts(run.info.run_id, directory)]:
        return None
    return Path(client.download_artifacts(run.info.run_id, path)).read_bytes()


def artifacts(run: Run, directory: str | None = None) -> list[str]:
    """Return the paths of all files."""
    found = []
    for file in MlflowClient().list_artifacts(run.info.run_id, directory):
        found += artifacts(run, file.path) if file.is_dir else [file.path]
    return found


def _finite_or_not(value: float) -> float:
    """MLflow's databases have the largest float in place of infinity."""
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


def _parsed(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
