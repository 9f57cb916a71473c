"""Points of one key leave in step order: trackers drop, refuse or misplace what goes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings, strategies as st

from accelbus.events import Metrics
from accelbus.journal.merge import Item
from accelbus.view import Point, View
from accelbus.view.emission import LATE_PREFIX
from tests.support.views import SECOND, about, check_books, end, log, reopened, short, start, starts, tick, view

LATE_AFTER_NS = 2 * SECOND
KEYS = ("loss", "lr", "rare")


@st.composite
def jobs(draw: Any) -> list[Item]:
    """Journals of four ranks whose steps grow, each at a pace and with keys of its own; some come late, fall silent or leave."""
    at = 0.0
    ranks = draw(st.integers(1, 4))
    items: list[Item] = [start(rank, ranks, 0.0) for rank in draw(st.permutations(range(ranks)))[: draw(st.integers(1, ranks))]]
    steps = [0] * ranks
    habits = [draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)) for _ in range(ranks)]
    for _ in range(draw(st.integers(0, 40))):
        at += draw(st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.7, 2.5]))
        rank = draw(st.integers(0, ranks - 1))
        what = draw(st.integers(0, 13))
        if what <= 9:
            steps[rank] += draw(st.sampled_from([0, 1, 1, 1, 2]))
            keys = habits[rank] if what else draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
            role = "trainer" if draw(st.integers(0, 15)) else "evaluator"
            items.append(log(rank, steps[rank], dict.fromkeys(keys, float(rank)), at, role=role))
        elif what == 10:
            items.append(draw(st.sampled_from([end(rank, at), start(rank, ranks, at)])))
        elif what == 11:
            items.append(about(rank, draw(st.sampled_from(["alive", "silent", "dead"])), at))
        else:
            items.append(tick(at))
    return items


@st.composite
def wild_jobs(draw: Any) -> list[Item]:
    """The same with steps that go back, and two attempts."""
    items: list[Item] = starts(3)
    at = 0.0
    for _ in range(draw(st.integers(0, 40))):
        at += draw(st.sampled_from([0.0, 0.0, 0.1, 0.7, 2.5, -0.5]))
        rank, attempt = draw(st.integers(0, 2)), draw(st.sampled_from([0, 0, 0, 0, 1]))
        role = draw(st.sampled_from(["trainer", "trainer", "trainer", "evaluator"]))
        keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True))
        items.append(log(rank, draw(st.integers(0, 6)), dict.fromkeys(keys, 1.0), max(0.0, at), attempt=attempt, role=role))
    return items


def check_order(items: list[Item], merged: View, *, between: Callable[[View], View] = lambda merged: merged) -> None:
    """Feed *items* one by one. A point may only leave behind a higher step of its key and attempt if a value for it came after that."""
    highest: dict[tuple[int, str], int] = {}
    """{(attempt, key): highest step that left}"""
    overtaken: set[tuple[int, int, str]] = set()
    """Places that got a value when a higher step had left."""

    def leave(points: list[Point]) -> None:
        for point in points:
            if point.key.startswith(LATE_PREFIX):
                continue
            place = point.attempt, point.key
            if point.step < highest.get(place, point.step):
                assert (point.attempt, point.step, point.key) in overtaken, (point, highest)
            highest[place] = max(point.step, highest.get(place, point.step))

    for one in items:
        # Time passes first: what leaves for that reason has left when the item's values come.
        leave(merged.feed([tick(one.received_ns / SECOND)]))
        if isinstance(one.event, Metrics):
            for key in one.event.values:
                if one.event.step <= highest.get((one.attempt, key), -1):
                    overtaken.add((one.attempt, one.event.step, key))
        leave(merged.feed([one]))
        check_books(merged)
        merged = between(merged)
    leave(merged.finish())
    check_books(merged)


def tunings() -> Any:
    return st.sampled_from([{}, {"late_horizon_points": 2}, {"view_bytes": 400}])


@given(st.one_of(jobs(), wild_jobs()), tunings())
@settings(max_examples=100, deadline=None)
def test_no_point_is_overtaken_by_a_later_step_of_its_key(items: list[Item], tuning: dict[str, int]):
    """Whatever the ranks do: what leaves behind a later step was logged after that had left."""
    check_order(items, view(**tuning))


@given(jobs())
@settings(max_examples=50, deadline=None)
def test_order_survives_a_restart_between_any_two_items(items: list[Item]):
    """What is held, and for whom it waits, is in the state."""
    check_order(items, view(), between=reopened)
    whole, parted = view(), view()
    for one in items:
        assert parted.feed([one]) == whole.feed([one])
        parted = reopened(parted)
    assert parted.finish() == whole.finish()


@given(st.one_of(jobs(), wild_jobs()))
@settings(max_examples=50, deadline=None)
def test_nothing_is_held_longer_than_late_after(items: list[Item]):
    """Order costs no point more time than a missing rank may cost it."""
    merged = view()
    for one in items:
        merged.feed([one])
        assert all(point.first_ns + LATE_AFTER_NS > merged._now_ns for point in merged._open)


class TestAKeyWhoseContributorsAreUnknown:
    def test_its_open_points_leave_in_order_when_the_first_one_has(self):
        """Only rank 0 logs the key: when its first step has left, nobody else is waited for at the steps that are open."""
        merged = view()
        merged.feed([*starts(2), *(log(0, step, {"lr": float(step)}) for step in (1, 2, 3))])
        points = merged.feed([log(1, 2, {}), log(0, 4, {"lr": 4.0})])
        assert short(points) == [(1, "lr", 1.0), (2, "lr", 2.0), (3, "lr", 3.0), (4, "lr", 4.0)]

    def test_at_the_deadline_of_the_first_all_of_them_leave(self):
        """A rank that stands still from the beginning costs the first step its time, and the steps behind it nothing."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"lr": 1.0}, at=1.0), log(0, 2, {"lr": 2.0}, at=2.5)])
        assert short(merged.feed([tick(3.0)])) == [(1, "lr", 1.0), (2, "lr", 2.0)]
        assert short(merged.feed([log(0, 3, {"lr": 3.0}, at=3.1)])) == [(3, "lr", 3.0)]

    def test_points_that_others_contributed_to_go_on_waiting(self):
        """What two ranks log is not released by a step that one of them logged alone."""
        merged = view()
        merged.feed([*starts(3), log(0, 1, {"k": 1.0}), log(0, 2, {"k": 1.0}), log(1, 2, {"k": 3.0})])
        assert short(merged.feed([log(2, 2, {})])) == [(1, "k", 1.0)]
        assert short(merged.feed([log(2, 3, {})])) == [(2, "k", 2.0)]


class TestAPointThatIsReady:
    def test_it_is_held_by_an_open_one_at_a_lower_step(self):
        """Rank 1 logs what only rank 0 used to log, so step 2 waits for rank 2; rank 0's next one goes behind it."""
        merged = view()
        merged.feed([*starts(3), log(0, 1, {"k": 1.0}), log(1, 1, {"x": 0.0}), log(2, 1, {"x": 0.0}), tick(5.0)])
        assert merged.feed([log(1, 2, {"k": 3.0}, at=5.0), log(0, 2, {"k": 1.0}, at=5.0), log(0, 3, {"k": 9.0}, at=5.0)]) == []
        merged = reopened(merged)
        assert short(merged.feed([log(2, 3, {}, at=5.1)])) == [(2, "k", 2.0)]
        assert short(merged.feed([log(1, 4, {}, at=5.2)])) == [(3, "k", 9.0)]

    def test_it_waits_for_those_who_became_usual_while_it_was_held(self):
        """Rank 1 leaves out one step; rank 0's points of the steps after it wait for it none the less."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"k": 1.0}), log(1, 1, {"k": 1.0})])
        merged.feed([log(0, step, {"k": 1.0}) for step in (2, 3)])
        assert short(merged.feed([log(1, 3, {"k": 3.0})])) == [(2, "k", 1.0), (3, "k", 2.0)]

    def test_at_its_deadline_it_takes_the_lower_ones_with_it(self):
        """A slow rank opened a lower step later: it leaves early rather than behind."""
        merged = view()
        merged.feed([*starts(3), log(0, 5, {"k": 1.0}, at=1.0), log(1, 4, {"k": 2.0}, at=2.0)])
        assert short(merged.feed([tick(3.0)])) == [(4, "k", 2.0), (5, "k", 1.0)]
        assert merged.forced == 0

    def test_an_event_that_makes_a_later_step_ready_does_not_come_behind_it(self):
        """Rank 0's step 2 ends the wait for step 1, and with it that for step 3: its own value goes before that."""
        merged = view()
        merged.feed([*starts(2), log(1, 1, {"k": 1.0}), log(1, 3, {"k": 3.0})])
        assert [point.step for point in merged.feed([log(0, 2, {"k": 2.0})])] == [1, 2]
        assert [point.step for point in merged.feed([log(0, 4, {})])] == [3]

    def test_keys_do_not_hold_each_other(self):
        """A slow key does not hold back another one."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"a": 1.0}), log(0, 2, {"b": 1.0})])
        assert short(merged.feed([log(1, 1, {"b": 0.0})])) == [(1, "b", 0.0)]
        assert short(merged.feed([log(0, 3, {"c": 1.0}), end(1, 1.5)])) == [(1, "a", 1.0), (2, "b", 1.0), (3, "c", 1.0)]
