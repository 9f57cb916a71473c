"""The run of this process: its arguments, and its directory, which is the same after every restart."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from accelbus.tracking import RunInfo
from accelbus_sinks._places import from_job_directory

_VARIABLES: Final = {
    "name": ("SWANLAB_EXP_NAME",),
    "description": ("SWANLAB_DESCRIPTION",),
    "group": ("SWANLAB_GROUP",),
    "tags": ("SWANLAB_TAGS",),
    "id": ("SWANLAB_RUN_ID",),
    "log_dir": ("SWANLAB_LOG_DIR", "SWANLAB_LOGDIR"),
}
"""{argument of ``swanlab.init``: variables that SwanLab reads when it is missing}"""

_LONGEST_PROJECT: Final = 100
_LONGEST_ID: Final = 200
_LONGEST_NAME: Final = 512
_LONGEST_NOTES: Final = 1024
_MOST_TAGS: Final = 30


def arguments_of(project: str, info: RunInfo, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for ``swanlab.init``: those *given*, else what the environment says, else the run's own."""
    own: dict[str, Any] = {
        "project": project_name(project),
        "name": info.name[:_LONGEST_NAME],
        "description": info.notes[:_LONGEST_NOTES],
        "group": info.group[:_LONGEST_NAME],
        "tags": [tag[:_LONGEST_NAME] for tag in info.tags[:_MOST_TAGS]],
        "id": run_id(info.run_id),
        "log_dir": str(info.output_dir),
        "resume": "allow",
    }
    for argument, variables in _VARIABLES.items():
        if not own[argument] or any(os.environ.get(variable) for variable in variables):
            del own[argument]
    return {**own, **given, **_log_directory(info, given)}


def _log_directory(info: RunInfo, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the argument for where files go, if the user has a word on it: a relative path is not meant from here."""
    for name in ("log_dir", "logdir"):
        if path := given.get(name):
            return {name: str(from_job_directory(path, os.environ, info))}
    path = _first(_VARIABLES["log_dir"])
    return {"log_dir": str(from_job_directory(path, os.environ))} if path else {}


def directory_of(arguments: Mapping[str, Any]) -> Path:
    """Return where the run's files are, for what `arguments_of` returned."""
    log_dir = arguments.get("log_dir") or arguments.get("logdir") or _first(_VARIABLES["log_dir"])
    return Path(log_dir).absolute() / f"run-{run_id(str(arguments.get('id') or _first(_VARIABLES['id'])))}"


def run_id(text: str) -> str:
    """Return *text* as SwanLab takes it in ids and file names."""
    return re.sub(r'[<>:"/\\|?*#%\x00-\x1f\x7f]', "-", text)[:_LONGEST_ID]


def project_name(text: str) -> str:
    """Return *text* in SwanLab's alphabet; names that lose a letter are told apart by a hash."""
    name = re.sub(r"[^0-9a-zA-Z_\-+.]", "-", text)
    if name != re.sub(r"[\s/]", "-", text) or len(name) > _LONGEST_PROJECT:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
        name = f"{name[: _LONGEST_PROJECT - 7]}-{digest}"
    return name or "accelbus"


def open_run(arguments: Mapping[str, Any], directory: Path) -> Any:
    """Return a new ``swanlab.Run`` in *directory*, with nothing captured: it would describe this process and not the training."""
    import swanlab  # noqa: PLC0415  only the worker imports trackers

    settings = swanlab.Settings(
        interactive=False,
        probe=swanlab.Settings.Probe(
            hardware=False, runtime=False, requirements=False, conda=False, git=False, swanlab=False, monitor=False
        ),
        terminal=swanlab.Settings.Terminal(proxy_type="none"),
        run=swanlab.Settings.Run(dir=directory.name),
        # A flush waits for the upload, which looks for work this often.
        core=swanlab.Settings.Core(record_interval=0.5),
    )
    given = dict(arguments)
    if theirs := given.pop("settings", None):
        settings.merge_settings(theirs)
    with _hooks_kept():
        run = swanlab.init(**given, settings=settings)
    # Otherwise a process that leaves for another reason than the end of the run would mark it a success.
    atexit.unregister(getattr(run, "_handle_atexit", None) or _nothing)
    return run


@contextlib.contextmanager
def _hooks_kept() -> Iterator[None]:
    """Undo what SwanLab does to hooks: a signal, which the supervisor deals with, would end the run as aborted."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    hook, handler = sys.excepthook, signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        sys.excepthook = hook
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)


def _nothing() -> None:
    """Stand for a hook that is not there."""


def put_aside(directory: Path) -> Path | None:
    """Move what the process before this one left in *directory* out of SwanLab's way and return where it is; None for nothing.

    May be called again after a crash anywhere between this and the end of `merge`.
    """
    before = directory.with_name(directory.name + ".before")
    if run_file(before) is not None:
        # This process's predecessor died before it had merged: its own directory has nothing but what it had moved there.
        if directory.exists():
            _move_missing(directory, before)
            shutil.rmtree(directory)
        return before
    if before.exists():
        shutil.rmtree(before)
    if run_file(directory) is None:
        # No run was ever opened in it: a start failed.
        shutil.rmtree(directory, ignore_errors=True)
        return None
    os.replace(directory, before)
    return before


def run_file(directory: Path) -> Path | None:
    """Return the run file in *directory*."""
    return next(iter(sorted(directory.glob("run-*.swanlab"))), None)


def supersede(before: Path, directory: Path) -> None:
    """Rename *before*, whose values are delivered again; what we did not make, we do not delete."""
    number = 1
    while (target := directory.with_name(f"superseded-{directory.name}-{number}")).exists():
        number += 1
    os.replace(before, target)


def merge(before: Path, directory: Path) -> None:
    """Move media and saved files of *before* to *directory*. The run file must have been moved after them: it ends the merge."""
    _move_missing(before, directory)


def _move_missing(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        if relative.parts[0] not in {"media", "files"} or (path.is_dir() and not path.is_symlink()):
            continue
        wanted = target / relative
        if not wanted.exists() and not wanted.is_symlink():
            wanted.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, wanted)


def _first(variables: tuple[str, ...]) -> str:
    return next((value for variable in variables if (value := os.environ.get(variable))), "")
