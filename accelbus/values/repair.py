"""The slow path: keep what can be kept of a call that did not encode as it was."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from accelbus.values.names import NOTHING, apart, free_name, readable_key, walk
from accelbus.values.rules import Encoder, UnsupportedValueError, encoder, shown, type_name

_MAX_DEPTH: Final = 64
"""Levels inside a sequence that are repaired; what encodes as it is may be deeper."""
_INT_MIN, _INT_END = -(2**63), 2**64
_ENCODER: Final = encoder()
_decode = msgspec.msgpack.Decoder().decode


class Fault(NamedTuple):
    """One value that could not be kept."""

    key: str
    """Its flat name; empty when the whole call was odd."""
    type_name: str
    reason: str
    """One of `accelbus.events.DROP_REASONS`."""
    detail: str
    """For the warning: what was expected, or what the value raised."""


def sanitise(values: object, encoder: Encoder | None = None) -> tuple[dict[str, Any], list[Fault]]:
    """Return everything of *values* that can be kept, flat and plain, and a fault for everything else.

    Never raises for what a user passes. What it returns encodes, and `flatten` keeps its names.

    Args:
        values: what was passed to ``log``.
        encoder: the run's own.
    """
    repair = Repair(encoder or _ENCODER)
    root = repair.visit("", values)
    if type(root) is dict:
        return walk(root, key_text=repair.key, visit=repair.visit, cycle=repair.cycle, identity=id(values)), repair.faults
    detail = repair.faults[0].detail if repair.faults else f"got {shown(values)}"
    return {}, [Fault("", type_name(type(values)), "bad_values", f"expected a mapping, {detail}")]


class Repair:
    """Cleans the values of one call and collects their faults."""

    def __init__(self, encoder: Encoder) -> None:
        self._encode = encoder.encode
        self._hook: Callable[[Any], Any] = encoder.enc_hook or _unknown
        self._entered: set[int] = set()
        self.faults: list[Fault] = []

    def visit(self, name: str, value: Any) -> Any:
        """Return a plain value, a dict to be walked into, or `NOTHING` and one more fault."""
        if type(value) is float:
            return value
        # Broad, because values are foreign code: whatever it raises becomes a counted fault of this one value.
        try:
            return dict(value) if isinstance(value, Mapping) else apart(self.clean(value))
        except Exception as error:  # noqa: BLE001
            known = isinstance(error, UnsupportedValueError)
            reason = error.reason if isinstance(error, UnsupportedValueError) else "unsupported_value"
            self.faults.append(Fault(name, type_name(type(value)), reason, str(error) if known else shown(error)))
            return NOTHING

    def cycle(self, name: str, value: Any) -> Any:
        """Refuse a mapping inside itself."""
        self.faults.append(Fault(name, type_name(type(value)), "unsupported_value", "it contains itself"))
        return NOTHING

    def key(self, key: Any) -> str:
        """Return the text for *key*, as readers would make it from the encoded one. A key is never lost."""
        if type(key) is str:
            return encodable(key)
        try:
            [plain] = _decode(self._encode({key: None}))
            return readable_key(plain)
        except Exception:  # noqa: BLE001  foreign code, as for values
            return encodable(shown(key))

    def clean(self, value: Any) -> Any:
        """Return *value* as it decodes after encoding, repaired where it does not encode.

        Raises:
            Exception: whatever the value's own code raises, `UnsupportedValueError` where there is no rule for it.
        """
        kind = type(value)
        if kind is float or kind is bool or value is None:
            return value
        if kind is int:
            return value if _INT_MIN <= value < _INT_END else _beyond(value)
        if kind is str:
            return encodable(value)
        try:
            return _decode(self._encode(value))
        except Exception:  # noqa: BLE001  raised again below, by the part that is to blame
            return self._repaired(value)

    def _repaired(self, value: Any) -> Any:
        if isinstance(value, str):
            return encodable(str.__str__(value))
        if isinstance(value, int):
            return _beyond(int(value))
        if isinstance(value, decimal.Decimal):
            return math.nan  # only a signalling nan refuses to become a float
        if isinstance(value, dt.datetime):
            return value.isoformat()  # too close to the end of time to become UTC
        if (fields := fields_of(value)) is not None:
            return self._nested(value, fields) if self._entered else fields
        with self._inside(value):
            if isinstance(value, enum.Enum):
                return self.clean(value.value)
            if isinstance(value, Mapping):
                return self._nested(value, dict(value))
            if isinstance(value, list | tuple | set | frozenset):
                return [self.clean(item) for item in value]
            return self.clean(self._hook(value))

    def _nested(self, value: Any, items: dict[Any, Any]) -> dict[str, Any]:
        """Clean a mapping inside a sequence: it stays a mapping, and one bad part spoils the whole value."""
        clean: dict[str, Any] = {}
        for key, item in items.items():
            clean[free_name(self.key(key), clean)] = self.clean(item)
        return clean

    @contextlib.contextmanager
    def _inside(self, value: Any) -> Iterator[None]:
        if id(value) in self._entered:
            raise UnsupportedValueError("it contains itself")
        if len(self._entered) >= _MAX_DEPTH:
            raise UnsupportedValueError(f"expected at most {_MAX_DEPTH} levels")
        self._entered.add(id(value))
        try:
            yield
        finally:
            self._entered.discard(id(value))


def encodable(text: str) -> str:
    r"""Return *text* with lone surrogates written out: ``\ud800``."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a struct-like object, None when it is none."""
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if attributes := getattr(type(value), "__attrs_attrs__", None):
        return {attribute.name: getattr(value, attribute.name) for attribute in attributes}
    return None


def _beyond(value: int) -> float | str:
    """Return an int that msgpack cannot hold."""
    try:
        return float(value)
    except OverflowError:
        # Not str(): it refuses more than sys.get_int_max_str_digits() digits, and takes quadratic time.
        return hex(value)


def _unknown(value: Any) -> Any:
    raise UnsupportedValueError(f"no rule for {type_name(type(value))}")
