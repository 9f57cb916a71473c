"""Trackers that a user gives as class or instance, and how they get into the process in which they will live.

A class that another process can import crosses by its name, an instance with it by the arguments of its constructor, or where nobody
noted those by its attributes, if they are plain data: that is written into the run's record, and ``accelbus sync`` can build it too. Anything else crosses by value, if it can be
pickled; that is handed over in memory and written nowhere, because unpickling runs code.
"""

from __future__ import annotations

import enum
import inspect
import io
import pickle
import sys
from collections.abc import Mapping, Sequence, Set as AbstractSet
from typing import Any, Final, NamedTuple

import msgspec

from accelbus.errors import ConfigurationError, MissingExtraError
from accelbus.rundir import Origin

_LARGEST: Final = 512 * 1024
"""Bytes of a tracker that crosses by value: it goes in one message."""
_LARGEST_RECORDED: Final = 64 * 1024
"""Bytes of arguments that are written into the run's record."""
_SCRIPTS: Final = frozenset({"__main__", "__mp_main__"})


class Crossing(NamedTuple):
    """How one tracker gets into another process."""

    origin: Origin
    carried: bytes = b""
    """The tracker by value."""
    stays: str = ""
    """Why it cannot cross."""


def separate(log_with: Any) -> tuple[Any, dict[str, Any]]:
    """Return *log_with* with names in place of classes and instances, and {name: class or instance}.

    Raises:
        ConfigurationError: something in it is neither a name nor a tracker, or two trackers have one name.
    """
    if log_with is None or (isinstance(log_with, str) and not isinstance(log_with, enum.Enum)):
        return log_with, {}
    names: list[str] = []
    given: dict[str, Any] = {}
    for item in log_with if isinstance(log_with, Sequence | AbstractSet) and not isinstance(log_with, str) else [log_with]:
        if isinstance(item, enum.Enum):
            names.append(str(item.value))
        elif isinstance(item, str):
            names.append(item)
        else:
            name = _name_of(item)
            if given.get(name, item) is not item:
                raise ConfigurationError(f"log_with has two trackers called {name!r}: {given[name]!r} and {item!r}")
            given[name] = item
            names.append(name)
    return tuple(names), given


def cross(tracker: Any, *, by_value: bool) -> Crossing:
    """Say how *tracker*, a class or an instance, gets into another process.

    Args:
        tracker: what the user gave or registered.
        by_value: whether that process is ours and may be told to unpickle.

    Raises:
        MissingExtraError: it could cross by value, with a package that is not installed.
    """
    kind = tracker if inspect.isclass(tracker) else type(tracker)
    parts = _Parts(kind, *tracker.made_with) if tracker is not kind and hasattr(tracker, "made_with") else None
    if _can_be_imported(kind) and (tracker is kind or (parts is not None and _is_plain([parts.args, parts.kwargs]))):
        path = f"{kind.__module__}:{kind.__qualname__}"
        if parts is None:
            return Crossing(Origin(path=path))
        return Crossing(Origin(path=path, args=list(parts.args), kwargs=dict(parts.kwargs), is_instance=True))
    if _can_be_imported(kind) and parts is None and (state := _plain_state(tracker)) is not None:
        return Crossing(Origin(path=f"{kind.__module__}:{kind.__qualname__}", is_instance=True, state=state))
    if not by_value:
        return Crossing(Origin(), stays="it could only cross by value, and only to a bus process of its own")
    carried, why_not = _pickled(parts or tracker)
    if why_not and parts is not None:
        carried, why_not = _pickled(tracker)
    return Crossing(Origin(), carried, why_not)


def rebuild(carried: bytes) -> Any:
    """Return the class or instance that `cross` has made *carried* of. Runs code: for bytes of this user's own processes only."""
    found = pickle.loads(carried)  # noqa: S301  handed over in memory by the rank that made it
    return found.build() if isinstance(found, _Parts) else found


class _Parts(NamedTuple):
    """An instance, to be made again."""

    kind: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def build(self) -> Any:
        return self.kind(*self.args, **self.kwargs)


def _pickled(what: Any) -> tuple[bytes, str]:
    try:
        import cloudpickle  # noqa: PLC0415  only trackers that cannot be imported need it
    except ImportError as error:
        raise MissingExtraError(
            "a tracker of a script or notebook reaches its own process by value, which needs cloudpickle: pip install 'accelbus[notebook]'"
        ) from error
    into = _Bounded()
    try:
        cloudpickle.dump(what, into)
    except Exception as error:  # noqa: BLE001  whatever its state raises when it is pickled
        return b"", into.complaint or f"it cannot be pickled ({type(error).__name__}: {error})"
    return into.getvalue(), ""


class _Bounded(io.BytesIO):
    """A tracker may hold a model: do not copy all of that to find that it is too large."""

    complaint = ""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > _LARGEST:
            self.complaint = f"pickled it takes more than {_LARGEST} bytes"
            raise OverflowError(self.complaint)
        return super().write(data)


def _can_be_imported(kind: type) -> bool:
    if kind.__module__ in _SCRIPTS or "<locals>" in kind.__qualname__:
        return False
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _plain_state(tracker: Any) -> dict[str, Any] | None:
    """Return the attributes of a tracker that is nothing but its attributes, None when they are not plain."""
    kind = type(tracker)
    own = ("__reduce__", "__reduce_ex__", "__getstate__")
    if any(getattr(kind, name, None) is not getattr(object, name, None) for name in own) or hasattr(kind, "__setstate__"):
        return None
    state = vars(tracker) if hasattr(tracker, "__dict__") else None
    return dict(state) if state is not None and _is_plain([[], state]) else None


def _is_plain(values: Any) -> bool:
    """Whether *values* are the same after they were written as JSON."""
    try:
        written = msgspec.json.encode(values)
        return len(written) <= _LARGEST_RECORDED and bool(msgspec.json.decode(written) == [list(values[0]), values[1]])
    except Exception:  # noqa: BLE001  whatever the values' own code raises
        return False


def _name_of(tracker: Any) -> str:
    kind = tracker if inspect.isclass(tracker) else type(tracker)
    name = getattr(tracker, "name", None)
    if not callable(getattr(kind, "log", None)) or not hasattr(kind, "requires_logging_directory") or not isinstance(name, str):
        raise ConfigurationError(
            f"log_with contains {tracker!r}: expected the name of a tracker, a tracker class or a tracker, with name, "
            f"requires_logging_directory and log"
        )
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ConfigurationError(f"{kind.__qualname__}.name is {name!r}: expected a name that can be a directory's")
    return name


__all__ = ["Crossing", "cross", "rebuild", "separate"]
