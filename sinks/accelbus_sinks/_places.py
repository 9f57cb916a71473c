"""Where the job was started; sink workers run elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from accelbus.tracking import RunInfo


def job_directory(environ: Mapping[str, str], info: RunInfo = RunInfo()) -> Path | None:  # noqa: B008  immutable
    """Return the job's working directory, if it is known and there is one here.

    Args:
        environ: of this process, which has the job's ``PWD``; what is said in it is meant from there.
        info: of the run: for what the user gave as an argument. Who delivers the rest of a run may have another environment.
    """
    for path in (info.directory, Path(environ.get("PWD", ""))):
        if path.is_absolute() and path.is_dir():
            return path
    return None


def from_job_directory(path: str | Path, environ: Mapping[str, str], info: RunInfo = RunInfo()) -> Path:  # noqa: B008  immutable
    """Return *path*; a relative one is meant from `job_directory`."""
    return (job_directory(environ, info) or Path.cwd()) / path
