"""Who usually logs a key: those that contributed to its last emitted point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

KEYS: Final = 16384
"""Keys remembered. A program that invents keys as it goes makes the oldest ones forgotten, which costs them a wait."""
_SETS: Final = 1024

NOBODY: Final[frozenset[int]] = frozenset()


class UsualState(msgspec.Struct, array_like=True):
    """Snapshot of `Usual`. Most keys share a few sets, so these are stored once."""

    sets: list[list[int]] = []
    keys: dict[str, tuple[int, int]] = {}
    """{key: (attempt, index of its set)}"""


class Usual:
    """Remember, per key, the contributors of its last point and the attempt they belong to."""

    def __init__(self, state: UsualState) -> None:
        sets = [frozenset(members) for members in state.sets]
        self._sets = {members: members for members in sets}
        self._keys = {key: (attempt, sets[index]) for key, (attempt, index) in state.keys.items()}

    def state(self) -> UsualState:
        used = {members: None for _, members in self._keys.values()}
        numbers = {members: index for index, members in enumerate(used)}
        keys = {key: (attempt, numbers[members]) for key, (attempt, members) in self._keys.items()}
        return UsualState([sorted(members) for members in used], keys)

    def get(self, key: str, attempt: int) -> frozenset[int]:
        """Return who usually logs *key* in *attempt*; nobody when that is not known."""
        known = self._keys.get(key)
        return known[1] if known is not None and known[0] == attempt else NOBODY

    def remember(self, key: str, attempt: int, contributors: Iterable[int]) -> bool:
        """*contributors*, a set or a dictionary's keys, have just made a point of *key*; return whether that is news.

        Older attempts teach nothing.
        """
        known = self._keys.get(key)
        if known is not None and (attempt < known[0] or (attempt == known[0] and known[1] == contributors)):
            return False
        if known is None and len(self._keys) >= KEYS:
            del self._keys[next(iter(self._keys))]
        self._keys[key] = (attempt, self._shared(frozenset(contributors)))
        return True

    def _shared(self, members: frozenset[int]) -> frozenset[int]:
        if len(self._sets) > _SETS:
            self._sets = {used: used for _, used in self._keys.values()}
        return self._sets.setdefault(members, members)


__all__ = ["KEYS", "NOBODY", "Usual", "UsualState"]
