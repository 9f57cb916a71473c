"""What counts as a step."""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Final

from accelbus.values.rules import shown

_STEP_END: Final = 2**63


def step_of(step: object) -> int:
    """Return *step* as an int: anything with ``__index__``, and integral floats.

    Raises:
        ValueError: it is not an integer, or needs more than 64 bits.
    """
    # Broad, because a step is foreign code: a tensor on a device may raise anything.
    try:
        number = step if type(step) is int else _integer(step)
    except Exception:  # noqa: BLE001
        number = None
    if number is None or not -_STEP_END <= number < _STEP_END:
        raise ValueError(f"expected a step that is an integer of at most 64 bits, got {shown(step)}")
    return number


def _integer(step: Any) -> int | None:
    # A float tensor has __index__ and refuses.
    with contextlib.suppress(TypeError):
        return operator.index(step)
    if not hasattr(type(step), "__float__"):
        return None
    number = float(step)
    return int(number) if number.is_integer() else None
