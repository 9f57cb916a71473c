"""A list of handlers, as a façade is given it: one of each kind, Accelerate's own among them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any, NamedTuple

from accelbus.errors import ConfigurationError
from accelbus.handlers.autocast import AutocastKwargs
from accelbus.handlers.base import KwargsHandler
from accelbus.handlers.ddp import DistributedDataParallelKwargs
from accelbus.handlers.fields import FieldTypeError
from accelbus.handlers.grad_scaler import GradScalerKwargs
from accelbus.handlers.process_group import InitProcessGroupKwargs
from accelbus.handlers.profile import ProfileKwargs


class Handlers(NamedTuple):
    """The handler of each kind, None where none was given. The names are Accelerate's."""

    autocast_handler: AutocastKwargs | None = None
    ddp_handler: DistributedDataParallelKwargs | None = None
    scaler_handler: GradScalerKwargs | None = None
    init_handler: InitProcessGroupKwargs | None = None
    profile_handler: ProfileKwargs | None = None

    def settings(self) -> dict[str, dict[str, Any]]:  # Any: plain data
        """Return {class of each handler that was given: its settings}, for a run's configuration."""
        return {_kind_of(one)[1].__name__: one.settings() for one in self if isinstance(one, KwargsHandler)}


KINDS: dict[str, type[KwargsHandler]] = {
    "autocast_handler": AutocastKwargs,
    "ddp_handler": DistributedDataParallelKwargs,
    "scaler_handler": GradScalerKwargs,
    "init_handler": InitProcessGroupKwargs,
    "profile_handler": ProfileKwargs,
}


def sort_handlers(kwargs_handlers: Iterable[object] | None) -> Handlers:
    """Sort a list of handlers by kind. Subclasses and Accelerate's handlers are welcome; the latter are converted.

    Raises:
        ConfigurationError: two are of one kind.
        FieldTypeError: a `TypeError`: it is no list, or something in it is no handler.
    """
    if kwargs_handlers is None:
        return Handlers()
    if isinstance(kwargs_handlers, KwargsHandler) or not isinstance(kwargs_handlers, Iterable):
        raise FieldTypeError(f"kwargs_handlers: expected a list of handlers, got {kwargs_handlers!r}; write kwargs_handlers=[…]")
    found: dict[str, Any] = {}
    for position, given in enumerate(kwargs_handlers):
        handler = as_handler(given, f"kwargs_handlers[{position}]")
        place, kind = _kind_of(handler)
        if place in found:
            raise ConfigurationError(f"kwargs_handlers: expected one {kind.__name__} at most, got {found[place]!r} and {handler!r}")
        found[place] = handler
    return Handlers(**found)


def as_handler(given: object, label: str = "handler") -> KwargsHandler:
    """Return *given* if it is a handler of a known kind, else what it says if it is one of Accelerate's.

    Accelerate is not imported: an object is its handler when a class of it has the name of one of ours and its fields.

    Raises:
        FieldTypeError: a `TypeError`: it is neither.
    """
    if isinstance(given, tuple(KINDS.values())):
        assert isinstance(given, KwargsHandler)
        return given
    ours = {kind.__name__: kind for kind in KINDS.values()}
    known = ", ".join(ours)
    if isinstance(given, KwargsHandler):
        raise FieldTypeError(f"{label}: {type(given).__name__} is of no kind that is used anywhere; derive it from one of {known}")
    kind = next((ours[base.__name__] for base in type(given).__mro__ if base.__name__ in ours), None)
    if kind is None or not dataclasses.is_dataclass(given) or isinstance(given, type):
        hint = "; leave it out" if given is None else f"; write {given.__name__}(…)" if isinstance(given, type) else ""
        raise FieldTypeError(f"{label}: expected one of {known}, got {given!r} ({type(given).__name__}){hint}")
    return _converted(given, kind)


def _converted(given: object, kind: type[KwargsHandler]) -> KwargsHandler:
    """Take over what differs from the default of the foreign class: it does not tell what was set."""
    chosen = {}
    for field in dataclasses.fields(given):  # type: ignore[arg-type]  # a dataclass: as_handler has checked
        value = getattr(given, field.name)
        if isinstance(value, enum.Enum):
            value = value.value
        if field.name in kind.__dataclass_fields__ and not _is_default(field, value):
            chosen[field.name] = value
    if kind is InitProcessGroupKwargs and chosen.get("timeout") == _implied_timeout(chosen):
        del chosen["timeout"]
    return kind(**chosen)


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    default = field.default.value if isinstance(field.default, enum.Enum) else field.default
    return value is default or bool(value == default)


def _implied_timeout(chosen: dict[str, Any]) -> object:
    """Return what Accelerate fills in for the backend where no timeout was given."""
    return InitProcessGroupKwargs(**{name: value for name, value in chosen.items() if name == "backend"}).timeout


def _kind_of(handler: KwargsHandler) -> tuple[str, type[KwargsHandler]]:
    return next((place, kind) for place, kind in KINDS.items() if isinstance(handler, kind))
