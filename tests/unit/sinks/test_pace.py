"""Waiting for a server's rate."""

from __future__ import annotations

import pytest

from accelbus_sinks._pace import LONGEST_WAIT, Pace


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def test_a_rate_is_kept_over_time(clock):
    """After a burst everything goes out at the rate, however it is cut into calls."""
    pace = Pace(200, 2000, monotonic=clock, sleep=clock.sleep)
    for count in (2000, *[100] * 50, *[1000] * 5):
        pace.wait(count)
    assert clock.now == pytest.approx(10_000 / 200)


def test_only_the_first_wait_is_news(clock):
    """Who reports it says it once."""
    pace = Pace(10, 10, monotonic=clock, sleep=clock.sleep)
    assert [pace.wait(10) for _ in range(4)] == [False, True, False, False]


def test_quiet_times_do_not_add_up_beyond_the_burst(clock):
    """After an hour of nothing no more than a burst goes out at once."""
    pace = Pace(10, 50, monotonic=clock, sleep=clock.sleep)
    clock.now = 3600.0
    pace.wait(60)
    assert clock.now == 3601.0


def test_one_call_never_waits_for_as_long_as_a_hanging_one(clock):
    """A row that is larger than the rate allows goes out too fast instead."""
    pace = Pace(10, 10, monotonic=clock, sleep=clock.sleep)
    pace.wait(100_000)
    assert clock.now == LONGEST_WAIT
