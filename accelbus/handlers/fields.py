"""Fields of handlers that know what they may hold: every wrong value is refused with what was expected and what came."""

from __future__ import annotations

import dataclasses
import math
import numbers
import sys
from collections.abc import Callable, Iterable
from typing import Any

from accelbus.errors import ConfigurationError
from accelbus.meant import hint

CHECK = "accelbus.check"
"""Where a field's metadata holds its check."""
Check = Callable[[str, Any], Any]
"""(what is being set, value) -> the value as it is kept; raises `ConfigurationError`. Values are what users pass: Any."""


class FieldTypeError(ConfigurationError, TypeError):
    """A value, or a handler, of a type that has no meaning here; says what was expected and what came."""


def checked(default: Any, check: Check) -> Any:  # Any: a dataclass field stands for its default
    """Make a dataclass field that holds only what *check* lets through; a callable *default* makes one per object."""
    metadata = {CHECK: check}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def optional(check: Check) -> Check:
    """Let None through, and what *check* lets through."""
    return lambda label, value: None if value is None else check(label, value)


def flag(label: str, value: Any) -> bool:
    """Let booleans through: 0 and "no" are more often mistakes than switches."""
    if type(value) is bool:
        return value
    # numpy's booleans, without importing numpy.
    if type(value).__name__ in {"bool", "bool_"} and hasattr(value, "dtype"):
        return bool(value)
    raise wrong_type(label, "True or False", value)


def integer(minimum: int) -> Check:
    """Let whole numbers from *minimum* on through."""

    def check(label: str, value: Any) -> int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise wrong_type(label, f"an integer of at least {minimum}", value)
        number = value.__index__()
        if number < minimum:
            raise wrong_value(label, f"an integer of at least {minimum}", value)
        return int(number)

    return check


def number(above: float, below: float = math.inf) -> Check:
    """Let finite numbers between *above* and *below*, both excluded, through."""
    wanted = f"a number above {above:g}" + ("" if math.isinf(below) else f" and below {below:g}")

    def check(label: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise wrong_type(label, wanted, value)
        plain = int(value) if isinstance(value, numbers.Integral) else float(value)
        if not above < plain < below or plain > sys.float_info.max:  # also refuses nan and infinity
            raise wrong_value(label, wanted, value)
        return plain

    return check


def text(label: str, value: Any) -> str:
    """Let text with something in it through."""
    if not isinstance(value, str):
        raise wrong_type(label, "text", value)
    if not value:
        raise wrong_value(label, "text that is not empty", value)
    return value


PRECISIONS = {"no": "no", "fp16": "fp16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
"""{what users write: the mixed precision that is meant}"""


def precision(label: str, value: Any) -> str:
    """Return "no", "fp16" or "bf16", whichever way *value* says it."""
    if not isinstance(value, str):
        raise wrong_type(label, "one of " + ", ".join(PRECISIONS), value)
    found = PRECISIONS.get(value.lower().removeprefix("torch."))
    if found is None:
        raise one_of(label, value, PRECISIONS)
    return found


def function(label: str, value: Any) -> Any:
    """Let whatever can be called through."""
    if not callable(value):
        raise wrong_type(label, "a callable", value)
    return value


def one_of(label: str, value: str, known: Iterable[str]) -> ConfigurationError:
    """Make the error for *value*, which is not one of *known*; it names them, and the one that may have been meant."""
    names = [str(name) for name in known]  # members of a StrEnum show themselves otherwise
    return ConfigurationError(f"{label}: unknown {value!r}{hint(value.lower(), names)} (known: {', '.join(names)})")


def wrong_type(label: str, wanted: str, value: Any) -> FieldTypeError:
    """Make the error for a value of a type that has no meaning here."""
    return FieldTypeError(f"{label}: expected {wanted}, got {value!r} ({type(value).__name__})")


def wrong_value(label: str, wanted: str, value: Any) -> ConfigurationError:
    """Make the error for a value of the right type."""
    return ConfigurationError(f"{label}: expected {wanted}, got {value!r}")
