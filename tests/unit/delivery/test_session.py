"""One tracker, and what delivery keeps of what its service refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from accelbus.delivery.deadletters import DeadLetters
from accelbus.delivery.inline import LocalChannel
from accelbus.delivery.ledger import Ledger, rows_of
from accelbus.delivery.making import Maker
from accelbus.delivery.session import Session
from accelbus.delivery.status import SinkStatus
from accelbus.rundir import RunDir, RunRecord
from accelbus.tracking import GeneralTracker, RefusedRow
from accelbus.view import Point


class Refusing(GeneralTracker):
    """Its service refuses step 1, said once."""

    name = "refusing"
    requires_logging_directory = False

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.refused = [RefusedRow(0, 1, "no")]
        super().__init__()

    @property
    def tracker(self) -> Any:
        return self

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        self.calls["log"] += 1

    def finish(self, status: str | None = None) -> None:
        self.calls["finish"] += 1

    def refused_rows(self) -> list[RefusedRow]:
        refused, self.refused = self.refused, []
        return refused


class FullDisk(DeadLetters):
    """Takes nothing the first time."""

    is_full = True

    def append(self, row: Any, reason: str) -> None:
        if self.is_full:
            self.is_full = False
            raise OSError(28, "No space left on device")
        super().append(row, reason)


@pytest.mark.parametrize("how", ["flush", "finish"])
def test_a_refusal_outlasts_a_full_disk(tmp_path: Path, how: str) -> None:
    """The tracker says it once; it is written when there is room, and a tracker that was closed is not closed again for it."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    run_dir.sink("refusing").mkdir(parents=True)
    tracker, ledger, channel = Refusing(), Ledger(), LocalChannel(SinkStatus(sink="refusing"))
    record = RunRecord(run_id="run", project="digits", sinks=("refusing",))
    letters = FullDisk(run_dir.sink("refusing"), 0)
    maker = Maker("refusing", record, given=tracker, in_trainer=True)
    session = Session("refusing", run_dir, record, maker, channel=channel, ledger=ledger, letters=letters)
    session.start({}, resumed=False)
    rows = rows_of([Point(0, 1, "loss", 0.5, 1, 1, {0: 1}), Point(0, 2, "loss", 0.5, 1, 1, {0: 1})]).scalars
    ledger.queue(rows)
    session.log(rows)
    call = session.flush if how == "flush" else lambda: session.finish("finished")
    with pytest.raises(OSError, match="No space left"):
        call()
    assert channel.status.dead_letters == 0
    call()
    ledger.settle()
    assert (channel.status.dead_letters, channel.status.last_error) == (1, "step 1: no")
    assert (ledger.settled()[0].delivered, ledger.settled()[0].dead_lettered) == (1, 1)
    assert tracker.calls["finish"] == (how == "finish")
