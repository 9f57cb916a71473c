"""Files that events name: none is removed that an event names, none stays that no event names."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelbus.blobs import BlobStore
from accelbus.client.intake import Intake
from accelbus.client.pump import Wake
from accelbus.config import Settings, Tuning
from accelbus.errors import QueueFullError
from accelbus.events import METRICS_TAG, RunEnd
from accelbus.journal.memory_queue import MemoryQueue
from accelbus.media import Html

PAGE = Html("x" * 50_000)


def intake_of(path: Path, events: int = 100, **settings: str) -> Intake:
    tuning = Tuning(block_timeout=0.01)
    intake = Intake("run", Settings(**settings), tuning, BlobStore(path / "blobs", "me", quota=1 << 30), Wake())
    intake.open(MemoryQueue(None, max_bytes=events * 256, largest=tuning.event_bytes))
    return intake


def log(intake: Intake, values: dict) -> None:
    """As `Run.log` does it."""
    calls = intake.hook.calls
    try:
        payload = intake.encode((METRICS_TAG, 0, 1, values))
    except Exception:  # as there
        intake.put(values, 1)
        return
    if calls != intake.hook.calls and not intake.is_intact(payload):
        intake.put(values, 1)
    elif not intake.append(payload):
        intake.refused(payload, values, 1)


def files(path: Path) -> int:
    return len(list((path / "blobs").iterdir()))


def test_a_file_that_an_event_names_is_not_waiting_to_be_removed(tmp_path):
    """By the fast way and by the slow one, alone and beside what is too large for an event."""
    intake = intake_of(tmp_path)
    log(intake, {"page": PAGE})
    intake.put({"page": PAGE, 2: {"text": "y" * 100_000}}, 1)
    log(intake, {"pages": [PAGE, PAGE], "text": "y" * 100_000, "numbers": list(range(10_000))})
    assert intake.files.unclaimed == {}
    intake.files.settle(10)
    assert files(tmp_path) == 6


def test_a_call_that_fails_half_way_leaves_its_file_to_be_removed(tmp_path):
    """A value that nobody can keep sends the call the slow way, which copies what it keeps once more."""
    intake = intake_of(tmp_path)
    for _ in range(3):
        log(intake, {"page": PAGE, "bad": object()})
    assert (files(tmp_path), len(intake.files.unclaimed)) == (6, 3)
    intake.files.settle(10)
    assert (files(tmp_path), len(intake.files.unclaimed)) == (3, 0)


@pytest.mark.parametrize("policy", ["drop_newest", "block", "raise"])
def test_an_event_that_is_dropped_takes_its_files_with_it(tmp_path, policy):
    """Whatever decides that a full queue drops it; files of events that were kept stay."""
    intake = intake_of(tmp_path, events=2, on_full=policy)
    for number in range(4):
        try:
            log(intake, {"page": PAGE})
            intake.put({"page": PAGE, number: "y" * 100_000}, 1)
        except QueueFullError:
            assert policy == "raise"
    assert len(intake._queue._incoming) == 2
    assert files(tmp_path) == 2
    assert sum(intake.faults.dropped().values()) == 10 if policy != "raise" else intake.faults.dropped()


def test_after_the_end_nothing_is_left(tmp_path):
    """A call that was on its way when the run was finished."""
    intake = intake_of(tmp_path)
    payload = intake.encode((METRICS_TAG, 0, 1, {"page": PAGE}))
    assert files(tmp_path) == 1
    intake.close(RunEnd(0, "finished"))
    intake.refused(payload, {}, 1)
    assert files(tmp_path) == 0
