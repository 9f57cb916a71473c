"""`KwargsHandler`: which arguments a user has chosen for an object of torch, and which are left to torch."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Self

from accelbus.handlers.fields import CHECK, FieldTypeError
from accelbus.meant import hint

_said: set[tuple[str, str]] = set()
"""{(subject, reason)}: what this process has warned about."""


class NoEffectWarning(UserWarning):
    """Something that was asked for changes nothing here; says why. Each reason is given once per process."""


@dataclasses.dataclass
class KwargsHandler:
    """Base of all handlers: arguments for an object that somebody else makes.

    Subclass it as a dataclass. It remembers which fields were set, so that a value that was asked for is passed on also when it
    happens to be the default here: the default of the callee may be another one, or mean something else.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # Any: the arguments of the subclass's __init__
        handler = super().__new__(cls)
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        named = [one.name for one in parameters if one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD}]
        if len(named) == len(parameters):
            for unknown in kwargs.keys() - named:
                raise FieldTypeError(
                    f"{cls.__name__} has no field {unknown!r}{hint(unknown.lower(), named)} (it has: {', '.join(named) or 'none'})"
                )
        given = ({*kwargs} | {name for name, _ in zip(named, args, strict=False)}) & _origins(cls).keys()
        handler.__dict__["_given"] = frozenset(given)
        return handler

    def __setattr__(self, name: str, value: Any) -> None:  # Any: the check of the field decides
        field = _origins(type(self)).get(name)
        if field is not None:
            value = field.metadata.get(CHECK, _anything)(f"{type(self).__name__}.{name}", value)
            if name in self.__dict__:  # the first time is __init__'s, which sets what nobody chose as well
                self.__dict__["_given"] |= {name}
        super().__setattr__(name, value)

    @classmethod
    def defaults(cls) -> dict[str, Any]:  # Any: the fields' types
        """Return {field: its default in the class that introduced it}; a field without one is absent.

        A subclass that changes a default wants it to have an effect, so it counts as a difference.
        """
        found = {}
        for name, field in _origins(cls).items():
            if field.default is not dataclasses.MISSING:
                found[name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                found[name] = field.default_factory()
        return found

    def to_dict(self, ignore_keys: Collection[str] = ()) -> dict[str, Any]:  # Any: the fields' types
        """Return {field: value}; containers are copies, what they hold is not (a process group cannot be copied)."""
        return {name: _snapshot(getattr(self, name)) for name in _origins(type(self)) if name not in ignore_keys}

    def to_kwargs(self) -> dict[str, Any]:  # Any: the fields' types
        """Return the attributes that differ from the class's defaults, and those that were set, whatever to."""
        defaults = self.defaults()
        return {
            name: value
            for name, value in self.to_dict().items()
            if name in self._given or name not in defaults or not _equal(value, defaults[name])
        }

    def kwargs_for(self, function: Callable[..., object], kind: type[KwargsHandler]) -> dict[str, Any]:  # Any: the fields' types
        """Return `to_kwargs` without what *function* does not take: fields that a subclass of *kind* has added, or that torch has dropped.

        The latter are warned about.
        """
        taken, ours = inspect.signature(function).parameters, _origins(kind)
        chosen = self.to_kwargs()
        for name in [name for name in chosen if name in ours and name not in taken]:
            self.warn_no_effect(f"has no effect with {name!r}: {function.__name__} of this torch has no such argument", stacklevel=3)
        return {name: value for name, value in chosen.items() if name in taken}

    def settings(self) -> dict[str, Any]:  # Any: plain data
        """Return what is in force as plain data (numbers, text, lists, mappings), durations in seconds: for a run's configuration."""
        return {name: plain(getattr(self, name)) for name in _origins(type(self))}

    def warn_no_effect(self, reason: str, stacklevel: int = 2) -> None:
        """Warn, once per process, class and reason, that this handler changes nothing, and why.

        Args:
            reason: what is said after the handler's name.
            stacklevel: whose line is shown; 2 is that of whoever called the function that warns.
        """
        warn_no_effect(type(self).__name__, reason, stacklevel + 1)

    @property
    def _given(self) -> frozenset[str]:
        """Names of the fields that were set, by the constructor's caller or later."""
        given: frozenset[str] = self.__dict__["_given"]
        return given


def warn_no_effect(subject: str, reason: str, stacklevel: int = 2) -> None:
    """Warn, once per process, that *subject* changes nothing, and why; *stacklevel* as in the method."""
    if (subject, reason) not in _said:
        _said.add((subject, reason))
        warnings.warn(f"{subject} {reason}", NoEffectWarning, stacklevel=stacklevel + 1)


def plain(value: Any) -> Any:  # Any: from any field to plain data
    """Return *value* as numbers, text, lists and mappings."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _origins(cls: type[KwargsHandler]) -> dict[str, dataclasses.Field[Any]]:
    """Return {field: as the class that introduced it has declared it}: a redeclared default keeps its check."""
    found: dict[str, dataclasses.Field[Any]] = {}
    for base in reversed(cls.__mro__):
        if "__dataclass_fields__" in base.__dict__:
            for field in dataclasses.fields(base):
                found.setdefault(field.name, field)
    return found


def _snapshot(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, dict | list | set) else value


def _equal(value: Any, default: Any) -> bool:
    # `is True`: arrays and tensors answer with an array, which counts as different.
    return value is default or (value == default) is True


def _anything(_label: str, value: Any) -> Any:
    return value
