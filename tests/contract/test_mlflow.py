"""The MLflow tracker with a database of MLflow's, read back with its client."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from accelbus.testing import Point, ReadBack, SinkContract, state_dir
from accelbus_sinks.mlflow import MLflowTracker
from tests.support import mlflow_reader as reader

# MLflow's use of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Address of a database for all tests: to make one takes MLflow seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


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

    def read(self, logging_dir: Path) -> ReadBack:
        run = reader.run_of(f"contract-{logging_dir.name}")
        state = state_dir(logging_dir)
        points = [Point(*point) for point in (*reader.metrics(run, state), *reader.texts(run))]
        return ReadBack(points, reader.config(run, state), run.info.status.lower())
