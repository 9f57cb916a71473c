r"""What users log, and what becomes of it: the one table of rules.

==================================================  ==============================================================
logged                                              kept as
==================================================  ==============================================================
bool, int, float, str, None                         itself; nan and infinities too
int outside -2**63 … 2**64-1                        the nearest float; beyond the floats its text
str with lone surrogates                            the surrogates written out: ``\ud800``
subclass of str, int, float; Enum                   plain value; the member's value
Decimal, Fraction, any ``__index__``/``__float__``  number (a Decimal beyond the floats: infinity)
datetime, date, time                                ISO 8601 text; aware datetimes in UTC
timedelta                                           ISO 8601 duration: ``PT1.5S``
UUID, Path                                          text
bytes                                               text; what is not UTF-8 written out: ``\xff``
numpy scalar; array or tensor of one element        number (bool, text), whatever its shape
array or tensor of up to `MAX_ITEMS` elements       (nested) list
numpy datetime64, timedelta64                       text, as numpy writes it
DTensor                                             its local value when replicated, else refused: never gathered
mapping, dataclass, attrs, msgspec struct           its leaves, each a value of its own; an empty one holds no value
list, tuple, set, deque, range                      list (a set: in no order)
anything else                                       refused: a `Fault`
==================================================  ==============================================================

Keys keep their characters, control characters and the empty key included; trackers that cannot take them map them. Nested keys are
joined with ``/``. A key that is no text becomes ``str()`` of what its value would be kept as. Where two values of one call would
share a name, the one that is nested least keeps it (text keys before others, then the first), the others get ``#2``, ``#3``, …

The fast path encodes the dict as it is and leaves names to the readers (`flatten`); the slow path (`sanitise`) names and repairs.
Both end in the same model, and nothing disappears without a `Fault`, with one exception: two keys of one mapping that *encode* the
same (an Enum member and its value) leave one value on the fast path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import hashlib
import math
import operator
import os
from collections import UserString
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from typing import Any, Final, NamedTuple, SupportsFloat, SupportsIndex, TypeAlias

import msgspec

from accelbus.events import Scalar

MAX_ITEMS: Final = 65_536
"""Elements of an array or tensor that become a list; more would stall the training thread and belong into a file."""
MAX_DEPTH: Final = 64
"""Levels of sequences inside sequences that are repaired."""

Value: TypeAlias = Scalar | list[Any]
Encoder: TypeAlias = msgspec.msgpack.Encoder

_INT_MIN, _INT_END = -(2**63), 2**64
_STEP_END = 2**63
_SEPARATOR = "/"
_EVENT_OVERHEAD = 64
"""Bytes around the values of an event: array, tag, time, step and counter."""


class UnsupportedValueError(TypeError):
    """A value without a rule; ``reason`` is one of `accelbus.events.DROP_REASONS`."""

    def __init__(self, message: str, reason: str = "unsupported_value") -> None:
        super().__init__(message)
        self.reason = reason


class Fault(NamedTuple):
    """One value that could not be kept."""

    key: str
    """Flat name; empty when the whole call was odd."""
    type_name: str
    reason: str
    """One of `accelbus.events.DROP_REASONS`."""
    detail: str
    """For the warning: what was expected."""


def copy_now(tensor: Any) -> Value:
    """Return the elements of *tensor*, waiting for its device if it has one."""
    if tensor.numel() == 1:
        return tensor.item()  # type: ignore[no-any-return]  # a number or bool of torch
    if tensor.numel() > MAX_ITEMS:
        raise UnsupportedValueError(f"expected at most {MAX_ITEMS} elements, got {tensor.numel()}; log a summary or a file", "too_large")
    return tensor.tolist()  # type: ignore[no-any-return]  # nested lists of them


class Hook:
    """What the encoder asks about objects msgspec does not know.

    Args:
        device_value: how a tensor that is not in host memory becomes a value. The one place where logging could wait for a device:
            ``accelbus.client.device`` puts a non-blocking copy here. It may be asked twice for one tensor of a call.
    """

    def __init__(self, device_value: Callable[[Any], Any] = copy_now) -> None:
        self.device_value = device_value
        self.calls = 0
        """Changes when Python code ran in the middle of an encoding, and other threads could change what is being encoded."""
        self._known: dict[type, Callable[[Any], Any]] = {}

    def __call__(self, value: Any) -> Any:
        """Return something msgspec knows in place of *value*.

        Raises:
            UnsupportedValueError: there is no rule for its type.
        """
        self.calls += 1
        convert = self._known.get(type(value)) or self._learn(type(value))
        return convert(value)

    def _learn(self, kind: type) -> Callable[[Any], Any]:
        convert = next((convert for applies, convert in _RULES if applies(kind)), _refuse)
        if convert is _tensor:
            convert = self._tensor
        # Bounded: a class made in every step must not stay alive here.
        if len(self._known) < 256:
            self._known[kind] = convert
        return convert

    def _tensor(self, tensor: Any) -> Any:
        local = _tensor(tensor)
        return copy_now(local) if local.is_cpu else self.device_value(local)


def encoder(device_value: Callable[[Any], Any] = copy_now) -> Encoder:
    """Return an encoder that knows the table; its ``enc_hook`` is a `Hook`.

    Encoding takes a snapshot and may raise anything a value's own methods raise. When ``enc_hook.calls`` changed meanwhile, check
    that the bytes decode: msgspec does not notice a dict that another thread changes while the hook runs.
    """
    return msgspec.msgpack.Encoder(enc_hook=Hook(device_value), decimal_format="number")


def step_of(step: object) -> int:
    """Return *step* as an int: anything with ``__index__``, and integral floats.

    Raises:
        ValueError: it is not an integer, or needs more than 64 bits.
    """
    number: int | None = None
    try:
        number = operator.index(step)  # type: ignore[arg-type]  # TypeError is the question
    except (TypeError, ValueError, RuntimeError):
        if isinstance(step, SupportsFloat):
            with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
                as_float = float(step)
                number = int(as_float) if as_float.is_integer() else None
    if number is None or not -_STEP_END <= number < _STEP_END:
        raise ValueError(f"expected a step that is an integer of at most 64 bits, got {_shown(step)}")
    return number


def sanitise(values: object, encoder: Encoder | None = None) -> tuple[dict[str, Any], list[Fault]]:
    """Return everything of *values* that can be kept, flat and plain, and a fault for everything else.

    Never raises for what a user passes. What it returns encodes, and `flatten` changes nothing about its names.

    Args:
        values: what was passed to ``log``.
        encoder: the run's own, from `encoder`.
    """
    cleaner = _Cleaner(encoder or _ENCODER)
    root = cleaner.visit("", values)
    if type(root) is dict:
        return _flat(root, cleaner.key, cleaner.visit, identity=id(values)), cleaner.faults
    return {}, [Fault("", _type_name(type(values)), "bad_values", f"expected a mapping, got {_shown(values)}")]


def flatten(values: Mapping[Any, Any]) -> dict[str, Value]:
    """Return decoded *values* under their flat names. Never raises for what an encoder wrote."""
    return _flat(values, _readable_key, lambda _, value: value if type(value) is dict else _readable(value), identity=id(values))


class Split(NamedTuple):
    """One call in pieces."""

    parts: list[dict[str, Any]]
    """Each small enough for an event."""
    large: dict[str, Any]
    """Values that are too large even alone."""


def split(values: Mapping[str, Any], limit_bytes: int, encoder: Encoder | None = None) -> Split:
    """Cut the flat, clean *values* into events of at most *limit_bytes*.

    A key that takes more than a quarter of an event is shortened to its beginning and a hash.
    """
    encode = (encoder or _ENCODER).encode
    room = limit_bytes - _EVENT_OVERHEAD
    result = Split([{}], {})
    used = 0
    for full_key, value in values.items():
        key = _shortened(full_key, limit_bytes // 4)
        size = len(encode(key)) + len(encode(value))
        if size > room:
            result.large[key] = value
            continue
        if used + size > room:
            result.parts.append({})
            used = 0
        result.parts[-1][key] = value
        used += size
    return result if result.parts[-1] else Split(result.parts[:-1], result.large)


def _shortened(key: str, limit_bytes: int) -> str:
    if len(key) <= limit_bytes // 4:
        return key
    encoded = key.encode()
    if len(encoded) <= limit_bytes:
        return key
    return f"{key[: limit_bytes // 8]}…#{hashlib.blake2b(encoded, digest_size=8).hexdigest()}"


# The walk that both paths share: names are made in one place.

_NOTHING: Final = object()


def _flat(root: Mapping[Any, Any], key_text: Callable[[Any], str], visit: Callable[[str, Any], Any], *, identity: int) -> dict[str, Any]:
    """Walk *root* without recursion; a dict that *visit* returns is walked into, `_NOTHING` is left out.

    *visit* may return a copy, so what counts for cycles is the *identity* of the object it was made from.
    """
    leaves: list[tuple[int, str, Any]] = []
    entered = {identity}
    stack: list[tuple[int, int, str, Iterator[tuple[Any, Any]]]] = [(identity, 0, "", iter(root.items()))]
    while stack:
        identity, depth, prefix, items = stack[-1]
        for key, value in items:
            name = prefix + key_text(key)
            found = visit(name, _Cycle() if id(value) in entered else value)
            rank = depth if type(key) is str else depth + 1
            if type(found) is dict:
                entered.add(id(value))
                stack.append((id(value), rank + 2, name + _SEPARATOR, iter(found.items())))
                break
            if found is not _NOTHING:
                leaves.append((rank, name, found))
        else:
            stack.pop()
            entered.discard(identity)
    return _named(leaves)


def _named(leaves: list[tuple[int, str, Any]]) -> dict[str, Any]:
    """Give every leaf a name of its own, by the rule in the module's docstring."""
    flat = {name: value for _, name, value in leaves}
    if len(flat) == len(leaves):
        return flat
    flat, late = {}, []
    for _, name, value in sorted(leaves, key=operator.itemgetter(0)):
        if name in flat:
            late.append((name, value))
        else:
            flat[name] = value
    for name, value in late:
        number = 2
        while f"{name}#{number}" in flat:
            number += 1
        flat[f"{name}#{number}"] = value
    return flat


class _Cycle:
    """Stands for a mapping inside itself."""

    def __index__(self) -> int:
        raise UnsupportedValueError("contains itself")


def _readable(value: Any, depth: int = 0) -> Value:
    """Return a decoded value as readers see it."""
    if isinstance(value, str | float | int) or value is None:
        return value
    if isinstance(value, list | tuple):
        if depth >= MAX_DEPTH:
            return msgspec.json.encode(value).decode()
        return [_readable(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_readable_key(key): _readable(item, depth + 1) for key, item in value.items()}  # type: ignore[return-value]  # inside a list only
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, msgspec.msgpack.Ext):
        return f"ext {value.code}: {bytes(value.data).hex()}"
    return str(value.isoformat())


def _readable_key(key: Any) -> str:
    return key if type(key) is str else str(_readable(key) if not isinstance(key, tuple) else key)


class _Cleaner:
    """The slow path for one call."""

    def __init__(self, encoder: Encoder) -> None:
        self._encode = encoder.encode
        self._hook: Callable[[Any], Any] = encoder.enc_hook or _refuse
        self._entered: set[int] = set()
        self.faults: list[Fault] = []

    def visit(self, name: str, value: Any) -> Any:
        # Broad, because values are foreign code: whatever it raises becomes a counted fault of this one value.
        try:
            if isinstance(value, Mapping):
                return dict(value)
            return self._clean(value)
        except Exception as error:  # noqa: BLE001
            reason = getattr(error, "reason", "unsupported_value") if isinstance(error, UnsupportedValueError) else "unsupported_value"
            self.faults.append(Fault(name, _type_name(type(value)), reason, _shown_error(error)))
            return _NOTHING

    def key(self, key: Any) -> str:
        if type(key) is str:
            return _text(key)
        try:
            plain = _decode(self._encode(key))
            return _text(str(key) if isinstance(plain, dict) else _readable_key(plain))
        except Exception:  # noqa: BLE001  as for values, but a key is never lost
            return _text(_shown(key))

    def _clean(self, value: Any) -> Any:
        kind = type(value)
        if kind is float or kind is bool or value is None:
            return value
        if kind is int:
            return value if _INT_MIN <= value < _INT_END else _beyond(value)
        if kind is str:
            return _text(value)
        try:
            return _decode(self._encode(value))
        except Exception:  # noqa: BLE001  the repair below raises what is wrong
            return self._repair(value)

    def _repair(self, value: Any) -> Any:
        if isinstance(value, str):
            return _text(str.__str__(value))
        if isinstance(value, int):
            return _beyond(int(value))
        if isinstance(value, enum.Enum):
            return self._clean(value.value)
        if isinstance(value, decimal.Decimal):
            return math.nan  # only a signalling nan refuses to become a float
        if isinstance(value, dt.datetime):
            return value.isoformat()
        if (fields := _fields(value)) is not None:
            return fields
        with self._inside(value):
            if isinstance(value, Mapping):
                return {self.key(key): self._clean(item) for key, item in dict(value).items()}
            if isinstance(value, list | tuple | set | frozenset):
                return [self._clean(item) for item in value]
            return self._clean(self._hook(value))

    @contextlib.contextmanager
    def _inside(self, value: Any) -> Iterator[None]:
        if id(value) in self._entered:
            raise UnsupportedValueError("contains itself")
        if len(self._entered) >= MAX_DEPTH:
            raise UnsupportedValueError(f"expected at most {MAX_DEPTH} levels")
        self._entered.add(id(value))
        try:
            yield
        finally:
            self._entered.discard(id(value))


def _fields(value: Any) -> dict[str, Any] | None:
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


def _text(value: str) -> str:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _beyond(value: int) -> float | str:
    """Return an int that msgpack cannot hold."""
    try:
        return float(value)
    except OverflowError:
        # Not str(): it refuses more than sys.get_int_max_str_digits() digits.
        return hex(value)


# The table, for what msgspec does not know. Order matters: a numpy float64 is a float, an array has __float__.


def _is_tensor(kind: type) -> bool:
    """Duck-typed, so that importing accelbus never imports torch."""
    return any(base.__name__ == "Tensor" and base.__module__.partition(".")[0] == "torch" for base in kind.__mro__)


def _tensor(tensor: Any) -> Any:
    """Return the local tensor."""
    if (placements := getattr(tensor, "placements", None)) is None:
        return tensor
    if not all(placement.is_replicate() for placement in placements):
        raise UnsupportedValueError(f"a DTensor with placements {placements} is never gathered; log .to_local() or .full_tensor()")
    return tensor.to_local()


def _is_array(kind: type) -> bool:
    return all(hasattr(kind, name) for name in ("dtype", "shape", "size", "item", "tolist"))


def _array(array: Any) -> Any:
    if array.dtype.kind in "mM":
        array = array.astype(str)
    if array.size > MAX_ITEMS:
        raise UnsupportedValueError(f"expected at most {MAX_ITEMS} elements, got {array.size}; log a summary or a file", "too_large")
    if array.size != 1:
        return array.tolist()
    value = array.item()
    # A longdouble, and scalars of foreign dtypes such as bfloat16, are their own item().
    return value if isinstance(value, bool | int | float | str | bytes) or not hasattr(value, "__float__") else float(value)


def _items(value: Any) -> list[Any]:
    if len(value) > MAX_ITEMS:
        raise UnsupportedValueError(f"expected at most {MAX_ITEMS} items, got {len(value)}; log a summary or a file", "too_large")
    return list(value)


def _path(value: os.PathLike[Any]) -> str | bytes:
    return os.fspath(value)  # type: ignore[no-any-return]  # PathLike says no more


def _refuse(value: Any) -> Any:
    raise UnsupportedValueError(f"expected a number, text, None, an array, or a mapping or sequence of them, got {_type_name(type(value))}")


def _subclass_of(*kinds: type) -> Callable[[type], bool]:
    return lambda kind: issubclass(kind, kinds)


_RULES: Final[tuple[tuple[Callable[[type], bool], Callable[[Any], Any]], ...]] = (
    (_subclass_of(str), str.__str__),
    (_subclass_of(UserString), str),
    (_subclass_of(bytes), bytes),
    (_subclass_of(float), float.__float__),
    (_subclass_of(int), int.__int__),
    (_subclass_of(dt.date, dt.time), operator.methodcaller("isoformat")),
    (_is_tensor, _tensor),
    (_is_array, _array),
    (_subclass_of(os.PathLike), _path),
    (_subclass_of(Mapping), dict),
    (_subclass_of(Sequence, AbstractSet), _items),
    (_subclass_of(SupportsIndex), operator.index),
    (_subclass_of(SupportsFloat), float),
)

_decode = msgspec.msgpack.Decoder().decode
_ENCODER: Final = encoder()


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shown(value: object) -> str:
    """Return a short text for messages; foreign ``__repr__`` may raise or be endless."""
    try:
        return repr(value)[:80]
    except Exception:  # noqa: BLE001
        return f"<{_type_name(type(value))}>"


def _shown_error(error: Exception) -> str:
    return _shown(error) if not isinstance(error, UnsupportedValueError) else str(error)
