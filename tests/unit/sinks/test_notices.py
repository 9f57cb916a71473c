"""What built-in trackers tell the user, beside their logs that nobody reads."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorboard")

from accelbus_sinks.tensorboard import TensorBoardTracker


def test_numbers_beyond_tensorboards_floats_are_spoken_of_once_per_key(tmp_path: Path) -> None:
    """They are shown as infinity, which nobody logged."""
    told: list[str] = []
    tracker = TensorBoardTracker("digits", tmp_path)
    tracker.tell_user = told.append
    tracker.start()
    for step in range(3):
        tracker.log({"loss": 1e300}, step=step)
    tracker.finish()
    assert told == ["values of 'loss' exceed TensorBoard's 32-bit floats and are shown as infinity"]
