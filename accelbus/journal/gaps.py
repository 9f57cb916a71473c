"""Events that wait behind missing sequence numbers."""

from __future__ import annotations

import logging
from typing import Final

from accelbus.journal.producers import Piece, Producer

logger = logging.getLogger(__name__)

_NEVER: Final = 2**63


class WaitingRoom:
    """Hold pieces until the numbers before them come, have been waited for long enough, or take too much memory.

    Time is the journal's: the caller says what it is. `hold`, `give_up` and `give_up_all` return what may go out.

    Args:
        hold_ns: longest wait.
        limit_bytes: of the frames that wait.
    """

    def __init__(self, *, hold_ns: int, limit_bytes: int) -> None:
        self.bytes = 0
        self.given_up = 0
        """Gaps that were not waited for any longer."""
        self._hold_ns = hold_ns
        self._limit_bytes = limit_bytes
        self._waiting: set[Producer] = set()
        self._due_ns = _NEVER
        """No gap is due before; may be too early, never too late."""

    @property
    def events(self) -> int:
        return sum(piece.last - piece.first + 1 for producer in self._waiting for piece in producer.held)

    def admit(self, piece: Piece, now_ns: int) -> list[Piece]:
        """Take in *piece*, which its producer holds now; return what has to leave for it."""
        piece.held_since_ns = now_ns
        self.bytes += len(piece.row.frame.raw)
        self._waiting.add(piece.producer)
        self._due_ns = min(self._due_ns, now_ns + self._hold_ns)
        released: list[Piece] = []
        while self.bytes > self._limit_bytes:
            released += self._give_up(min(self._waiting, key=Producer.waiting_since_ns))
        return released

    def leave(self, producer: Producer, pieces: list[Piece]) -> None:
        """Note that *pieces* of *producer* go out."""
        for piece in pieces:
            if piece.held_since_ns is not None:
                self.bytes -= len(piece.row.frame.raw)
        if not producer.held:
            self._waiting.discard(producer)

    def give_up_due(self, now_ns: int) -> list[Piece]:
        """Return what waited long enough at *now_ns*."""
        if now_ns < self._due_ns:
            return []
        released = self._give_up_since(now_ns - self._hold_ns)
        self._due_ns = min((producer.waiting_since_ns() + self._hold_ns for producer in self._waiting), default=_NEVER)
        return released

    def give_up_all(self) -> list[Piece]:
        """Return everything that waits."""
        return self._give_up_since(_NEVER)

    def _give_up_since(self, since_ns: int) -> list[Piece]:
        released: list[Piece] = []
        for producer in tuple(self._waiting):
            while producer.held and producer.waiting_since_ns() <= since_ns:
                released += self._give_up(producer)
        return released

    def _give_up(self, producer: Producer) -> list[Piece]:
        self.given_up += 1
        if self.given_up == 1:
            first, last, info = producer.next_seq, producer.held[0].first - 1, producer.info
            who = f"rank {info.rank}, attempt {info.attempt}, producer {producer.uuid.hex()}"
            logger.warning("events %d to %d of %s are missing; reading goes on without them, more gaps are only counted", first, last, who)
        released = producer.give_up_gap()
        self.leave(producer, released)
        return released
