"""MLflow's tracker without MLflow's server: places, names, limits, and who is right about an argument."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from mlflow.utils import validation

from accelbus.testing import ODD_KEYS
from accelbus.tracking import RunInfo
from accelbus_sinks._keys import KeyMap
from accelbus_sinks._mlflow_names import LIMITS, file_rule, metric_rule, requests, size_of
from accelbus_sinks._mlflow_places import artifact_location, make_database, remember, run_address, tracking_uri
from accelbus_sinks._mlflow_start import Start
from accelbus_sinks.mlflow import MLflowTracker

NO_ARGUMENTS = dict.fromkeys(("experiment_name", "logging_dir", "run_id", "tags", "nested_run", "run_name", "description"))


@pytest.mark.parametrize("key", [*ODD_KEYS, "a:b", "..", "a/../b", "/", "line\n", "x/" * 200])
def test_every_key_becomes_a_name_that_mlflow_takes(key):
    """Names of metrics, parameters and tags pass MLflow's own check, and a rule changes nothing that it has made."""
    name = KeyMap(None, metric_rule(), longest=LIMITS.key)[key]
    validation._validate_metric_name(name)
    assert len(name) <= LIMITS.key
    assert metric_rule()(name) == name
    assert re.fullmatch(r"[A-Za-z0-9_./ -]+", file_rule()(key))


def test_names_that_mlflow_takes_are_kept():
    """All scripts, spaces and colons among them."""
    for key in ("train/loss", "a b", "a.b-c_d", "损失", "train:loss"):
        assert metric_rule()(key) == key


def test_requests_are_within_the_servers_limits():
    """Neither their number of items nor their size in bytes is beyond what the server takes, and nothing is left out."""
    texts = [f"{number}" + "损" * 6000 for number in range(250)]
    parts = list(requests(((text, size_of("key", text)) for text in texts), LIMITS.params))
    assert [text for part in parts for text in part] == texts
    assert max(len(json.dumps([{"key": "key", "value": text} for text in part])) for part in parts) < LIMITS.request_bytes
    assert [len(part) for part in requests(((number, 1) for number in range(2500)), LIMITS.metrics)] == [1000, 1000, 500]


def test_the_environment_beats_the_arguments(monkeypatch):
    """As with Accelerate's tracker."""
    arguments = {"experiment_name": "argument", "run_id": "argument", "tags": {"who": "argument"}, "nested_run": True}
    environ = {
        "MLFLOW_EXPERIMENT_NAME": "variable",
        "MLFLOW_RUN_ID": "variable",
        "MLFLOW_TAGS": '{"who": "variable"}',
        "MLFLOW_NESTED_RUN": "False",
    }
    start = Start(NO_ARGUMENTS | arguments, environ)
    assert (start.experiment_name, start.run_id, start.tags, start.is_nested) == ("variable", "variable", {"who": "variable"}, False)
    start = Start(NO_ARGUMENTS | arguments, {})
    assert (start.experiment_name, start.run_id, start.tags, start.is_nested) == ("argument", "argument", {"who": "argument"}, True)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "variable")
    assert MLflowTracker("argument")._start.experiment_name == "variable"


@pytest.mark.parametrize("tags", ["{", "[1]", 7])
def test_tags_that_are_no_mapping_are_refused(tags):
    """At construction, with what came."""
    with pytest.raises(ValueError, match=re.escape(f"tags={tags!r} of MLflow: expected a mapping or its JSON")):
        MLflowTracker(tags=tags)


def test_a_child_without_a_parent_is_said_to_have_none(caplog):
    """The parent is another process's run, so it has to be named."""
    start = Start(NO_ARGUMENTS | {"nested_run": True}, {})
    start.run_tags(RunInfo("run"))
    assert "nested_run has no effect" in caplog.text


def test_an_unknown_argument_is_refused():
    """A typing error does not pass in silence."""
    with pytest.raises(TypeError, match="experiment"):
        MLflowTracker(experiment="x")


def test_relative_places_are_meant_from_the_jobs_directory(tmp_path):
    """The worker's own working directory is another one."""
    environ = {"PWD": str(tmp_path)}

    def uri(given):
        return tracking_uri(environ | ({"MLFLOW_TRACKING_URI": given} if given else {}), tmp_path / "state")

    assert uri(None) == f"sqlite:///{tmp_path}/mlflow.db"
    assert uri("sqlite:///runs/my.db") == f"sqlite:///{tmp_path}/runs/my.db"
    assert uri("./mlruns") == f"{tmp_path}/mlruns"
    assert uri("file:mlruns") == f"file://{tmp_path}/mlruns"
    for absolute in ("sqlite:////data/my.db", "http://host:5000", "databricks", "databricks://profile", "postgresql://u:p@host/db"):
        assert uri(absolute) == absolute
    assert tracking_uri({}, tmp_path / "state") == f"sqlite:///{tmp_path}/state/mlflow.db"


def test_the_rest_of_a_run_goes_where_its_beginning_went(tmp_path):
    """Delivered from another directory, without the variable that was set before; what may hold a password is not noted."""
    remember(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "state")
    assert tracking_uri({"PWD": "/"}, tmp_path / "state") == f"sqlite:///{tmp_path}/mlflow.db"
    assert tracking_uri({"MLFLOW_TRACKING_URI": "http://host"}, tmp_path / "state") == "http://host"
    remember("http://me:secret@host", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_artifacts_are_beside_the_database_unless_somebody_says_where(tmp_path):
    """A server decides for itself."""
    environ = {"PWD": str(tmp_path)}
    assert artifact_location("sqlite:////data/mlflow.db", "my exp", None, environ) == "/data/mlruns/my_exp"
    assert artifact_location("postgresql+psycopg2://host/db", "..", None, environ) == f"{tmp_path}/mlruns/experiment"
    assert artifact_location("http://host", "exp", None, environ) is None
    assert artifact_location("http://host", "exp", "s3://bucket/path", environ) == "s3://bucket/path"
    assert artifact_location("sqlite:////data/mlflow.db", "exp", "artifacts", environ) == f"{tmp_path}/artifacts"


def test_the_database_of_a_quicker_run_stays(tmp_path, monkeypatch):
    """Of two runs that start at once, one database is used by both, and the other is gone."""
    place = tmp_path / "runs" / "mlflow.db"

    class Client:
        def __init__(self, uri):
            Path(uri.removeprefix("sqlite:///")).write_text("ours")
            place.write_text("theirs")

        def search_experiments(self, max_results):
            assert Path.cwd() == place.parent

    monkeypatch.setattr("accelbus_sinks._mlflow_places.MlflowClient", Client)
    make_database(f"sqlite:///{place}")
    assert [(path.name, path.read_text()) for path in place.parent.iterdir()] == [("mlflow.db", "theirs")]
    make_database("http://host")


def test_the_address_of_a_run_has_no_password():
    """It is printed."""
    assert run_address("http://me:secret@host:5000/path/", "1", "abc") == "http://host:5000/path/#/experiments/1/runs/abc"
    assert "secret" not in run_address("postgresql://me:secret@host/db", "1", "abc")
    assert run_address("sqlite:////data/mlflow.db", "1", "abc") == "sqlite:////data/mlflow.db#/experiments/1/runs/abc"


def test_what_the_user_has_set_stays(tmp_path):
    """Patience with a server is theirs to decide."""
    assert MLflowTracker.environment(tmp_path, {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}).keys().isdisjoint({"MLFLOW_HTTP_REQUEST_TIMEOUT"})
