"""The Aim tracker with repositories of files, read back with Aim's readers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("aim")

from aim import Repo

from accelbus.testing import Point, ReadBack, SinkContract, state_dir
from accelbus.values import flatten
from accelbus_sinks.aim import AimTracker
from tests.support import aim_reader as reader


@pytest.fixture(scope="module")
def empty_repository(tmp_path_factory):
    """A repository without runs: to make one takes Aim a second or more."""
    directory = tmp_path_factory.mktemp("aim")
    Repo.from_path(str(directory), init=True)
    return directory


class TestAim(SinkContract):
    """Numbers are metrics, text and lists are texts; a point that comes again is replaced."""

    tracker_class = AimTracker

    @pytest.fixture(autouse=True)
    def _repositories(self, empty_repository):
        self.empty_repository = empty_repository

    def open(self, logging_dir, checkpoint):
        prepare(self.empty_repository, logging_dir)
        return super().open(logging_dir, checkpoint)

    def _child(self, logging_dir, script):
        prepare(self.empty_repository, logging_dir)
        return super()._child(logging_dir, script)

    def read(self, logging_dir: Path) -> ReadBack:
        run = reader.run_of(logging_dir, f"contract-{logging_dir.name}")
        points = [Point(*point) for point in reader.points(run, state_dir(logging_dir))]
        return ReadBack(points, flatten(run.get("hparams", {})), run["accelbus", "status"])


def prepare(empty_repository, logging_dir):
    """Copy the *empty_repository* to where a tracker would make one."""
    if not logging_dir.exists():
        shutil.copytree(empty_repository, logging_dir)
