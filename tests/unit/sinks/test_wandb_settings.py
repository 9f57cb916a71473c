"""How W&B is started: what the user says, what the run says, and what W&B must not do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("wandb")

import wandb

from accelbus.tracking import RunInfo
from accelbus_sinks._wandb_files import fitted
from accelbus_sinks._wandb_metrics import Metrics
from accelbus_sinks._wandb_settings import caches, init_arguments, leave_service_of_others, mode_of, root_directory, run_id_of

INFO = RunInfo("proj-1a2b", "proj", "proj-1a2b", state_dir=Path("/run/sinks/wandb/state"), output_dir=Path("/run/wandb"))


def test_what_the_user_gave_wandb_comes_first():
    """Arguments of init before the run's own names, and these before nothing."""
    info = INFO._replace(name="big", group="sweep", tags=("a",), notes="why")
    arguments = init_arguments("proj", info, {"name": "mine", "job_type": "eval"}, {})
    assert {key: arguments[key] for key in ("project", "name", "group", "tags", "notes", "job_type")} == {
        "project": "proj", "name": "mine", "group": "sweep", "tags": ("a",), "notes": "why", "job_type": "eval",
    }  # fmt: skip


def test_a_name_from_the_environment_counts_where_the_run_has_none():
    """A run without a name is called by its id, unless WANDB_NAME says otherwise."""
    assert init_arguments("proj", INFO, {}, {})["name"] == "proj-1a2b"
    assert init_arguments("proj", INFO, {}, {"WANDB_NAME": "mine"})["name"] is None
    assert init_arguments("proj", INFO._replace(name="big"), {}, {"WANDB_NAME": "mine"})["name"] == "big"


def test_the_id_is_made_of_the_runs():
    """A restart finds the run again; ids that W&B does not take become ones that it does, and stay distinct."""
    assert run_id_of(INFO, {}, {}) == "proj-1a2b"
    assert run_id_of(INFO, {"id": "mine"}, {"WANDB_RUN_ID": "env"}) == "mine"
    assert run_id_of(INFO, {}, {"WANDB_RUN_ID": "env"}) == "env"
    assert run_id_of(RunInfo(), {}, {}) is None
    long = [run_id_of(INFO._replace(run_id="x" * 127 + last), {}, {}) for last in "ab"]
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 64


def test_files_are_in_the_run_directory_unless_the_user_wants_them_elsewhere():
    """W&B makes a directory of its own name: the run's is not nested in another of it."""
    assert root_directory(INFO, {}, {}) == Path("/run")
    assert root_directory(INFO._replace(output_dir=Path("/elsewhere")), {}, {}) == Path("/elsewhere")
    assert root_directory(INFO, {"dir": "/mine"}, {"WANDB_DIR": "/env"}) == Path("/mine")
    assert root_directory(INFO, {}, {"WANDB_DIR": "/env"}) == Path("/env")
    assert root_directory(RunInfo(), {}, {}) is None


@pytest.mark.parametrize("given", [{"console": "wrap"}, wandb.Settings(console="wrap")], ids=["mapping", "settings"])
def test_settings_of_the_user_are_added_to_ours(given):
    """Nothing of this process is captured, except what the user asks for."""
    settings = init_arguments("proj", INFO, {"settings": given}, {})["settings"]
    assert settings.console == "wrap"
    assert settings.x_disable_stats
    assert settings.disable_git
    assert settings.x_transaction_log_flush_interval < 1
    assert settings.stop_fn() is None


def test_caches_are_kept_out_of_the_home_directory(tmp_path):
    """Everything W&B writes by itself is below the state directory; a user's settings and keys are still read, and choices obeyed."""
    wanted = caches(tmp_path, {"HOME": "/nonexistent", "WANDB_CACHE_DIR": "/mine"})
    assert wanted.keys() == {"WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR", "WANDB_CONFIG_DIR"}
    assert all(Path(path).is_relative_to(tmp_path) for path in wanted.values())
    (tmp_path / ".config" / "wandb").mkdir(parents=True)
    assert "WANDB_CONFIG_DIR" not in caches(tmp_path, {"HOME": str(tmp_path)})


def test_the_mode_is_known_before_the_start():
    """Arguments before settings; the old names of the modes are understood."""
    assert mode_of({"mode": "dryrun"}) == "offline"
    assert mode_of({"settings": {"mode": "offline"}}) == "offline"
    assert mode_of({"settings": wandb.Settings(mode="disabled")}) == "disabled"
    assert mode_of({"mode": "online", "settings": {"mode": "offline"}}) == "online"


def test_a_service_of_the_trainers_is_not_used(monkeypatch):
    """W&B's service of another process ends with that process; one of this process is kept."""
    monkeypatch.setenv("WANDB_SERVICE", f"3-{os.getpid() + 1}-unix-/tmp/x")
    leave_service_of_others()
    assert "WANDB_SERVICE" not in os.environ
    monkeypatch.setenv("WANDB_SERVICE", f"3-{os.getpid()}-unix-/tmp/x")
    leave_service_of_others()
    assert "WANDB_SERVICE" in os.environ


def test_definitions_reach_keys_in_any_order():
    """A pattern fits keys seen before and after it, the newest that fits counts, and a goal says what is best."""
    metrics = Metrics(None)
    metrics.introduce("eval/loss")
    metrics.define("eval/*", axis="epoch", summary="best", goal="minimize")
    metrics.define("*/accuracy", axis="", summary="best", goal="maximize")
    metrics.introduce("eval/accuracy")
    metrics.introduce("train/loss")
    assert metrics.options == {"eval/loss": {"summary": "min", "step_metric": "epoch"}, "eval/accuracy": {"summary": "max"}}
    assert metrics.take_changes() == ["eval/loss", "eval/accuracy"]
    assert metrics.take_changes() == []


def test_extremes_ignore_what_is_no_number():
    """A NaN is no minimum, and neither is text."""
    metrics = Metrics(None)
    metrics.define("loss", axis="", summary="min", goal="")
    metrics.introduce("loss")
    for step, value in enumerate([3.0, float("nan"), "text", 2.0, 5.0]):
        metrics.note((0, step), {"loss": value})
    assert metrics.extremes == {"loss": {"min": 2.0}}


def test_a_configuration_within_the_limit_is_as_it_was():
    """Nested values stay nested; only numbers that JSON does not have change."""
    config = {"model": {"depth": [1, None]}, "clip": float("-inf")}
    assert fitted(config) == ({"model": {"depth": [1, None]}, "clip": "-Infinity"}, False)
