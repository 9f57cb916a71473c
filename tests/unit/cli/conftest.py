"""Commands run in this process, on runs by hand, with no spools but their own in sight."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from accelbus import host
from accelbus.cli import main
from tests.support.runs import HandRun


class Printed(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _node_of_its_own(tmp_path, monkeypatch):
    """Other runs of this machine leave spools too; a variable of this shell is not part of a test."""
    monkeypatch.setattr(host, "tmpfs_directory", lambda: None)
    monkeypatch.setattr(host, "private_directory", lambda: tmp_path / "private")
    for name in [name for name in os.environ if name.startswith("ACCELBUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACCELBUS_SPOOL_DIR", str(tmp_path / "spools"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _loud_again():
    """Commands silence the loggers of what they call; the next test may look at them."""
    level = logging.getLogger("accelbus").level
    yield
    logging.getLogger("accelbus").setLevel(level)


@pytest.fixture
def run(tmp_path) -> Iterator[HandRun]:
    hand = HandRun(tmp_path)
    yield hand
    hand.bus.close()


@pytest.fixture
def accelbus(capfdbinary) -> Callable[..., Printed]:
    """Return a function that runs a command line."""

    def run_command(*arguments: str | Path) -> Printed:
        code = main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Printed(code, out.decode(), err.decode())

    return run_command
