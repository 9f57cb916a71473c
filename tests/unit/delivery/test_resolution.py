"""A tracker is asked what it makes of the configuration: once, when it knows it, and again when it fails."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from accelbus.config import Tuning
from accelbus.delivery.resolution import Resolution
from accelbus.delivery.status import Resolved, SinkStatus, decode_line, encode_line


class Reports:
    """Takes the place of the channel to the supervisor, and keeps what arrives there."""

    def __init__(self) -> None:
        self.status = SinkStatus(sink="wandb")
        self.resolved: list[Resolved] = []

    def push_now(self) -> None:
        arrived = decode_line(encode_line(self.status)).resolved
        if arrived is not None:
            self.resolved.append(msgspec.msgpack.decode(arrived, type=Resolved))


class Tracker:
    """Answers with *answers*, one call after the other; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self) -> dict[str, Any] | None:
        self.calls += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def reports():
    return Reports()


def resolution(tracker, reports, *, is_ready=lambda: True, is_wanted=True) -> Resolution:
    return Resolution(tracker, is_ready=is_ready, channel=reports, tuning=Tuning(retry_first=0.0), is_wanted=is_wanted)


def test_it_is_asked_once(reports):
    """The answer arrives as it is, numbers that JSON has not included, and is in no later report."""
    tracker = Tracker({"lr": 0.5, "best": math.inf, "large": 2**63})
    one = resolution(tracker, reports)
    for _ in range(3):
        one.work()
    assert tracker.calls == 1
    assert reports.resolved == [Resolved({"lr": 0.5, "best": math.inf, "large": 2**63})]
    assert reports.status.resolved is None


def test_it_is_asked_when_it_knows_the_configuration(reports):
    """Before, its answer would be about something else."""
    ready: list[bool] = []
    tracker = Tracker({})
    one = resolution(tracker, reports, is_ready=lambda: bool(ready))
    one.work()
    assert tracker.calls == 0
    ready.append(True)
    one.work()
    assert reports.resolved == [Resolved({})]


def test_nobody_is_asked_for_nothing(reports):
    """Most runs have their configuration from themselves."""
    one = resolution(tracker := Tracker(), reports, is_wanted=False)
    one.work()
    assert tracker.calls == 0


def test_a_failure_is_reported_and_repeated(reports):
    """A server may be away for a moment."""
    one = resolution(Tracker(ConnectionError("away"), ConnectionError("away"), {"lr": 1}), reports)
    one.work()
    assert (reports.status.last_error, reports.resolved) == ("ConnectionError: away", [])
    one.work()
    one.work()
    assert reports.resolved == [Resolved({"lr": 1})]


def test_a_tracker_without_a_word_says_so(reports):
    """Nobody waits for it."""
    resolution(Tracker(None), reports).work()
    assert reports.resolved == [Resolved(None, "this tracker resolves no configurations")]


def test_a_configuration_too_large_for_a_message_is_refused(reports):
    """With its size, instead of a silence that lasts until the deadline."""
    resolution(Tracker({"weights": "x" * 600_000}), reports).work()
    (resolved,) = reports.resolved
    assert resolved.config is None
    assert "more than 524288" in resolved.refusal
