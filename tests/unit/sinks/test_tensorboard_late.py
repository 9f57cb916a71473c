"""Late points against a model of how TensorBoard's data server reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("tensorboard")

from accelbus.tracking import Row
from accelbus_sinks._tensorboard_late import LatePoints

ROWS = st.lists(
    st.one_of(
        st.builds(
            lambda step, values: Row(step, values, 0),
            st.integers(0, 9),
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 99), min_size=1),
        ),
        st.just("flush"),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(ROWS)
def test_every_point_is_shown_with_its_newest_value(orders):
    """Whatever the order of steps and flushes, the data server ends with exactly the newest value of each point, in step order."""
    late, shown, expected = LatePoints(), {}, {}
    for order in [*orders, "flush"]:
        if order == "flush":
            _read(shown, late.release())
        else:
            expected.update({(order.step, key): value for key, value in order.values.items()})
            _read(shown, [late.pass_on(order)])
    assert {(step, key): value for key, curve in shown.items() for step, value in curve} == expected
    assert all([step for step, _ in curve] == sorted({step for step, _ in curve}) for curve in shown.values())


def test_rows_in_step_order_pass_untouched():
    """What is usual costs no copy and no second writing."""
    late = LatePoints()
    rows = [Row(step, {"loss": 1.0}, 0) for step in (1, 2, 2, 3)] + [Row(3, {"lr": 1.0}, 0)]
    assert all(late.pass_on(row) is row for row in rows)
    assert late.release() == []


def test_a_new_key_at_an_old_step_is_not_late():
    """Only a curve that is already further on could lose points."""
    late = LatePoints()
    late.pass_on(Row(100, {"loss": 1.0}, 0))
    assert late.pass_on(Row(50, {"eval/accuracy": 0.5}, 0)).values == {"eval/accuracy": 0.5}
    assert late.release() == []


def test_held_points_are_not_forgotten_when_much_follows():
    """The memory of later points is bounded; what was not written yet does not count against it."""
    late = LatePoints(values_kept=4)
    for step in (0, 10, *range(1, 9)):
        late.pass_on(Row(step, {"loss": float(step)}, 0))
    assert [row.step for row in late.release()] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    late.pass_on(Row(2, {"loss": 20.0}, 0))
    assert late.release()[0] == Row(2, {"loss": 20.0}, 0)


def test_a_new_attempt_may_go_back():
    """Points held of the old attempt are handed out first; then steps of the new one pass, however low."""
    late = LatePoints()
    late.pass_on(Row(9, {"loss": 9.0}, 0))
    late.pass_on(Row(5, {"loss": 5.0}, 0))
    assert [row.step for row in late.begin_attempt(1)] == [5, 9]
    resumed = Row(3, {"loss": 3.0}, 0, 1)
    assert late.pass_on(resumed) is resumed
    assert late.release() == []


def _read(shown, rows):
    """A step drops the steps of its curve that are not before it."""
    for row in rows:
        for key, value in row.values.items():
            shown[key] = [point for point in shown.get(key, []) if point[0] < row.step] + [(row.step, value)]
