"""Rows from points, and the books."""

from __future__ import annotations

import msgspec

from accelbus.delivery.cursor import Delivered, OwedMedia
from accelbus.delivery.ledger import Ledger, OwedRow, media_rows, owed_media, rows_of
from accelbus.delivery.status import RankCounts
from accelbus.tracking import Row
from accelbus.view import Point
from tests.support.views import log, starts, view

IMAGE = msgspec.msgpack.Ext(2, b"an image")


def point(step, key, value, *, attempt=0, time_ns=1, contributions=None):
    return Point(attempt, step, key, value, time_ns, 1, contributions if contributions is not None else {0: 1})


class TestRows:
    def test_points_of_a_step_are_one_row(self):
        """In step order, whatever order they became ready in."""
        rows, media = rows_of(
            [
                point(2, "a", 1.0),
                point(1, "a", 2.0, time_ns=5),
                point(2, "b", 3.0, contributions={0: 1, 1: 1}),
                point(1, "b", 1.0, time_ns=9),
            ]
        )
        assert [owed._replace(points={}) for owed in rows] == [
            OwedRow(Row(1, {"a": 2.0, "b": 1.0}, 9, 0), {0: 2}),
            OwedRow(Row(2, {"a": 1.0, "b": 3.0}, 1, 0), {0: 2, 1: 1}),
        ]
        assert media == []

    def test_of_a_point_emitted_twice_the_later_counts(self):
        """And both emissions' values are settled by the row."""
        (row,) = rows_of([point(1, "a", 1.0), point(1, "a", 1.5, contributions={1: 1})]).scalars
        assert row._replace(points={}) == OwedRow(Row(1, {"a": 1.5}, 1, 0), {0: 1, 1: 1})
        assert row.points["a"].contributions == {0: 1, 1: 1}

    def test_attempts_are_rows_of_their_own_in_order(self):
        """A tracker that replaces steps must see the newer one last."""
        rows = rows_of([point(1, "a", 2.0, attempt=1), point(5, "a", 1.0)]).scalars
        assert [(owed.row.attempt, owed.row.step) for owed in rows] == [(0, 5), (1, 1)]

    def test_media_are_rows_of_their_own(self):
        """What a tracker does with an image is no matter of the numbers beside it, nor of the next image."""
        rows, media = rows_of([point(1, "b", IMAGE), point(1, "loss", 0.5), point(1, "a", IMAGE, contributions={1: 1})])
        assert [owed.row.values for owed in rows] == [{"loss": 0.5}]
        assert [(owed.label, owed.row.values, owed.contributions) for owed in media] == [
            ("0:1:a", {"a": IMAGE}, {1: 1}),
            ("0:1:b", {"b": IMAGE}, {0: 1}),
        ]

    def test_an_image_emitted_twice_is_one_row(self):
        """Its later form counts, and settles the values of both."""
        other = msgspec.msgpack.Ext(2, b"other")
        (owed,) = rows_of([point(1, "a", IMAGE), point(1, "a", other, contributions={1: 1})]).media
        assert (owed.media, owed.contributions) == (other, {0: 1, 1: 1})

    def test_owed_media_come_back_from_a_cursor_as_they_were(self):
        """Through bytes."""
        media = rows_of([point(3, "a", IMAGE, attempt=2, contributions={4: 1}), point(3, "b", IMAGE)]).media
        kept = msgspec.msgpack.decode(msgspec.msgpack.encode(owed_media(media)), type=list[OwedMedia])
        assert media_rows(kept) == media

    def test_keyword_arguments_go_with_the_rows_of_their_step(self):
        """Whichever rows those are."""
        rows = rows_of([point(1, "a", 1.0), point(2, "a", 1.0)], lambda attempt, step: {"commit": True} if step == 2 else {}).scalars
        assert [owed.row.log_kwargs for owed in rows] == [{}, {"commit": True}]


class TestLedger:
    def test_a_value_is_in_one_place_on_its_way(self):
        """Pending until its row is durable; then delivered, or dead-lettered."""
        merged = view()
        events = [*starts(1), log(0, 1, {"a": 1.0, "n": None}), log(0, 2, {"a": 1.0}), log(0, 3, {"a": 1.0})]
        rows = rows_of(merged.feed(events)).scalars
        ledger = Ledger()
        ledger.queue(rows)
        assert ledger.balance(merged) == {0: RankCounts(read=4, pending=3, filtered=1)}
        ledger.take(rows[:2])
        assert ledger.balance(merged) == {0: RankCounts(read=4, pending=3, filtered=1)}
        ledger.settle()
        assert ledger.balance(merged) == {0: RankCounts(read=4, pending=1, delivered=2, filtered=1)}
        ledger.give_up(rows[2])
        assert ledger.balance(merged) == {0: RankCounts(read=4, delivered=2, filtered=1, dead_lettered=1)}

    def test_what_is_refused_afterwards_is_not_delivered(self):
        """Whether or not it was thought to be durable; the books balance."""
        merged = view()
        rows = rows_of(merged.feed([*starts(1), log(0, 1, {"a": 1.0, "b": 1.0}), log(0, 2, {"a": 1.0})])).scalars
        ledger = Ledger()
        ledger.queue(rows)
        ledger.take(rows[:1])
        ledger.settle()
        ledger.take(rows[1:])
        ledger.refuse({0: 2})
        assert ledger.balance(merged) == {0: RankCounts(read=3, delivered=1, dead_lettered=2)}
        ledger.settle()
        assert ledger.balance(merged) == {0: RankCounts(read=3, delivered=1, dead_lettered=2)}

    def test_it_goes_on_from_a_cursor(self):
        """What was settled by an earlier worker is settled."""
        ledger = Ledger({0: Delivered(5, 1, 2)})
        assert ledger.settled() == {0: Delivered(5, 1, 2)}

    def test_what_the_options_leave_out_is_filtered(self):
        """So that the books balance."""
        merged = view()
        merged.feed([*starts(1), log(0, 1, {"a": 1.0, "b": 1.0})])
        ledger = Ledger()
        ledger.leave_out({0: 2})
        assert ledger.balance(merged) == {0: RankCounts(read=2, filtered=2)}
