"""The view of a tracker that only one rank has."""

from __future__ import annotations

from typing import Any

from accelbus.config import Tuning
from accelbus.journal.merge import Item
from accelbus.view import OneRankView, Rules
from tests.support import views as v


def one_rank(rank: int) -> OneRankView:
    return OneRankView(rank, Rules(), tuning=Tuning(), sink=f"mine@rank{rank}")


def run(view: OneRankView, items: list[Item]) -> list[tuple[int, str, Any]]:
    points = view.feed(items)
    v.check_books(view)
    return v.short(points)


def test_it_has_what_its_rank_logged_and_nothing_else():
    """Unmerged, texts too, though another rank logs the same keys; the values of others are filtered, so that the books balance."""
    view = one_rank(1)
    items = [
        *v.starts(3),
        *(v.log(rank, 1, {"loss": float(rank), "note": f"rank {rank}"}) for rank in range(3)),
        v.log(1, 2, {"loss": 5.0}),
    ]
    assert run(view, items) == [(1, "loss", 1.0), (1, "note", "rank 1"), (2, "loss", 5.0)]
    assert {rank: counts.filtered for rank, counts in view.counts.items()} == {0: 2, 1: 0, 2: 2}


def test_it_waits_for_no_other_rank():
    """Points leave with their value, whatever other ranks of the world have said, also those never seen."""
    view = one_rank(0)
    assert run(view, [v.start(0, ranks=8), v.log(0, 1, {"loss": 1.0}), v.log(0, 1, {"lr": 2.0})]) == [(1, "loss", 1.0), (1, "lr", 2.0)]
    assert run(view, [v.start(3, ranks=8), v.log(3, 9, {"loss": 3.0}), v.log(0, 2, {"loss": 4.0})]) == [(2, "loss", 4.0)]


def test_a_newer_attempt_of_its_rank_replaces_steps():
    """As in the view of all ranks."""
    view = one_rank(1)
    first = [*v.starts(2), *(v.log(rank, step, {"loss": float(step)}) for step in (1, 2) for rank in (0, 1))]
    again = [*v.starts(2, at=5.0, attempt=1), v.log(1, 2, {"loss": 20.0}, at=6.0, attempt=1), v.log(1, 1, {"loss": -1.0}, at=6.0)]
    assert run(view, first) == [(1, "loss", 1.0), (2, "loss", 2.0)]
    assert run(view, again)[0] == (2, "loss", 20.0)
