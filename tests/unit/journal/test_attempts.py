"""Which attempt a producer belongs to."""

from __future__ import annotations

from accelbus.journal.attempts import AttemptTable
from tests.support.journals import uuid

A, B, C = b"A" * 16, b"B" * 16, b"C" * 16


def test_ranks_of_one_launch_share_the_first_attempt():
    """The first launch token is attempt 0, for all its ranks."""
    table = AttemptTable()
    assert [table.assign(uuid(rank), launch=A, rank=rank) for rank in range(3)] == [0, 0, 0]
    assert table.highest == 0


def test_a_new_launch_is_the_next_attempt():
    """An elastic restart changes the token; its ranks agree again, and a late rank of the old launch still joins the old one."""
    table = AttemptTable()
    table.assign(uuid(0), launch=A, rank=0)
    assert [table.assign(uuid(10 + rank), launch=B, rank=rank) for rank in range(2)] == [1, 1]
    assert table.assign(uuid(1), launch=A, rank=1) == 0


def test_asking_again_changes_nothing():
    """A producer keeps its attempt, whatever is said about it later."""
    table = AttemptTable()
    table.assign(uuid(0), launch=A, rank=0)
    assert table.assign(uuid(0), launch=B, rank=5, explicit=7) == 0
    assert table.highest == 0


def test_a_second_living_producer_of_a_rank_opens_the_next_attempt():
    """A rank started twice with the same token is a new generation, and the other ranks of that generation follow."""
    table = AttemptTable()
    first = [table.assign(uuid(rank), launch=A, rank=rank) for rank in range(2)]
    second = [table.assign(uuid(10 + rank), launch=A, rank=rank) for rank in range(2)]
    assert (first, second) == ([0, 0], [1, 1])


def test_a_rank_that_ended_comes_back_in_the_same_attempt():
    """Only a living producer holds its rank's place."""
    table = AttemptTable()
    table.assign(uuid(0), launch=A, rank=0)
    table.ended(uuid(0))
    assert table.assign(uuid(1), launch=A, rank=0) == 0


def test_the_end_of_a_fenced_producer_frees_nobody_elses_place():
    """The old producer of a rank ends after the new one took over: the new one still counts as living."""
    table = AttemptTable()
    table.assign(uuid(0), launch=A, rank=0)
    table.assign(uuid(1), launch=A, rank=0)
    table.ended(uuid(0))
    assert table.assign(uuid(2), launch=A, rank=0) == 2


def test_any_number_of_other_roles_share_an_attempt():
    """Data-loader workers of one rank are many, and an evaluator never opens an attempt."""
    table = AttemptTable()
    table.assign(uuid(0), launch=A, rank=0)
    assert [table.assign(uuid(1 + n), launch=A, rank=0, role="worker") for n in range(3)] == [0, 0, 0]


def test_other_roles_open_no_attempt():
    """An evaluator that was started by itself joins the newest attempt; the trainers that come after it are the first all the same."""
    table = AttemptTable()
    assert table.assign(uuid(0), launch=A, rank=0, role="evaluator") == 0
    assert table.assign(uuid(1), launch=B, rank=0) == 0
    assert table.assign(uuid(2), launch=A, rank=0) == 1
    assert table.assign(uuid(3), launch=C, rank=0, role="evaluator") == 1
    assert table.assign(uuid(4), launch=C, rank=0) == 2
    assert table.highest == 2


def test_an_explicit_attempt_is_taken_as_it_is():
    """What the user gave to ``init`` rules, and counting goes on from there."""
    table = AttemptTable()
    assert table.assign(uuid(0), launch=A, rank=0, explicit=5) == 5
    assert table.assign(uuid(1), launch=A, rank=1) == 5
    assert table.assign(uuid(2), launch=B, rank=0) == 6


def test_what_a_bus_process_recorded_is_followed():
    """A recorded attempt binds the token, also when it is lower than the newest."""
    table = AttemptTable()
    table.learn(uuid(0), launch=A, rank=0, attempt=3)
    table.learn(uuid(1), launch=B, rank=0, attempt=1)
    assert table.assign(uuid(2), launch=B, rank=1) == 1
    assert table.assign(uuid(3), launch=C, rank=0) == 4


def test_a_producer_of_unknown_rank_holds_no_place():
    """Without its first event nothing but its launch is known."""
    table = AttemptTable()
    assert [table.assign(uuid(n), launch=A, rank=-1) for n in range(3)] == [0, 0, 0]


def test_one_that_is_found_dead_behind_its_living_successor_opens_nothing():
    """It was there before, whether its token is known or not, and the successor keeps its place."""
    table = AttemptTable()
    table.assign(uuid(0), launch=A, rank=0)
    assert table.assign(uuid(1), launch=A, rank=0, is_dead=True) == 0
    assert table.assign(uuid(2), launch=B, rank=0, is_dead=True) == 0
    assert table.assign(uuid(3), launch=A, rank=1) == 0
    assert table.assign(uuid(4), launch=C, rank=0) == 1


def test_one_that_is_found_dead_before_its_successor_comes_takes_no_place():
    """Its rank comes back in the same attempt; without a successor an unknown token is a new attempt, dead or not."""
    table = AttemptTable()
    assert table.assign(uuid(0), launch=A, rank=0, is_dead=True) == 0
    assert table.assign(uuid(1), launch=A, rank=0) == 0
    table.ended(uuid(1))
    assert table.assign(uuid(2), launch=B, rank=0, is_dead=True) == 1
