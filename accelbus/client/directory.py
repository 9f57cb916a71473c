"""A run's directory while `accelbus.init` may still fail."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from accelbus.errors import ConfigurationError
from accelbus.rundir import RunDir, RunRecord

_PROBE: Final = bytes(4096)


@contextlib.contextmanager
def made(run_dir: RunDir, *, is_main: bool) -> Iterator[None]:
    """Make the directories and look whether they take what a run writes; if the block fails, none of it is left that was not there.

    Args:
        run_dir: of the run.
        is_main: the record, if there is one afterwards, is this rank's.

    Raises:
        ConfigurationError: they cannot be made or written.
    """
    places = (run_dir.path, run_dir.journal, run_dir.path / "sinks", run_dir.logs)
    new = [place for place in (*_missing_above(run_dir.path), *places) if not _is_there(place)]
    try:
        run_dir.create()
        _check(run_dir, places)
        yield
    except BaseException:
        if is_main and run_dir.path in new:
            with contextlib.suppress(OSError):
                run_dir.record_path.unlink()
        for place in reversed(new):
            with contextlib.suppress(OSError):
                place.rmdir()  # not where somebody else has put something in
        raise


def write_record(run_dir: RunDir, record: RunRecord) -> None:
    """Write ``run.json``.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        run_dir.write_record(record)
    except OSError as error:
        raise _refusal(run_dir.record_path, error) from error


def _check(run_dir: RunDir, places: tuple[Path, ...]) -> None:
    for place in places:
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            raise _refusal(place, PermissionError("Permission denied"))
    # A full disk takes an empty file.
    probe = run_dir.journal / f".writable-{os.uname().nodename}-{os.getpid()}"
    try:
        try:
            probe.write_bytes(_PROBE)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise _refusal(run_dir.journal, error) from error


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # and not for us to see


def _missing_above(path: Path) -> list[Path]:
    return [above for above in reversed(path.parents) if not _is_there(above)]


def _refusal(place: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{str(place)!r} cannot be written ({error.strerror or error}); pass dir= or set ACCELBUS_DIR to a directory that can be"
    )


__all__ = ["made", "write_record"]
