"""Runs by hand, with no spools but their own in sight."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accelbus import host
from tests.support.runs import HandRun


@pytest.fixture(autouse=True)
def _node_of_its_own(tmp_path, monkeypatch):
    """Other runs of this machine leave spools too."""
    monkeypatch.setattr(host, "tmpfs_directory", lambda: None)
    monkeypatch.setattr(host, "private_directory", lambda: tmp_path / "private")


@pytest.fixture
def run(tmp_path) -> Iterator[HandRun]:
    hand = HandRun(tmp_path)
    yield hand
    hand.bus.close()
