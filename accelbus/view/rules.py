"""How the values that ranks logged under one key and step become one value.

Rules are data: a reduction is a function from the numbers of the contributing ranks to one number, and must not depend on their
order, so that every reader of a journal computes the same bits. Text, lists and media cannot be averaged: the main rank's count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, cast

import msgspec

Value: TypeAlias = float | int | str | bool | list[Any] | msgspec.msgpack.Ext | None
"""An extension is packed media."""
Reduction: TypeAlias = Callable[[Collection[float]], float]


class Reduced(NamedTuple):
    """One value from many."""

    value: Value
    used: tuple[int, ...]
    """Contributors whose value went into ``value``."""
    unused: tuple[int, ...]
    """Contributors whose value did not: text beside the main rank's, numbers beside text."""


def mean(numbers: Collection[float]) -> float:
    """Return the mean, correctly rounded whatever the order. NaN and opposite infinities give NaN."""
    if len(numbers) == 1:
        (only,) = numbers
        return float(only) if isinstance(only, bool) else only
    try:
        return math.fsum(numbers) / len(numbers)
    except OverflowError:
        # The sum leaves the range of floats though the mean does not; the parts cannot.
        return math.fsum(number / len(numbers) for number in numbers)
    except ValueError:
        return math.nan


_NUMBERS: Final = frozenset({float, int, bool})

REDUCTIONS: Final[Mapping[str, Reduction]] = {"mean": mean}


def is_number(value: object) -> TypeGuard[float]:
    """Whether *value* can be averaged; text, lists and everything that is to come cannot."""
    return isinstance(value, (float, int))


class Rules:
    """Which reduction a key has. For now the mean, for every key."""

    def reduction(self, key: str) -> Reduction:
        """Return the reduction of *key*."""
        return REDUCTIONS["mean"]

    def reduce(self, key: str, values: Mapping[int, Value]) -> Reduced | None:
        """Merge *values*, ``{contributor: value}``; the lowest contributor is the main one. None when nobody has a value."""
        if _NUMBERS.issuperset(map(type, values.values())) and values:
            return Reduced(self.reduction(key)(cast("Collection[float]", values.values())), tuple(values), ())
        present = {who: value for who, value in values.items() if value is not None}
        if not present:
            return None
        main = min(present)
        lead = present[main]
        if not is_number(lead):
            return Reduced(lead, (main,), tuple(who for who in present if who != main))
        numbers = {who: value for who, value in present.items() if is_number(value)}
        return Reduced(self.reduction(key)(numbers.values()), tuple(numbers), tuple(who for who in present if who not in numbers))


__all__ = ["REDUCTIONS", "Reduced", "Reduction", "Rules", "Value", "is_number", "mean"]
