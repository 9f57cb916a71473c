"""Who logs a value: trainer ranks, and producers of other roles; and the steps of those who never give one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

import msgspec

from accelbus.events import TRAINER

OTHER_ROLES: Final = 1 << 40
"""A trainer's number is its rank. Producers of other roles get numbers from here on, so they come after every rank."""


class AutoSteps(msgspec.Struct, array_like=True):
    """Steps of a producer that never gives one: its calls are counted, on and on over attempts."""

    last: int = -1
    bases: dict[int, int] = {}
    """{attempt: what is added to its count}"""


class ContributorsState(msgspec.Struct, array_like=True):
    """Snapshot of `Contributors`."""

    others: list[tuple[str, int]] = []
    """(role, rank), in the order of their numbers."""
    auto: dict[int, AutoSteps] = {}


class Contributors:
    """Give every (role, rank) a number, and every call without a step its step. The state is used, not copied."""

    def __init__(self, state: ContributorsState) -> None:
        self.state = state
        self._numbers = {other: OTHER_ROLES + index for index, other in enumerate(state.others)}

    def number(self, role: str, rank: int) -> int:
        """Return the number of a contributor, a new one if need be."""
        if role == TRAINER and rank >= 0:
            return rank
        other = (role, rank)
        number = self._numbers.get(other)
        if number is None:
            number = self._numbers[other] = OTHER_ROLES + len(self.state.others)
            self.state.others.append(other)
        return number

    def rank(self, number: int) -> int:
        """Return the rank of a contributor, which one of another role shares with a trainer."""
        return number if number < OTHER_ROLES else self.state.others[number - OTHER_ROLES][1]

    def per_rank(self, numbers: Collection[int]) -> dict[int, int]:
        """Return {rank: how many of *numbers*, which are not empty}."""
        return dict.fromkeys(numbers, 1) if max(numbers) < OTHER_ROLES else Counter(map(self.rank, numbers))

    def auto_step(self, number: int, attempt: int, count: int) -> int:
        """Return the step of call *count* of *attempt*: it follows the last one of the attempt before."""
        auto = self.state.auto.get(number)
        if auto is None:
            auto = self.state.auto[number] = AutoSteps(-1, {})
        base = auto.bases.get(attempt)
        if base is None:
            follows = bool(auto.bases) and attempt > max(auto.bases)
            # A count may start at 0 or at 1; either way the first call of an attempt follows the last of the one before.
            base = auto.bases[attempt] = auto.last + 1 - min(count, 1) if follows else 0
        step = base + count
        auto.last = max(auto.last, step)
        return step


__all__ = ["OTHER_ROLES", "Contributors", "ContributorsState"]
