"""Who a step waits for: the trainer ranks of the newest attempt, what they have reached and whether they still live."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Attempt(msgspec.Struct, array_like=True):
    """The ranks of one attempt, as far as the journal has spoken of them. An attempt replaced by a newer one holds nothing."""

    number: int
    since_ns: int
    """View time at which the attempt was first heard of."""
    world_size: int = 0
    complete: bool = False
    """Ranks that were never seen are not waited for any longer."""
    reached: dict[int, int] = {}
    """{rank: highest step it logged}"""
    live: dict[int, bytes] = {}
    """{rank: its producer, while it is neither silent nor gone}"""
    seen: set[int] = set()

    def join(self, rank: int, producer: bytes, world_size: int = 0) -> None:
        """*rank* spoke for the first time, or speaks again."""
        self.live[rank] = producer
        self.seen.add(rank)
        self.world_size = max(self.world_size, world_size)

    def leave(self, rank: int, producer: bytes) -> bool:
        """Return whether *rank*, by the word of or about *producer*, held anything until now."""
        self.seen.add(rank)
        if self.live.get(rank) != producer:
            return False
        del self.live[rank]
        return True

    def unseen(self) -> list[int]:
        """Return the ranks that should exist and have not been heard of."""
        return [rank for rank in range(self.world_size) if rank not in self.seen]

    def awaited(self, step: int, usual: Iterable[int] | None) -> set[int]:
        """Return the ranks that may still log at *step*, among the *usual* ones or, with None, among all."""
        candidates = [*self.live, *(() if self.complete else self.unseen())] if usual is None else usual
        return {rank for rank in candidates if self._holds(rank) and self.reached.get(rank, step) <= step}

    def _holds(self, rank: int) -> bool:
        return rank in self.live or (not self.complete and rank not in self.seen and rank < self.world_size)


__all__ = ["Attempt"]
