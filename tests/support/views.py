"""Items by hand, as the journal reader would yield them."""

from __future__ import annotations

from typing import Any

import msgspec

from accelbus.config import Tuning
from accelbus.events import Metrics, ProducerJoined, ProducerState, RunClosed, RunEnd, RunStart, Tick
from accelbus.journal.merge import Item
from accelbus.view import Point, Rules, View, ViewState

SECOND = 10**9
BUS = b"b" * 16


def producer(rank: int, attempt: int = 0, role: str = "trainer") -> bytes:
    """Return the uuid of a producer that exists once per rank, attempt and role."""
    return f"{role[:4]:4}{attempt:6}{rank:6}".encode()


def item(rank: int, event: Any, at: float, *, attempt: int = 0, role: str = "trainer") -> Item:
    return Item(int(at * SECOND), producer(rank, attempt, role), rank, attempt, role, 1, event)


def start(rank: int, ranks: int = 2, at: float = 0.0, *, attempt: int = 0, role: str = "trainer") -> Item:
    return item(rank, RunStart(0, "run", rank, ranks, rank, "host", 1, role), at, attempt=attempt, role=role)


def starts(ranks: int, at: float = 0.0, *, attempt: int = 0) -> list[Item]:
    return [start(rank, ranks, at, attempt=attempt) for rank in range(ranks)]


def log(
    rank: int, step: int | None, values: dict[str, Any], at: float = 1.0, *, attempt: int = 0, role: str = "trainer", auto_step: int = 0
) -> Item:
    return item(rank, Metrics(int(at * SECOND), step, values, auto_step), at, attempt=attempt, role=role)


def end(rank: int, at: float, *, attempt: int = 0) -> Item:
    return item(rank, RunEnd(0, "finished"), at, attempt=attempt)


def about(rank: int, state: str, at: float, *, attempt: int = 0, role: str = "trainer") -> Item:
    """Return a bus process's word on a rank; the reader gives such an item the rank it speaks of."""
    event = ProducerState(0, producer(rank, attempt, role), state, 1)
    return Item(int(at * SECOND), BUS, rank, attempt, role, 1, event)


def joined(rank: int, ranks: int, at: float, *, attempt: int = 0) -> Item:
    event = ProducerJoined(0, producer(rank, attempt), rank, ranks, attempt, "trainer", "host", 1, bytes(16))
    return Item(int(at * SECOND), BUS, rank, attempt, "trainer", 1, event)


def tick(at: float) -> Item:
    return Item(int(at * SECOND), BUS, -1, -1, "", 1, Tick(int(at * SECOND)))


def closed(at: float) -> Item:
    return Item(int(at * SECOND), BUS, -1, -1, "", 1, RunClosed(int(at * SECOND), "finished"))


def view(**tuning: Any) -> View:
    return View(Rules(), tuning=Tuning(**tuning))


def reopened(old: View, **tuning: Any) -> View:
    """Return a view that goes on from the state of *old*, which went through bytes as in a cursor."""
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(old.state()), type=ViewState)
    return View(Rules(), state, tuning=Tuning(**tuning))


def short(points: list[Point]) -> list[tuple[int, str, Any]]:
    """Return points as (step, key, value)."""
    return [(point.step, point.key, point.value) for point in points]


def check_books(of: View) -> None:
    """Every value read is emitted, filtered, superseded or open, per rank."""
    held = of.pending()
    for rank, counts in of.counts.items():
        assert counts.read == counts.emitted + counts.filtered + counts.superseded + held.get(rank, 0), (rank, counts, held)
