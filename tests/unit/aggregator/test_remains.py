"""What a bus process finds among the spools of its node."""

from __future__ import annotations

import os
import uuid

from accelbus.aggregator.remains import SpoolWatch
from accelbus.config import Tuning


def test_a_spool_that_its_producer_was_killed_while_making_is_removed(tmp_path):
    """It says nothing, and would lie there for ever; one that is being made right now is left alone."""
    old, young, foreign = (tmp_path / name for name in (f"{uuid.uuid4().hex}.spool", f"{uuid.uuid4().hex}.spool", "notes.spool"))
    for path in (old, young, foreign):
        path.write_bytes(bytes(8192))
    for path in (old, foreign):
        os.utime(path, (0, 0))
    assert SpoolWatch(Tuning()).find_new([tmp_path]) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([young.name, foreign.name])
