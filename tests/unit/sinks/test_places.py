"""From where trackers' relative paths are meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelbus.tracking import RunInfo
from accelbus_sinks._places import from_job_directory, job_directory


@pytest.fixture
def places(tmp_path) -> tuple[Path, Path]:
    """Where ``init`` was called, and where the shell stands."""
    job, shell = tmp_path / "job", tmp_path / "shell"
    job.mkdir()
    shell.mkdir()
    return job, shell


def test_an_argument_is_meant_from_where_init_was_called(places):
    """Wherever this process, or the shell that delivers the rest, stands."""
    job, shell = places
    assert from_job_directory("logs", {"PWD": str(shell)}, RunInfo(directory=job)) == job / "logs"
    assert from_job_directory("/logs", {"PWD": str(shell)}, RunInfo(directory=job)) == Path("/logs")


def test_a_variable_is_meant_from_where_its_environment_comes_from(places):
    """Without a run to ask."""
    _, shell = places
    assert from_job_directory("logs", {"PWD": str(shell)}) == shell / "logs"


def test_a_directory_that_is_not_there_is_not_made_up(places):
    """On another host, or a record of an older version."""
    job, shell = places
    assert job_directory({"PWD": str(shell)}, RunInfo(directory=job / "gone")) == shell
    assert job_directory({"PWD": "relative"}, RunInfo()) is None
    assert from_job_directory("logs", {}) == Path.cwd() / "logs"


def test_directories_of_wandb_and_swanlab_are_not_the_workers(places, monkeypatch):
    """Given as argument, or as variable; the worker stands in a directory of its own."""
    settings = pytest.importorskip("accelbus_sinks._wandb_settings")
    swanlab = pytest.importorskip("accelbus_sinks._swanlab_run")
    job, shell = places
    info = RunInfo("run", directory=job, output_dir=Path("/run"))
    assert settings.root_directory(info, {"dir": "logs"}, {"PWD": str(shell)}) == job / "logs"
    assert settings.root_directory(info, {}, {"PWD": str(shell), "WANDB_DIR": "logs"}) == shell / "logs"
    monkeypatch.setenv("PWD", str(shell))
    assert swanlab.directory_of(swanlab.arguments_of("p", info, {"log_dir": "logs"})) == job / "logs" / "run-run"
    monkeypatch.setenv("SWANLAB_LOG_DIR", "logs")
    assert swanlab.directory_of(swanlab.arguments_of("p", info, {})) == shell / "logs" / "run-run"
    assert swanlab.directory_of(swanlab.arguments_of("p", info, {"logdir": "/mine"})) == Path("/mine/run-run")
