"""Events for some sinks, keyword arguments, and media in a view."""

from __future__ import annotations

import msgspec

from accelbus.config import Tuning
from accelbus.events import Metrics
from accelbus.view import Rules, View
from accelbus.view.keywords import BYTES, STEPS, Keywords
from tests.support.views import SECOND, check_books, item, log, reopened, short, starts, tick, view

IMAGE, OTHER = msgspec.msgpack.Ext(2, b"an image"), msgspec.msgpack.Ext(2, b"another")


def addressed(rank, step, values, *sinks, at=1.0, **keywords):
    return item(rank, Metrics(int(at * SECOND), step, values, 0, sinks, keywords or None), at)


def view_of(sink):
    return View(Rules(), tuning=Tuning(), sink=sink)


def test_values_for_other_sinks_are_filtered():
    """And counted, so that the books of every sink balance."""
    events = [*starts(1), addressed(0, 1, {"a": 1.0, "b": 2.0}, "wandb"), log(0, 1, {"c": 3.0})]
    for sink, points, filtered in (("wandb", {"a": 1.0, "b": 2.0, "c": 3.0}, 0), ("mlflow", {"c": 3.0}, 2)):
        of = view_of(sink)
        assert {key: value for _, key, value in short(of.feed(events))} == points
        assert (of.counts[0].read, of.counts[0].filtered) == (3, filtered)
        check_books(of)


def test_a_rank_has_come_to_the_step_of_what_it_says_to_others():
    """Points before it wait for it no longer."""
    of = view_of("mlflow")
    of.feed([*starts(2), log(0, 1, {"a": 1.0})])
    assert short(of.feed([addressed(1, 2, {"x": 1.0}, "wandb")])) == [(1, "a", 1.0)]


class TestKeywords:
    def test_a_sink_gets_its_own(self):
        """The arguments of other trackers are theirs."""
        of = view_of("wandb")
        of.feed([*starts(1), addressed(0, 1, {"a": 1.0}, wandb={"commit": True}, mlflow={"x": 1})])
        assert of.keywords.get(0, 1) == {"commit": True}
        assert of.keywords.get(0, 2) == {}

    def test_of_several_ranks_the_lowest_counts(self):
        """Whichever came first."""
        for order in ((0, 1), (1, 0)):
            keywords = Keywords([])
            for giver in order:
                keywords.add(0, 1, giver, {"by": giver})
            assert keywords.get(0, 1) == {"by": 0}

    def test_calls_of_one_rank_add_up(self):
        """The later value of a name counts."""
        keywords = Keywords([])
        keywords.add(0, 1, 0, {"a": 1, "b": 1})
        keywords.add(0, 1, 0, {"b": 2})
        assert keywords.get(0, 1) == {"a": 1, "b": 2}

    def test_they_are_bounded_and_survive_a_restart(self):
        """The newest are kept."""
        keywords = Keywords([])
        for step in range(2 * STEPS):
            keywords.add(0, step, 0, {"a": step})
        again = Keywords(keywords.state())
        assert (again.get(0, STEPS - 1), again.get(0, 2 * STEPS - 1)) == ({}, {"a": 2 * STEPS - 1})
        for step in range(20):
            again.add(1, step, 0, {"a": "x" * (BYTES // 10)})
        assert len(msgspec.msgpack.encode(again.state())) <= BYTES


class TestMedia:
    def test_of_several_ranks_the_lowest_counts(self):
        """As for text: the others' are filtered."""
        of = view()
        points = of.feed([*starts(2), log(1, 1, {"samples": OTHER}), log(0, 1, {"samples": IMAGE})])
        assert short(points) == [(1, "samples", IMAGE)]
        assert [of.counts[rank].filtered for rank in (0, 1)] == [0, 1]
        check_books(of)

    def test_one_that_only_a_high_rank_logs_counts(self):
        """Media come from any rank."""
        of = view()
        points = of.feed([*starts(2), log(1, 1, {"samples": OTHER}), log(1, 2, {"loss": 1.0}), log(0, 2, {"loss": 1.0}), tick(9.0)])
        assert (1, "samples", OTHER) in short(points)

    def test_one_that_waits_survives_a_restart(self):
        """It is part of the state, byte by byte."""
        of = view()
        of.feed([*starts(2), log(1, 1, {"samples": OTHER})])
        assert short(reopened(of).feed([log(0, 1, {"samples": IMAGE})])) == [(1, "samples", IMAGE)]

    def test_what_waits_is_bounded_by_its_bytes(self):
        """A cursor holds a megabyte of open points at most, images included."""
        of = view(view_bytes=64 * 1024)
        of.feed(starts(2))
        for step in range(40):
            of.feed([log(1, step, {f"samples{step}": msgspec.msgpack.Ext(2, bytes(16 * 1024))})])
        assert of.forced > 30 or len(of.pending()) == 0
        assert len(msgspec.msgpack.encode(of.state())) < 128 * 1024
        check_books(of)
