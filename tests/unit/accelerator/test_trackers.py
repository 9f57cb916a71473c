"""Whose run `init_trackers` opens in a project that has a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelbus.accelerator import Accelerator, ProjectConfiguration


@pytest.fixture
def start(make: Callable[..., Accelerator], tmp_path: Path) -> Callable[..., str]:
    """A script in the project; returns the id of its run."""

    def script(*, loads: bool = False, saves: bool = False, **settings: Any) -> str:
        accelerator = make(project_config=ProjectConfiguration(project_dir=tmp_path, automatic_checkpoint_naming=True))
        if loads:
            accelerator.load_state()
        accelerator.init_trackers("digits", **{"mode": "offline", **settings})
        assert accelerator.run is not None
        accelerator.log({"loss": 1.0}, step=3)
        if saves:
            accelerator.save_state()
        accelerator.end_training()
        return accelerator.run.id

    return script


@pytest.fixture
def first(start: Callable[..., str]) -> str:
    """The run that the project's checkpoint belongs to."""
    return start(saves=True)


def said(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records if "is continued, from a checkpoint of step 3" in record.message]


def test_joining_an_old_run_unasked_is_warned_about(start, first, caplog):
    """A fresh script in an old directory: its user may not know that there is a checkpoint."""
    assert start() == first
    assert said(caplog) == [logging.WARNING]
    assert "resume='never'" in caplog.text


@pytest.mark.parametrize("asked", [{"loads": True}, {"resume": "allow"}], ids=["load_state", "resume"])
def test_joining_it_as_asked_is_no_warning(start, first, caplog, asked):
    """It is told all the same."""
    with caplog.at_level(logging.INFO):
        assert start(**asked) == first
    assert said(caplog) == [logging.INFO]


def test_the_environment_asks_as_well(start, first, caplog, monkeypatch):
    """ACCELBUS_RESUME is as good as the argument."""
    monkeypatch.setenv("ACCELBUS_RESUME", "allow")
    assert start() == first
    assert said(caplog) == []


def test_a_run_of_the_environment_is_opened_whatever_the_project_has(start, first, monkeypatch, caplog):
    """ACCELBUS_RUN_ID is no guess; a checkpoint that was loaded is then recorded as its origin."""
    monkeypatch.setenv("ACCELBUS_RUN_ID", "chosen")
    assert start() == "chosen"
    assert said(caplog) == []
    assert start(loads=True) == "chosen"
    assert f"goes on from a checkpoint of run {first}" in caplog.text


def test_a_disabled_run_continues_nothing(start, first, caplog):
    """There is nothing to be warned about."""
    start(mode="disabled")
    assert said(caplog) == []
