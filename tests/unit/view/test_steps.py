"""A set of steps in little space."""

from __future__ import annotations

import msgspec
from hypothesis import given, strategies as st

from accelbus.view.steps import RUNS, StepSet


def filled(steps) -> StepSet:
    made = StepSet()
    for step in steps:
        made.add(step)
    return made


def test_steps_at_equal_distance_are_one_run():
    """A million steps of a training that logs every tenth take a few bytes."""
    steps = filled(range(0, 100_000, 10))
    assert steps.runs == [[0, 99_990, 10]]
    assert 500 in steps
    assert 505 not in steps
    assert 100_000 not in steps


def test_a_change_of_distance_starts_a_new_run():
    """What lies between is not taken in."""
    steps = filled([0, 10, 20, 21, 22, 5])
    assert [step in steps for step in (0, 10, 20, 21, 22, 5)] == [True] * 6
    assert 15 not in steps
    assert 11 not in steps


@given(st.lists(st.integers(-50, 200), max_size=60))
def test_it_is_exact_while_runs_are_few(added: list[int]):
    """Sixty steps make at most sixty runs."""
    steps = filled(added)
    assert [step for step in range(-60, 220) if step in steps] == sorted(set(added))


@given(st.lists(st.integers(0, 10_000), max_size=300, unique=True))
def test_it_never_forgets_and_never_grows_beyond_its_bound(added: list[int]):
    """However irregular the steps are."""
    steps = filled(added)
    assert all(step in steps for step in added)
    assert len(steps.runs) <= RUNS


def test_two_sets_join():
    """And a copy is independent."""
    one, other = filled([1, 2, 3]), filled([10, 20])
    copied = one.copy()
    one.update(other)
    other.add(30)
    assert [step for step in range(40) if step in one] == [1, 2, 3, 10, 20]
    assert 10 not in copied


def test_it_travels():
    """It is part of every cursor."""
    steps = filled([1, 2, 3, 7])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(steps), type=StepSet) == steps
