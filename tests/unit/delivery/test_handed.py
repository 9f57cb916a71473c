"""Rows that were taken, and may be refused afterwards."""

from __future__ import annotations

import msgspec
import pytest

from accelbus.delivery.handed import HandedRows
from accelbus.delivery.ledger import rows_of
from accelbus.tracking import RefusedRow
from accelbus.view import Point


def rows(*points: Point):
    made = rows_of(points)
    return [*made.scalars, *made.media]


def point(step, key, value, contributions, *, attempt=0):
    return Point(attempt, step, key, value, 1, 1, contributions)


def taken(*points: Point, **options):
    handed = HandedRows(**options)
    for each in points:
        handed.add(rows(each))
    return handed


def refused(handed, *refusal, **options):
    return [(dict(each.row.values), each.contributions) for each in handed.refused(RefusedRow(*refusal, **options))]


def test_a_whole_row_is_found_with_its_values():
    """And with the ranks that logged them."""
    handed = HandedRows()
    handed.add(rows(point(1, "a", 1.0, {0: 1}), point(1, "b", 2.0, {1: 1}), point(2, "a", 3.0, {0: 1})))
    assert refused(handed, 0, 1, "no") == [({"a": 1.0, "b": 2.0}, {0: 1, 1: 1})]


def test_single_values_are_found_with_their_own_ranks():
    """What is left of the row may be refused later, each value once."""
    handed = HandedRows()
    handed.add(rows(point(1, "a", 1.0, {0: 1}), point(1, "b", 2.0, {1: 1}), point(1, "c", 3.0, {0: 1, 1: 1})))
    assert refused(handed, 0, 1, "no", ("b",)) == [({"b": 2.0}, {1: 1})]
    assert refused(handed, 0, 1, "no") == [({"a": 1.0, "c": 3.0}, {0: 2, 1: 1})]
    assert refused(handed, 0, 1, "no") == [({}, {})]


def test_a_step_in_several_rows_is_told_apart_by_keys():
    """Without any, the last row is meant; an attempt's row is its own."""
    handed = taken(point(1, "a", 1.0, {0: 1}), point(1, "b", 2.0, {0: 1}), point(1, "b", 5.0, {0: 1}, attempt=1))
    assert refused(handed, 0, 1, "no", ("a",)) == [({"a": 1.0}, {0: 1})]
    assert refused(handed, 0, 1, "no") == [({"b": 2.0}, {0: 1})]
    assert refused(handed, 1, 1, "no") == [({"b": 5.0}, {0: 1})]


@pytest.mark.parametrize("attempt", [0, 3])
def test_media_are_found_by_their_key(attempt):
    """Whatever attempt is named: their hooks are not told it. A whole row is never media."""
    image = msgspec.msgpack.Ext(2, b"an image")
    handed = taken(point(1, "image", image, {0: 1}, attempt=3))
    assert refused(handed, attempt, 1, "no") == [({}, {})]
    assert refused(handed, attempt, 1, "no", ("image",)) == [({"image": image}, {0: 1})]


def test_what_is_not_known_any_more_is_named_all_the_same():
    """The oldest steps are forgotten: memory is bounded."""
    handed = taken(point(1, "a", 1.0, {0: 1}), point(2, "a", 2.0, {0: 1}), point(3, "a", 3.0, {0: 1}), most_values=2)
    assert refused(handed, 0, 1, "no", ("a",)) == [({"a": ""}, {})]
    assert refused(handed, 0, 2, "no", ("a",)) == [({"a": 2.0}, {0: 1})]
