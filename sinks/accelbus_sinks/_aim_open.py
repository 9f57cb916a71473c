"""Open a run of Aim's, the same one after every crash."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aim import Repo, Run

from accelbus.tracking import RunInfo
from accelbus_sinks._places import from_job_directory

logger = logging.getLogger(__name__)

HASH_DIGITS: Final = 24
"""As Aim's own."""
_KNOWN_AFTER: Final = 2.0
"""Seconds within which Aim sees a new run; it looks into the directory twice a second."""
_QUIET: Final = {"system_tracking_interval": None, "capture_terminal_logs": False, "log_system_params": False}
"""What Aim would record by itself is about the worker and not about the training."""


def open_repo(place: str | os.PathLike[str], environ: Mapping[str, str], info: RunInfo, *, is_ours: bool) -> Repo:
    """Return the repository at *place*, made if it is missing.

    Args:
        place: a directory, or the address of a server.
        environ: for the job's directory, from which a relative *place* is meant.
        info: for the same.
        is_ours: no other run is in it, so a lock that is left there is one of a process that was killed.
    """
    path = os.fspath(place)
    if "://" in path:
        return Repo.from_path(path)
    directory = from_job_directory(path, environ, info).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if not Repo.exists(str(directory)):
        return Repo.from_path(str(directory), init=True)
    if is_ours:
        # Aim would wait five minutes for it.
        (directory / ".aim" / "locks" / "structured_db_lock").unlink(missing_ok=True)
    return Repo.from_path(str(directory))


def open_run(repo: Repo, info: RunInfo, arguments: Mapping[str, Any]) -> Run:
    """Return the run of *info* in *repo*, made if it is missing.

    Its hash follows from our run id, so a process that was killed while it made the run made this one. A server makes up hashes
    itself: there the hash is in the state directory, and a process killed before it could note it leaves an empty run.

    Args:
        repo: where.
        info: of our run.
        arguments: of Aim's ``Run``; with ``run_hash`` that run is continued.
    """
    settings = {**_QUIET, **arguments}
    given = settings.pop("run_hash", None)
    note = info.state_dir / "run-hash"
    if given is None and info.run_id:
        if not repo.is_remote_repo:
            given = _prepared(repo, info.run_id)
        elif note.exists():
            given = note.read_text().strip()
    run = Run(given, repo=repo, force_resume=given is not None and _is_locked(repo, given), **settings)
    if repo.is_remote_repo and info.run_id:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(run.hash)
    return run


def index(repo: Repo, run_hash: str) -> None:
    """Let Aim's readers see a run that is closed. Aim's server does this by itself, and a script that reads without one needs it."""
    try:
        from aim.sdk.index_manager import RepoIndexManager  # noqa: PLC0415  newer versions of Aim

        if not repo.is_remote_repo:
            RepoIndexManager.get_index_manager(repo).index(run_hash)
    except Exception as error:  # noqa: BLE001  a convenience: the server may hold the index, and versions differ
        logger.info("the run is not indexed (%s); Aim's server does it, or: aim storage reindex", error)


def _is_locked(repo: Repo, run_hash: str) -> bool:
    """Whether a process that was killed has left its lock; delivery sees to it that nobody else writes the run."""
    return repo.is_remote_repo or Path(repo.path, "locks", f"{run_hash}.softlock").exists()


def _prepared(repo: Repo, run_id: str) -> str:
    """Return the hash of *run_id*, after making the directory by which Aim tells that the run exists."""
    run_hash = hashlib.sha256(f"accelbus\0{run_id}".encode()).hexdigest()[:HASH_DIGITS]
    Path(repo.path, "meta", "chunks", run_hash).mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + _KNOWN_AFTER
    while not repo.run_exists(run_hash) and time.monotonic() < until:
        time.sleep(0.1)
    return run_hash
