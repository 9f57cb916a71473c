"""Where the job was started; sink workers run elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def job_directory(environ: Mapping[str, str]) -> Path | None:
    """Return the working directory of the shell that started the job, from ``PWD``, if there is one."""
    path = Path(environ.get("PWD", ""))
    return path if path.is_absolute() and path.is_dir() else None


def from_job_directory(path: str | Path, environ: Mapping[str, str]) -> Path:
    """Return *path*; a relative one is meant from `job_directory`."""
    return (job_directory(environ) or Path.cwd()) / path
