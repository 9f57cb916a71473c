"""Whose fault the death of a worker is."""

from __future__ import annotations

import signal

import pytest

from accelbus.config import Tuning
from accelbus.delivery.blame import Blame

TUNING = Tuning(retries_alone=3, kills_of_row=9)


@pytest.mark.parametrize("code, killed_for", [(-signal.SIGSEGV, ""), (1, ""), (0, ""), (-signal.SIGKILL, "log took longer than 60 s")])
def test_crashes_exits_and_hangs_are_the_rows_doing(code: int, killed_for: str):
    """Also a hang, which the supervisor ends with the same signal as others would."""
    blame = Blame(TUNING)
    for _ in range(3):
        blame.add("step 7", code, killed_for)
    assert blame.deaths() == {"step 7": TUNING.retries_alone}


def test_kills_by_others_say_little_and_in_the_end_enough():
    """A row that no machine has the memory for must not stop its sink for ever."""
    blame = Blame(TUNING)
    for _ in range(2):
        blame.add("step 7", -signal.SIGKILL, "")
    assert blame.deaths() == {}
    for _ in range(6):
        blame.add("step 7", -signal.SIGKILL, "")
    assert blame.deaths()["step 7"] < TUNING.retries_alone
    blame.add("step 7", -signal.SIGKILL, "")
    assert blame.deaths() == {"step 7": TUNING.retries_alone}


def test_rows_are_blamed_apart_and_forgotten_together():
    """When all went well in the end nothing is left of it."""
    blame = Blame(TUNING)
    blame.add("step 7", 1, "")
    blame.add("step 8", -signal.SIGABRT, "")
    assert blame.deaths() == {"step 7": 1, "step 8": 1}
    blame.clear()
    assert blame.deaths() == {}
