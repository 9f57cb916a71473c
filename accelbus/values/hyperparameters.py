"""Hyperparameters: nested plain data from whatever a project keeps its configuration in."""

from __future__ import annotations

import enum
import logging
import math
import types
from collections.abc import Mapping, Sequence, Set as AbstractSet
from typing import Any, Final

from accelbus.errors import ConfigurationError
from accelbus.values.names import free_name, readable
from accelbus.values.repair import Repair, fields_of
from accelbus.values.rules import ADDRESS, MAX_ITEMS, encoder, shown, type_name

_TEXT_CHARACTERS: Final = 1000
"""Longest text in place of an object; the configuration says what was used, it does not store it."""
_MOST_ITEMS: Final = 1_000_000
"""Elements of one list or array that are kept: what an event has no room for goes to a file. More of them are a data set, whose
encoding would hold up `init` for many seconds."""
_MAX_DEPTH: Final = 32
_ENCODER: Final = encoder()
_log = logging.getLogger("accelbus")


def config_values(config: object) -> dict[str, Any]:
    """Return *config* as nested dicts and lists of numbers, text, bools and None.

    Every key is kept, and every list and array of up to a million elements; a longer one is named by its length, with a warning.
    What is no plain data becomes text: types and functions by their name, others as they print, without
    addresses, so that all ranks say the same. None is touched, and nothing of it is kept by reference.

    Args:
        config: mapping (OmegaConf's too), dataclass, attrs or msgspec struct, pydantic model, Namespace, or an object with ``to_dict``.

    Raises:
        ConfigurationError: it is none of them.
    """
    items = _items_of(config)
    if items is None:
        raise ConfigurationError(
            f"config={shown(config)}: expected a mapping, dataclass or Namespace of hyperparameters, got {type_name(type(config))}"
        )
    return _mapping(items, (id(config),))


def merge_config(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Change *into* as *values* say, nested mappings leaf by leaf."""
    for key, value in values.items():
        known = into.get(key)
        if isinstance(value, Mapping) and isinstance(known, dict):
            merge_config(known, value)
        else:
            into[key] = value


def _items_of(value: object) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType | enum.Enum):
        return None
    if (fields := fields_of(value)) is not None:
        return fields
    for method in ("model_dump", "to_dict"):
        dump = getattr(value, method, None)
        if callable(dump) and isinstance(dumped := dump(), Mapping):
            return dumped
    # Namespace and SimpleNamespace: classes that only hold attributes.
    return vars(value) if type(value).__name__.endswith("Namespace") and hasattr(value, "__dict__") else None


def _mapping(items: Mapping[Any, Any], within: tuple[int, ...]) -> dict[str, Any]:
    key_text = Repair(_ENCODER).key
    plain: dict[str, Any] = {}
    for key in sorted(items, key=lambda key: type(key) is not str):
        plain[free_name(key_text(key), plain)] = _plain_or_text(items, key, within)
    return plain


def _plain_or_text(items: Mapping[Any, Any], key: Any, within: tuple[int, ...]) -> Any:
    # Broad, because configurations hold foreign objects; a value that raises is shown as what it raised.
    try:
        return _plain(items[key], within)
    except Exception as error:  # noqa: BLE001
        return f"<{_text(error)}>"


def _plain(value: Any, within: tuple[int, ...]) -> Any:
    if id(value) in within or len(within) > _MAX_DEPTH:
        return "<…>"
    deeper = (*within, id(value))
    if isinstance(value, enum.Enum):
        return _plain(value.value, deeper)
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return f"{value.__module__}.{value.__qualname__}"
    if (items := _items_of(value)) is not None:
        return _mapping(items, deeper)
    if isinstance(value, AbstractSet):
        return sorted((_plain(item, deeper) for item in value), key=repr)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) > _MOST_ITEMS:
            return _left_out(f"{type_name(type(value))} of {len(value)} items")
        return [item if _is_plain(item) else _plain(item, deeper) for item in value]
    return _leaf(value)


def _leaf(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    try:
        if isinstance(shape, tuple) and math.prod(shape) > MAX_ITEMS:
            return _left_out(_named(value, shape)) if math.prod(shape) > _MOST_ITEMS else _large_array(value)
        return readable(Repair(_ENCODER).clean(value))
    except Exception:  # noqa: BLE001  no rule for it: its text is better than nothing
        return _text(value) if shape is None else _named(value, shape)


def _large_array(array: Any) -> list[Any]:
    """Return *array*, which has more elements than can be cleaned at once, as nested lists."""
    of_one = math.prod(array.shape[1:])
    if of_one > MAX_ITEMS:
        return [_large_array(part) for part in array]
    plain: list[Any] = []
    length = MAX_ITEMS // of_one
    for start in range(0, len(array), length):
        part = readable(Repair(_ENCODER).clean(array[start : start + length]))
        if not isinstance(part, list):
            # A single element loses its dimensions.
            for _ in array.shape:
                part = [part]
        plain += part
    return plain


def _is_plain(item: object) -> bool:
    """Whether *item* can stay as it is: what long lists are made of."""
    kind = type(item)
    return kind is float or kind is bool or (kind is int and -(2**63) <= item < 2**63) or (kind is str and item.isascii())  # type: ignore[operator,attr-defined]  # narrowed by its type


def _named(value: Any, shape: Any) -> str:
    return f"{type_name(type(value))}, shape {tuple(shape)}, {getattr(value, 'dtype', '')}"


def _left_out(name: str) -> str:
    _log.warning("of the configuration a %s is left out: expected at most %d elements; log it as a file", name, _MOST_ITEMS)
    return name


def _text(value: object) -> str:
    text = ADDRESS.sub("", str(value) if not isinstance(value, BaseException) else repr(value))
    clean = Repair(_ENCODER).clean(text)
    return clean if len(clean) <= _TEXT_CHARACTERS else f"{clean[: _TEXT_CHARACTERS - 1]}…"
