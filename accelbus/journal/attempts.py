"""Which attempt of a run a producer belongs to.

The rule is here once, because a bus process that records it and a reader that finds events of a producer no bus process has met
yet (spilled, salvaged) must agree.
"""

from __future__ import annotations

from typing import NamedTuple

from accelbus.events import TRAINER


class _Seat(NamedTuple):
    """The place of one trainer rank in one attempt; only one living producer sits on it."""

    attempt: int
    rank: int


class AttemptTable:
    """Assign producers to attempts, the first of which is 0.

    Producers of one launch token share an attempt; a token not seen before opens the next one. A second trainer of a rank, while
    the first is still alive, opens the next attempt too, and later ranks of the same token follow it there. An attempt that the
    user gave explicitly is taken as it is. Other roles than the trainer open no attempt: they join their token's, or else the newest,
    however many they are. A trainer that is dead when it is found takes no place; if another one of its rank lives it is no successor of
    that one but was there before, and opens nothing.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        """{producer: attempt}"""
        self._of_launch: dict[bytes, int] = {}
        """{launch token: its newest attempt}"""
        self._seats: dict[_Seat, bytes] = {}
        """{seat: the living producer on it}"""
        self._seat_of: dict[bytes, _Seat] = {}
        self._highest = -1

    @property
    def highest(self) -> int:
        """Newest attempt, -1 when there is none yet."""
        return self._highest

    def assign(
        self, producer: bytes, *, launch: bytes, rank: int, role: str = TRAINER, explicit: int | None = None, is_dead: bool = False
    ) -> int:
        """Return the attempt of *producer*, deciding it if that has not happened yet.

        Args:
            producer: uuid; asking twice gives the same answer.
            launch: launch token.
            rank: -1 when it is not known.
            role: only ``trainer`` producers exclude each other.
            explicit: the attempt given to ``init``.
            is_dead: its process has ended, and nobody had heard of it.
        """
        known = self._known.get(producer)
        if known is not None:
            return known
        attempt = explicit if explicit is not None else self._next_for(launch, rank, role, is_dead=is_dead)
        self.learn(producer, launch=launch, rank=-1 if is_dead else rank, role=role, attempt=attempt)
        return attempt

    def has_living(self, rank: int) -> bool:
        """Whether a trainer of *rank* lives, in whatever attempt."""
        return any(seat.rank == rank for seat in self._seats)

    def learn(self, producer: bytes, *, launch: bytes, rank: int, role: str = TRAINER, attempt: int) -> None:
        """Take over what somebody else decided, and follow it from here on."""
        self._known[producer] = attempt
        self.ended(producer)
        if role != TRAINER:
            return
        self._of_launch[launch] = max(attempt, self._of_launch.get(launch, attempt))
        self._highest = max(self._highest, attempt)
        if rank >= 0:
            seat = _Seat(attempt, rank)
            self._seats[seat] = producer
            self._seat_of[producer] = seat

    def ended(self, producer: bytes) -> None:
        """Free the place of a producer that is finished, dead or lost: its rank may come back in the same attempt."""
        seat = self._seat_of.pop(producer, None)
        if seat is not None and self._seats.get(seat) == producer:
            del self._seats[seat]

    def _next_for(self, launch: bytes, rank: int, role: str, *, is_dead: bool) -> int:
        attempt = self._of_launch.get(launch)
        if role != TRAINER:
            return max(self._highest, 0) if attempt is None else attempt
        if is_dead and (attempt is not None or self.has_living(rank)):
            return max(self._highest - 1, 0) if attempt is None else attempt
        taken = attempt is not None and _Seat(attempt, rank) in self._seats
        return self._highest + 1 if attempt is None or taken else attempt
