"""What readers of the journal get."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from accelbus.events import AnyEvent
from accelbus.journal.producers import Piece


class Item(NamedTuple):
    """One event or record."""

    received_ns: int
    """When its row was written. Not monotonic where writers, or events held behind a gap, interleave."""
    producer: bytes
    """Who wrote it; for a record, the bus process."""
    rank: int
    """Of the producer, for a record of the producer it speaks of; -1 when that is nobody or not known."""
    attempt: int
    role: str
    seq: int
    event: AnyEvent


new_item: Final[Callable[[Any], Item]] = partial(tuple.__new__, Item)  # twice as fast as Item(…), and there are millions


class Batch:
    """The items of one piece, handed out in one go or in parts."""

    def __init__(self, piece: Piece, items: list[Item]) -> None:
        self._piece = piece
        self._items = items
        self._taken = 0
        self._next_seq = piece.first
        self.done = False

    def take(self, room: int) -> list[Item]:
        """Return at most *room* more items, and count them as handed out."""
        items = self._items[self._taken : self._taken + room]
        self._taken += len(items)
        self.done = self._taken == len(self._items)
        # Events that nobody can decode are done with as well: they would never be handed out.
        last = self._piece.last if self.done else items[-1].seq
        self._piece.producer.handed_out.add(self._next_seq, last)
        self._next_seq = last + 1
        self._piece.source.pieces -= self.done
        return items
