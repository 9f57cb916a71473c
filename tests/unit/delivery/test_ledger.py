"""Rows from points, and the books."""

from __future__ import annotations

from accelbus.delivery.cursor import Delivered
from accelbus.delivery.ledger import Ledger, OwedRow, rows_of
from accelbus.delivery.status import RankCounts
from accelbus.tracking import Row
from accelbus.view import Point
from tests.support.views import log, starts, view


def point(step, key, value, *, attempt=0, time_ns=1, contributions=None):
    return Point(attempt, step, key, value, time_ns, 1, contributions if contributions is not None else {0: 1})


class TestRows:
    def test_points_of_a_step_are_one_row(self):
        """In step order, whatever order they became ready in."""
        rows = rows_of(
            [
                point(2, "a", 1.0),
                point(1, "a", 2.0, time_ns=5),
                point(2, "b", 3.0, contributions={0: 1, 1: 1}),
                point(1, "b", 1.0, time_ns=9),
            ]
        )
        assert rows == [
            OwedRow(Row(1, {"a": 2.0, "b": 1.0}, 9, 0), {0: 2}),
            OwedRow(Row(2, {"a": 1.0, "b": 3.0}, 1, 0), {0: 2, 1: 1}),
        ]

    def test_of_a_point_emitted_twice_the_later_counts(self):
        """And both emissions' values are settled by the row."""
        (row,) = rows_of([point(1, "a", 1.0), point(1, "a", 1.5, contributions={1: 1})])
        assert row == OwedRow(Row(1, {"a": 1.5}, 1, 0), {0: 1, 1: 1})

    def test_attempts_are_rows_of_their_own_in_order(self):
        """A tracker that replaces steps must see the newer one last."""
        rows = rows_of([point(1, "a", 2.0, attempt=1), point(5, "a", 1.0)])
        assert [(owed.row.attempt, owed.row.step) for owed in rows] == [(0, 5), (1, 1)]


class TestLedger:
    def test_a_value_is_in_one_place_on_its_way(self):
        """Pending until its row is durable; then delivered, or dead-lettered."""
        merged = view()
        rows = rows_of(merged.feed([*starts(1), log(0, 1, {"a": 1.0, "n": None}), log(0, 2, {"a": 1.0}), log(0, 3, {"a": 1.0})]))
        ledger = Ledger()
        ledger.queue(rows)
        assert ledger.balance(merged) == {0: RankCounts(read=4, pending=3, filtered=1)}
        ledger.take(rows[:2])
        assert ledger.balance(merged) == {0: RankCounts(read=4, pending=3, filtered=1)}
        ledger.settle()
        assert ledger.balance(merged) == {0: RankCounts(read=4, pending=1, delivered=2, filtered=1)}
        ledger.give_up(rows[2])
        assert ledger.balance(merged) == {0: RankCounts(read=4, delivered=2, filtered=1, dead_lettered=1)}

    def test_it_goes_on_from_a_cursor(self):
        """What was settled by an earlier worker is settled."""
        ledger = Ledger({0: Delivered(5, 1)})
        assert ledger.settled() == {0: Delivered(5, 1)}
