"""The table for what msgspec does not know, and the encoder that uses it.

msgspec itself takes the plain types, Enum, Decimal, datetime, UUID, bytes, dict, list, tuple, set and struct-like classes; a test pins
how. Everything else comes to `Hook`, by type; a type is looked up in the table once.
"""

from __future__ import annotations

import datetime as dt
import operator
import os
import re
from collections import UserString
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from typing import Any, Final, SupportsFloat, SupportsIndex, TypeAlias

import msgspec

from accelbus.blobs import BlobStore
from accelbus.media import Wrapper, pack

MAX_ITEMS: Final = 65_536
"""Elements of an array, tensor or deque that become a list; more would stall the training thread and belong into a file."""
_KNOWN_TYPES: Final = 256
"""Types remembered: a class that is made anew in every step must not stay alive here."""

ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
"""Of an object, in its default text."""

Encoder: TypeAlias = msgspec.msgpack.Encoder


class UnsupportedValueError(TypeError):
    """A value without a rule; ``reason`` is one of `accelbus.events.DROP_REASONS`."""

    def __init__(self, message: str, reason: str = "unsupported_value") -> None:
        super().__init__(message)
        self.reason = reason


def copy_now(tensor: Any) -> Any:
    """Return the number in *tensor*, or its elements as a list, waiting for its device if it has one."""
    if tensor.numel() == 1:
        return tensor.item()
    _check_size(tensor.numel())
    return tensor.tolist()


class Hook:
    """What the encoder asks about objects msgspec does not know.

    Args:
        device_value: how a tensor that is not in host memory becomes a value. The one place where logging could wait for a device:
            a non-blocking copy goes here. It may be asked twice about one tensor of a call.
    """

    def __init__(self, device_value: Callable[[Any], Any] = copy_now) -> None:
        self.device_value = device_value
        self.on_tensor: Callable[[], None] | None = None
        """Called for each tensor, wherever it lies."""
        self.blobs: BlobStore | None = None
        """Where large media go; without it media are refused."""
        self.calls = 0
        """Changes when Python code ran in the middle of an encoding, so that other threads could change what is being encoded."""
        self._known: dict[type, Callable[[Any], Any]] = {}

    def __call__(self, value: Any) -> Any:
        """Return something msgspec knows in place of *value*.

        Raises:
            UnsupportedValueError: there is no rule for its type, or it is too large.
        """
        self.calls += 1
        convert = self._known.get(type(value)) or self._learn(type(value))
        return convert(value)

    def _learn(self, kind: type) -> Callable[[Any], Any]:
        convert: Callable[[Any], Any]
        if issubclass(kind, Wrapper):
            convert = self._media
        elif _is_tensor(kind):
            convert = self._distributed_tensor if hasattr(kind, "placements") else self._tensor
        else:
            convert = next((convert for applies, convert in _RULES if applies(kind)), _refuse)
        if len(self._known) < _KNOWN_TYPES:
            self._known[kind] = convert
        return convert

    def _media(self, wrapper: Wrapper) -> Any:
        if self.blobs is None:
            raise UnsupportedValueError(f"a {type(wrapper).__name__} has no place here")
        try:
            return pack(wrapper.to_media(self.blobs), self.blobs)
        except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
            raise UnsupportedValueError(f"the file of a {type(wrapper).__name__} cannot be read: {error}") from error
        except OSError as error:
            raise UnsupportedValueError(f"a {type(wrapper).__name__} needs a file in the run directory: {error}", "blob_full") from error

    def _tensor(self, tensor: Any) -> Any:
        if self.on_tensor is not None:
            self.on_tensor()
        return copy_now(tensor) if tensor.is_cpu else self.device_value(tensor)

    def _distributed_tensor(self, tensor: Any) -> Any:
        if not all(placement.is_replicate() for placement in tensor.placements):
            raise UnsupportedValueError(
                f"a DTensor with placements {tensor.placements} is never gathered; log its .to_local() or .full_tensor()"
            )
        return self._tensor(tensor.to_local())


def encoder(device_value: Callable[[Any], Any] = copy_now) -> Encoder:
    """Return an encoder that knows the table; its ``enc_hook`` is a `Hook`.

    Encoding takes a snapshot, and raises whatever a value's own methods raise. When ``enc_hook.calls`` changed meanwhile, check that
    the bytes decode: msgspec does not notice a dict that another thread changes while the hook runs, and writes a wrong length.
    """
    return msgspec.msgpack.Encoder(enc_hook=Hook(device_value), decimal_format="number")


def type_name(kind: type) -> str:
    """Return how messages call *kind*, whatever its metaclass does."""
    module, name = type.__getattribute__(kind, "__module__"), type.__getattribute__(kind, "__qualname__")
    return str(name) if module == "builtins" else f"{module}.{name}"


def shown(value: object) -> str:
    """Return a short text of *value* for messages, whatever its ``__repr__`` does; without addresses, which say nothing."""
    try:
        text = ADDRESS.sub("", repr(value))
    except Exception:  # noqa: BLE001  foreign code; the message is what matters
        return f"<{type_name(type(value))}>"
    return text if len(text) <= 80 else f"{text[:79]}…"


def _is_tensor(kind: type) -> bool:
    # By name, so that importing accelbus never imports torch.
    return any(base.__name__ == "Tensor" and base.__module__.partition(".")[0] == "torch" for base in kind.__mro__)


def _is_array(kind: type) -> bool:
    return all(hasattr(kind, attribute) for attribute in ("dtype", "shape", "size", "tolist"))


def _array(array: Any) -> Any:
    _check_size(array.size)
    if array.dtype.kind in "mM":
        array = array.astype(str)
    plain = array.tolist()
    if array.size == 1:
        while type(plain) is list:
            plain = plain[0]
    # A longdouble, and scalars of foreign types such as bfloat16, are returned as they are.
    return float(plain) if type(plain) is type(array) else plain


def _check_size(items: int) -> None:
    if items > MAX_ITEMS:
        raise UnsupportedValueError(f"expected at most {MAX_ITEMS} elements, got {items}; log a summary of them, or a file", "too_large")


def _items(value: Any) -> list[Any]:
    _check_size(len(value))
    return list(value)


def _moment(value: Any) -> str:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.UTC)
    return str(value.isoformat())


def _refuse(value: Any) -> Any:
    raise UnsupportedValueError(f"expected a number, text, None, an array, or a mapping or sequence of them, got {type_name(type(value))}")


def _numpy(*names: str) -> Callable[[type], bool]:
    """Return a test for numpy scalars by the names of their bases, so that importing accelbus never imports numpy."""
    return lambda kind: any(base.__module__ == "numpy" and base.__name__ in names for base in kind.__mro__)


def _subclass_of(*kinds: type) -> Callable[[type], bool]:
    return lambda kind: issubclass(kind, kinds)


# Order matters: numpy's timedelta64 is one of its integers, its scalars look like arrays, its float64 is a float; arrays have __float__.
_RULES: Final[tuple[tuple[Callable[[type], bool], Callable[[Any], Any]], ...]] = (
    (_subclass_of(str), str.__str__),
    (_subclass_of(UserString), str),
    (_subclass_of(bytes), bytes),
    (_numpy("floating"), float),
    (_numpy("timedelta64"), _array),
    (_numpy("integer"), int),
    (_numpy("bool", "bool_"), bool),
    (_subclass_of(float), float.__float__),
    (_subclass_of(int), int.__int__),
    (_subclass_of(dt.date, dt.time), _moment),
    (_is_array, _array),
    (_subclass_of(os.PathLike), os.fspath),
    (_subclass_of(Mapping), dict),
    (_subclass_of(Sequence, AbstractSet), _items),
    (_subclass_of(SupportsIndex), operator.index),
    (_subclass_of(SupportsFloat), float),
)
