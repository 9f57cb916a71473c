"""What holds for every merged stream, however it is interleaved, cut and resumed."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hypothesis import given, settings, strategies as st

from accelbus.events import Metrics
from accelbus.journal.merge import Item
from accelbus.view import Point
from accelbus.view.rules import mean
from tests.support.views import about, check_books, closed, end, log, reopened, start, tick, view

KEYS = ("loss", "lr", "note")
VALUES = st.one_of(
    st.integers(-5, 5).map(float),
    st.just(math.inf),
    st.integers(-3, 3),
    st.booleans(),
    st.none(),
    st.sampled_from(["x", "y"]),
    st.just([1]),
)
NUMBERS = st.integers(-1000, 1000).map(lambda number: number / 7)


@st.composite
def streams(
    draw: Any, *, values: Any = VALUES, attempts: int = 2, roles: tuple[str, ...] = ("trainer", "trainer", "evaluator")
) -> list[Item]:
    """Journals of three ranks that log, join, fall silent and die as they like."""
    at = 0.0
    items: list[Item] = []
    for _ in range(draw(st.integers(0, 40))):
        at += draw(st.sampled_from([0.0, 0.0, 0.1, 1.0, 2.5, -0.5]))
        rank, attempt, role = draw(st.integers(0, 2)), draw(st.integers(0, attempts - 1)), draw(st.sampled_from(roles))
        what = draw(st.integers(0, 11))
        if what <= 6:
            logged = draw(st.dictionaries(st.sampled_from(KEYS), values, max_size=3))
            step = draw(st.one_of(st.integers(0, 6), st.none()))
            items.append(log(rank, step, logged, max(at, 0.0), attempt=attempt, role=role, auto_step=draw(st.integers(0, 6))))
        elif what == 7:
            items.append(start(rank, 3, max(at, 0.0), attempt=attempt, role=role))
        elif what == 8:
            items.append(end(rank, max(at, 0.0), attempt=attempt))
        elif what == 9:
            items.append(
                about(
                    rank, draw(st.sampled_from(["alive", "silent", "dead", "finished", "lost"])), max(at, 0.0), attempt=attempt, role=role
                )
            )
        elif what == 10:
            items.append(tick(max(at, 0.0)))
        else:
            items.append(closed(max(at, 0.0)))
    return items


@given(streams(), st.sampled_from([{}, {"late_horizon_points": 2}, {"view_bytes": 400}]))
@settings(max_examples=50, deadline=None)
def test_the_books_balance_at_every_item(items: list[Item], tuning: dict[str, int]):
    """Per rank: read = emitted + filtered + superseded + open; and points account for exactly what is emitted."""
    merged = view(**tuning)
    accounted: Counter[int] = Counter()
    read: Counter[int] = Counter()
    for one in items:
        if isinstance(one.event, Metrics):
            read[one.rank] += len(one.event.values)
        for point in merged.feed([one]):
            accounted.update(point.contributions)
        check_books(merged)
    for point in merged.finish():
        accounted.update(point.contributions)
    check_books(merged)
    assert merged.pending() == {}
    assert {rank: counts.read for rank, counts in merged.counts.items()} == dict(read)
    assert {rank: counts.emitted for rank, counts in merged.counts.items() if counts.emitted} == +accounted


@given(streams(), st.lists(st.integers(0, 40), max_size=4), st.sampled_from([{}, {"late_horizon_points": 2}, {"view_bytes": 400}]))
@settings(max_examples=50, deadline=None)
def test_a_restart_anywhere_changes_nothing(items: list[Item], cuts: list[int], tuning: dict[str, int]):
    """A view reopened from its state between any two items emits the same points as one that never stopped."""
    whole = view(**tuning)
    expected = [repr(point) for point in [*whole.feed(items), *whole.finish()]]
    parted = view(**tuning)
    points: list[Point] = []
    for index, one in enumerate(items):
        if index in cuts:
            parted = reopened(parted, **tuning)
        points += parted.feed([one])
    assert [repr(point) for point in [*points, *parted.finish()]] == expected
    assert parted.counts == whole.counts


@given(streams(values=NUMBERS, attempts=1, roles=("trainer",)))
@settings(max_examples=50, deadline=None)
def test_the_last_emission_of_a_point_is_the_mean_of_each_ranks_last_value(items: list[Item]):
    """Whatever was emitted early and changed later, in the end the tracker has the mean over the ranks, each by its last value."""
    items = [one for one in items if not isinstance(one.event, Metrics) or one.event.step is not None]
    merged = view()
    final = {(point.step, point.key): point for point in [*merged.feed(items), *merged.finish()]}
    model: dict[tuple[int, str], dict[int, float]] = {}
    for one in items:
        if isinstance(one.event, Metrics):
            for key, value in one.event.values.items():
                model.setdefault((one.event.step, key), {})[one.rank] = value
    assert {place: point.value for place, point in final.items()} == {place: mean(list(values.values())) for place, values in model.items()}
    assert {place: point.n_ranks for place, point in final.items()} == {place: len(values) for place, values in model.items()}


@given(streams(values=NUMBERS, attempts=3, roles=("trainer",)))
@settings(max_examples=50, deadline=None)
def test_the_last_emission_of_a_point_is_the_newest_attempts(items: list[Item]):
    """No value of an older attempt is in, or replaces, a point that a newer attempt has logged and emitted."""
    items = [one for one in items if not isinstance(one.event, Metrics) or one.event.step is not None]
    merged = view()
    final = {(point.step, point.key): point for point in [*merged.feed(items), *merged.finish()]}
    model: dict[tuple[int, str], dict[int, dict[int, float]]] = {}
    for one in items:
        if isinstance(one.event, Metrics):
            for key, value in one.event.values.items():
                model.setdefault((one.event.step, key), {}).setdefault(one.attempt, {})[one.rank] = value
    for place, attempts in model.items():
        newest = max(attempts)
        assert final[place].attempt == newest
        assert final[place].value == mean(list(attempts[newest].values()))


@given(st.permutations(list(range(4))), st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=4, max_size=4))
def test_the_mean_does_not_depend_on_the_order_of_the_ranks(order: list[int], numbers: list[float]):
    """Two readers that see the ranks in different order compute the same bits."""
    assert mean([numbers[index] for index in order]) == mean(numbers)
