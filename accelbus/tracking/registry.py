"""The trackers there are: built-in, registered, from entry points; names to classes, without importing one too early.

To add a built-in tracker: a file in ``accelbus_sinks``, its entry point, its line in `BUILT_IN`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from accelbus.errors import MissingExtraError, UnknownTrackerError
from accelbus.meant import hint
from accelbus.rundir import RunRecord
from accelbus.tracking.base import GeneralTracker

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS: Final = "accelbus.sinks"
"""Group in which built-in and third-party trackers register: ``name = module:Class``."""


class TrackerSpec(NamedTuple):
    """What can be said about a built-in tracker without importing it."""

    name: str
    package: str | None
    """Top-level module that must be importable; None when the standard library is enough."""
    extra: str | None
    """``pip install 'accelbus[extra]'`` brings the package."""
    class_name: str
    below: int = 0
    """Major version of the package that is too new; 0: none is known to be."""
    python_below: tuple[int, int] | None = None
    """Python for which the package has no release, so that its extra brings nothing there."""


BUILT_IN: Final = {
    spec.name: spec
    for spec in (
        TrackerSpec("jsonl", None, None, "JSONLTracker"),
        TrackerSpec("tensorboard", "tensorboard", "tensorboard", "TensorBoardTracker"),
        TrackerSpec("wandb", "wandb", "wandb", "WandBTracker"),
        TrackerSpec("trackio", "trackio", "trackio", "TrackioTracker"),
        TrackerSpec("comet_ml", "comet_ml", "comet", "CometMLTracker"),
        TrackerSpec("dvclive", "dvclive", "dvclive", "DVCLiveTracker"),
        TrackerSpec("mlflow", "mlflow", "mlflow", "MLflowTracker"),
        TrackerSpec("aim", "aim", "aim", "AimTracker", below=4, python_below=(3, 13)),
        TrackerSpec("clearml", "clearml", "clearml", "ClearMLTracker"),
        TrackerSpec("swanlab", "swanlab", "swanlab", "SwanLabTracker"),
    )
}


_registered: dict[str, type[GeneralTracker]] = {}


def register_tracker_class(tracker_class: Any) -> None:
    """Make *tracker_class* selectable by its ``name`` in ``log_with``. Call it before ``accelbus.init``.

    Classes written for Accelerate, with its base class or none, are taken as they are. The tracker is built in another process, which
    imports the class; one that cannot be imported, of a notebook say, travels by value. A name that is taken, also that of a built-in
    tracker, is overwritten with a warning.

    Raises:
        ValueError: not a `GeneralTracker`, or without ``name`` or ``requires_logging_directory``.
    """
    if not (inspect.isclass(tracker_class) and callable(getattr(tracker_class, "log", None))):
        raise ValueError(f"`tracker_class` must be a subclass of `GeneralTracker`, but got {tracker_class}.")
    name = getattr(tracker_class, "name", None)
    if not name:
        raise ValueError("The tracker class to register must define a non-empty `name` attribute.")
    if not hasattr(tracker_class, "requires_logging_directory"):
        raise ValueError(
            "The tracker class to register must define a `requires_logging_directory` class attribute. "
            "Set it to `True` if the tracker needs a logging directory, or `False` otherwise."
        )
    if name in _registered or name in BUILT_IN:
        warnings.warn(
            f"A tracker with the name '{name}' is already registered and will be overwritten by {tracker_class}. "
            "This is especially significant when shadowing a built-in tracker.",
            stacklevel=2,
        )
    _registered[name] = cast("type[GeneralTracker]", tracker_class)


def resolve(log_with: str | Sequence[str] | None, *, check_installed: bool = True, given: Container[str] = ()) -> tuple[str, ...]:
    """Return the names under which the trackers of *log_with* can be loaded in another process.

    Imports no tracker. None stands for TensorBoard where it is installed, else JSONL; ``"all"`` for every tracker that is
    installed or registered.

    Args:
        log_with: a name, several, or None.
        check_installed: False for a run that another machine will deliver: the packages are needed there.
        given: names of trackers that the user gave as class or instance.

    Raises:
        UnknownTrackerError: a name nobody registered; says the known ones.
        MissingExtraError: a built-in tracker whose package is not installed, or of a version it cannot use; says the install command.
    """
    if log_with is None:
        return ("tensorboard",) if _is_installed(BUILT_IN["tensorboard"]) else ("jsonl",)
    names = [log_with] if isinstance(log_with, str) else [str(name) for name in log_with]
    if "all" in names:
        names = [*(name for name in names if name != "all"), *available()]
    for name in names:
        if name not in given and name not in _registered:
            _check_name(name, check_installed=check_installed)
    return tuple(dict.fromkeys(names))


def registered() -> Mapping[str, type[GeneralTracker]]:
    """Return {name: class} of what was registered in this process."""
    return _registered


def load_tracker_class(name: str, search_path: Sequence[str] = ()) -> type[GeneralTracker]:
    """Import the tracker called *name*, or ``module:Class``. This is where its package is imported.

    Args:
        name: as `resolve` returned it.
        search_path: where else to look for the module of a class. Appended: a folder next to somebody's script (W&B's ``wandb``, say)
            must not hide a package.

    Raises:
        UnknownTrackerError: no such name, module or class, or the class is no tracker.
        MissingExtraError: the package of a built-in tracker is missing.
    """
    if name in _registered:
        return _registered[name]
    path = name
    extend_path(search_path)
    if ":" not in name:
        entry_point = _entry_points().get(name)
        if entry_point is None:
            raise _unknown(name)
        path = entry_point.value
    try:
        return _import_class(name, path)
    except ImportError as error:
        spec = BUILT_IN.get(name)
        if spec and not _is_installed(spec):
            raise _missing_extra(spec) from error
        raise UnknownTrackerError(f"tracker {name!r} cannot be imported from {path!r}: {error}") from error


def extend_path(search_path: Sequence[str]) -> None:
    """Look for modules in *search_path* too, after everything else."""
    sys.path.extend(folder for folder in search_path if folder not in sys.path)


def make_tracker(
    tracker_class: type[GeneralTracker], run: RunRecord, logging_dir: Path | str, init_kwargs: Mapping[str, Any]
) -> GeneralTracker:
    """Return an instance, built as Accelerate builds it: project first, then the directory if the class asks for one."""
    construct: Callable[..., GeneralTracker] = tracker_class  # arguments differ from tracker to tracker
    if tracker_class.requires_logging_directory:
        return construct(run.project, str(logging_dir), **init_kwargs)
    return construct(run.project, **init_kwargs)


def overrides(tracker: object, hook: str) -> bool:
    """Whether *tracker* brings its own *hook*, instead of inheriting the default of `GeneralTracker` or lacking it."""
    own = getattr(type(tracker), hook, None)
    return own is not None and own is not getattr(GeneralTracker, hook, None)


def finish_with_status(tracker: GeneralTracker, status: str) -> None:
    """Call ``tracker.finish``, with *status* if it takes one: trackers written for Accelerate do not."""
    parameters = inspect.signature(tracker.finish).parameters.values()
    if any(parameter.name == "status" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        tracker.finish(status=status)
    else:
        tracker.finish()


def _check_name(name: str, *, check_installed: bool) -> None:
    if spec := BUILT_IN.get(name):
        if check_installed and not _is_installed(spec):
            raise _missing_extra(spec)
    elif name not in _entry_points() and not _may_be_a_path(name):
        raise _unknown(name)


def _may_be_a_path(name: str) -> bool:
    """Only the top-level package is looked for: `find_spec` of a submodule would import its parents into the training process."""
    package = name.partition(":")[0].partition(".")[0]
    return ":" in name and package not in {"", "__main__"} and importlib.util.find_spec(package) is not None


def available() -> Iterator[str]:
    """Yield the names of the trackers that can be used here."""
    yield from (spec.name for spec in BUILT_IN.values() if spec.name in _registered or _is_installed(spec))
    yield from (name for name in _registered if name not in BUILT_IN)
    yield from (name for name in sorted(_entry_points()) if name not in BUILT_IN and name not in _registered)


def _is_installed(spec: TrackerSpec) -> bool:
    if spec.package is None:
        return True
    return importlib.util.find_spec(spec.package) is not None and not _is_too_new(spec)


def _is_too_new(spec: TrackerSpec) -> bool:
    major = _version(spec).partition(".")[0] if spec.below else ""
    return major.isdigit() and int(major) >= spec.below


def _version(spec: TrackerSpec) -> str:
    """Return the version of an installed package, empty when it says none: by the name of the folder beside it.

    importlib.metadata, which would read it, loads email, csv and zipfile into every rank.
    """
    found = importlib.util.find_spec(spec.package or "")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for described in Path(folder).parent.glob(f"{spec.package}-*.dist-info"):
            return described.name.removeprefix(f"{spec.package}-").removesuffix(".dist-info")
    return ""


def _entry_points() -> dict[str, EntryPoint]:
    import importlib.metadata  # noqa: PLC0415  it brings email, csv and zipfile into every rank, and built-in names need none of them

    return {entry_point.name: entry_point for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _import_class(name: str, path: str) -> type[GeneralTracker]:
    module_name, _, qualname = path.partition(":")
    found: Any = importlib.import_module(module_name)
    try:
        for part in qualname.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise UnknownTrackerError(f"tracker {name!r}: module {module_name!r} has no {qualname!r}") from error
    if not (inspect.isclass(found) and hasattr(found, "log") and hasattr(found, "requires_logging_directory")):
        raise UnknownTrackerError(f"tracker {name!r}: expected a GeneralTracker class at {path!r}, got {found!r}")
    return cast("type[GeneralTracker]", found)


def _missing_extra(spec: TrackerSpec) -> MissingExtraError:
    install = f"pip install 'accelbus[{spec.extra}]'"
    if _is_too_new(spec):
        return MissingExtraError(
            f"tracker {spec.name!r} needs the package {spec.package!r} below {spec.below}, {_version(spec)} is installed; {install}"
        )
    if spec.python_below is not None and sys.version_info[:2] >= spec.python_below:
        limit, here = (".".join(map(str, version[:2])) for version in (spec.python_below, sys.version_info))
        install = f"it has no release for Python {here}, use one below {limit}"
    return MissingExtraError(f"tracker {spec.name!r} needs the package {spec.package!r}, which is not installed; {install}")


def _unknown(name: str) -> UnknownTrackerError:
    known = sorted({*BUILT_IN, *_registered, *_entry_points()})
    return UnknownTrackerError(f"unknown tracker {name!r} (known: {', '.join(known)}, or 'module:Class'){hint(name, known)}")
