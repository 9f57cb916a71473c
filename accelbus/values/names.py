"""Flat names: the one walk that gives every leaf of nested values its name, for the slow path and for readers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from accelbus import blobs, media, pending
from accelbus.events import Scalar

Value: TypeAlias = Scalar | list[Any] | msgspec.msgpack.Ext
"""An extension is packed media, or the mark of a value that is on its way."""
SEPARATOR: Final = "/"
NOTHING: Final = object()
"""In place of a leaf that was refused."""
_EXTENSIONS: Final = frozenset({blobs.EXTENSION, media.EXTENSION, pending.EXTENSION})
_MAX_DEPTH: Final = 64
"""Levels of lists in lists that readers keep as lists; what is deeper becomes JSON text."""


def flatten(values: Mapping[Any, Any]) -> dict[str, Value]:
    """Return decoded *values* under their flat names. Takes everything that decodes, and changes nothing that is flat already."""
    return walk(values, key_text=readable_key, visit=_visit)


def _visit(_: str, value: Any) -> Any:
    return value if type(value) is dict or type(value) is float else apart(readable(value))


def apart(value: Any) -> Any:
    """Return *value*; a list of media, which are several values, as a dict of them by number."""
    if type(value) is list and any(type(item) is msgspec.msgpack.Ext for item in value):
        return {str(index): item for index, item in enumerate(value)}
    return value


def walk(
    root: Mapping[Any, Any],
    *,
    key_text: Callable[[Any], str],
    visit: Callable[[str, Any], Any],
    cycle: Callable[[str, Any], Any] | None = None,
    identity: int = 0,
) -> dict[str, Any]:
    """Return the leaves of *root* under names of their own.

    Without recursion: depth costs memory, not stack.

    Args:
        root: where to begin.
        key_text: the part of a name that a key stands for.
        visit: called with name and value; a dict that it returns is walked into, `NOTHING` is left out, all else is a leaf.
        cycle: called instead of *visit* for a value that is being walked into already.
        identity: ``id`` of the object that *root* is a copy of.
    """
    leaves: list[tuple[int, str, Any]] = []
    entered = {identity, id(root)}
    stack: list[tuple[int, int, str, Iterator[tuple[Any, Any]]]] = [(identity, 0, "", iter(root.items()))]
    while stack:
        current, rank, prefix, items = stack[-1]
        for key, value in items:
            name = prefix + key_text(key)
            found = cycle(name, value) if cycle is not None and id(value) in entered else visit(name, value)
            if type(found) is dict:
                entered.add(id(value))
                stack.append((id(value), rank + 2, name + SEPARATOR, iter(found.items())))
                break
            if found is not NOTHING:
                leaves.append((rank if type(key) is str else rank + 1, name, found))
        else:
            stack.pop()
            entered.discard(current)
    return _named(leaves)


def _named(leaves: list[tuple[int, str, Any]]) -> dict[str, Any]:
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
        flat[free_name(name, flat)] = value
    return flat


def free_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return *name*, or with the first number that makes it unlike those *taken*."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    return candidate


def readable(value: Any, depth: int = 0) -> Any:
    """Return a decoded value as readers see it: a scalar, or a list of scalars, lists and dicts."""
    if isinstance(value, str | float | int) or value is None:
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple | dict) and depth >= _MAX_DEPTH:
        return msgspec.json.encode(value).decode()
    if isinstance(value, list | tuple):
        return [readable(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {readable_key(key): readable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, msgspec.msgpack.Ext):
        # References and media are for those who know where their files are.
        return value if value.code in _EXTENSIONS else f"ext {value.code}: {bytes(value.data).hex()}"
    return value.isoformat()


def readable_key(key: Any) -> str:
    """Return the text that stands for a decoded key."""
    return key if type(key) is str else str(key if isinstance(key, tuple) else readable(key))
