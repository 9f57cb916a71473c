"""What waits to be handed to W&B, in order; each entry may be handed over again after W&B's service has died."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from accelbus.tracking import Row
from accelbus_sinks._wandb_session import Session

ROW_BYTES: Final = 8_000_000
"""W&B's client leaves out lines of about 10 MB, without an error."""
_BYTES_OF_A_NUMBER: Final = 40
_BYTES_OF_A_CHARACTER: Final = 3
"""Of text, in UTF-8 and JSON; of few scripts it is more."""


class MediaValue:
    """A value of one of W&B's data types.

    Args:
        make: makes it; called at once, so that what W&B refuses is refused where it was logged.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = make()

    def take(self) -> Any:
        """Return it; logging uses it up."""
        made, self._made = self._made, None
        return self._make() if made is None else made


class WaitingRow:
    """A row; values and media for the same step join it until it is handed over."""

    def __init__(self, place: tuple[int, int], time_ns: int, values: dict[str, Any]) -> None:
        self.place = place
        """(attempt, step)"""
        self.time_ns = time_ns
        self.values = values
        self.media: dict[str, MediaValue] = {}
        self.own_step = -1
        """W&B's step, once it was handed over."""
        self.failures = 0

    def join(self, other: WaitingRow) -> None:
        """Add the values of *other*, which are newer."""
        self.values.update(other.values)
        self.time_ns = max(self.time_ns, other.time_ns)

    @property
    def keys(self) -> list[str]:
        """W&B's names of everything in it."""
        return [str(name) for name in (*self.values, *self.media)]

    def send(self, session: Session) -> None:
        if 0 <= self.own_step < session.first_step:
            return  # an earlier session has uploaded it
        media = {name: value.take() for name, value in self.media.items()}
        *first, last = _within_limit(self.values)
        for values in first:
            session.log(self.place[1], self.time_ns, values)
        self.own_step = session.log(self.place[1], self.time_ns, {**last, **media})


def _within_limit(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return *values* in as many rows as W&B needs to take them all, mostly one."""
    rows: list[dict[str, Any]] = [{}]
    size = 0
    for name, value in values.items():
        more = _BYTES_OF_A_NUMBER + len(name) + (_BYTES_OF_A_CHARACTER * len(value) if isinstance(value, str) else 0)
        if isinstance(value, list):
            more += len(str(value))
        if rows[-1] and size + more > ROW_BYTES:
            rows.append({})
            size = 0
        rows[-1][name] = value
        size += more
    return rows


class WaitingCall:
    """Something else that is done with the run object."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def send(self, session: Session) -> None:
        self._function(session.run)
        session.touch()


Waiting = WaitingRow | WaitingCall


def checked(row: Row, name_of: Mapping[str, str], introduce: Callable[[str], str]) -> WaitingRow:
    """Return *row* under W&B's names.

    Args:
        row: values must be numbers, text or lists of those; None is no value.
        name_of: known names.
        introduce: returns the name of a key that is not known.

    Raises:
        TypeError: another value.
    """
    values: dict[str, Any] = {}
    for key, value in row.values.items():
        if isinstance(value, int | float | str | list):
            values[name_of.get(key) or introduce(key)] = value
        elif value is not None:
            raise TypeError(f"{key!r}: expected a number, text or a list, got {type(value).__name__}")
    return WaitingRow((row.attempt, row.step), row.time_ns, values)


__all__ = ["MediaValue", "Waiting", "WaitingCall", "WaitingRow", "checked"]
