"""Values that come after their events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from accelbus import frame, pending
from accelbus.events import Fill, Metrics
from accelbus.journal.bodies import decode_events
from accelbus.journal.merge import Item
from tests.support.views import check_books, closed, end, item, log, reopened, short, starts, tick, view


def marked(rank: int, step: int, values: dict[str, Any], marks: dict[str, int], at: float = 1.0) -> Item:
    """Return a log call, as the reader yields it, with *marks* in the place of some values."""
    event = Metrics(int(at * 10**9), step, {**values, **{key: pending.mark(token) for key, token in marks.items()}})
    (decoded,) = decode_events(memoryview(frame.join_events([msgspec.msgpack.encode(event)], 1)))
    return item(rank, decoded, at)


def fill(rank: int, values: dict[int, Any], at: float = 1.1) -> Item:
    return item(rank, Fill(int(at * 10**9), values), at)


def test_the_value_comes_with_its_fill_at_its_step():
    """The rest of the event does not wait for it."""
    merged = view()
    assert short(merged.feed([*starts(1), marked(0, 5, {"lr": 0.1}, {"loss": 1})])) == [(5, "lr", 0.1)]
    (point,) = merged.feed([fill(0, {1: 0.5})])
    assert (point.step, point.key, point.value, point.time_ns) == (5, "loss", 0.5, 10**9)
    check_books(merged)


def test_ranks_are_merged_when_the_last_fill_has_come():
    """A rank is past a step only when its fills are in."""
    merged = view()
    merged.feed([*starts(2), marked(0, 1, {}, {"loss": 1}), marked(1, 1, {}, {"loss": 1})])
    assert merged.feed([log(0, 2, {"other": 1.0}), log(1, 2, {"other": 1.0}), fill(0, {1: 1.0})]) != []
    assert short(merged.feed([fill(1, {1: 2.0})])) == [(1, "loss", 1.5)]


def test_a_rank_whose_value_is_on_its_way_is_waited_for_though_it_went_on():
    """Its later events release only the steps before the value."""
    merged = view()
    merged.feed([*starts(2), marked(1, 1, {}, {"loss": 1}), log(1, 2, {"x": 1.0}), log(1, 3, {"x": 1.0})])
    assert "loss" not in {key for _, key, _ in short(merged.feed([log(0, 1, {"loss": 1.0})]))}
    assert (1, "loss", 2.0) in short(merged.feed([fill(1, {1: 3.0})]))


def test_when_it_has_come_the_rank_is_where_its_events_are():
    """Steps between are released at once, not by the next event."""
    merged = view()
    merged.feed([*starts(2), marked(1, 1, {}, {"loss": 1}), log(1, 3, {"x": 1.0}), log(0, 2, {"mine": 1.0})])
    assert (2, "mine", 1.0) in short(merged.feed([fill(1, {1: 3.0})]))


def test_a_fill_before_its_event_waits_for_it():
    """Another thread writes it."""
    merged = view()
    assert merged.feed([*starts(1), fill(0, {1: 0.5})]) == []
    assert short(merged.feed([marked(0, 5, {}, {"loss": 1})])) == [(5, "loss", 0.5)]
    check_books(merged)


def test_a_lost_value_holds_nobody():
    """None says that it will not come."""
    merged = view()
    merged.feed([*starts(2), marked(1, 1, {}, {"loss": 1}), log(1, 2, {"x": 1.0})])
    assert short(merged.feed([log(0, 1, {"loss": 1.0}), fill(1, {1: None})])) == [(1, "loss", 1.0)]


def test_what_never_comes_is_waited_for_as_long_as_anything_else():
    """``late_after`` applies; a fill after that changes the point."""
    merged = view()
    merged.feed([*starts(2), marked(1, 1, {}, {"loss": 1}), log(1, 2, {"x": 1.0}), log(0, 1, {"loss": 1.0})])
    assert (1, "loss", 1.0) in short(merged.feed([tick(5.0)]))
    assert short(merged.feed([fill(1, {1: 2.0}, at=6.0)])) == [(1, "loss", 1.5)]


def test_the_end_of_a_producer_ends_the_waiting():
    """Its fills came before its last word, or never will."""
    merged = view()
    merged.feed([*starts(2), marked(1, 1, {}, {"loss": 1}), log(0, 1, {"loss": 1.0})])
    assert short(merged.feed([end(1, 1.2)])) == [(1, "loss", 1.0)]
    assert merged.feed([closed(2.0)]) == []
    assert merged.state().fills.awaited == []


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_reopened_view_goes_on(cut: int):
    """What is on its way is part of the state."""
    items = [
        *starts(1),
        marked(0, 1, {}, {"a": 1, "b": 2}),
        fill(0, {1: 1.0, 3: 3.0}),
        fill(0, {2: [1.0, 2.0]}),
        marked(0, 2, {}, {"c": 3}),
    ]
    first = view()
    points = first.feed(items[:cut])
    second = reopened(first)
    assert short(points + second.feed(items[cut:])) == [(1, "a", 1.0), (1, "b", [1.0, 2.0]), (2, "c", 3.0)]
    check_books(second)
