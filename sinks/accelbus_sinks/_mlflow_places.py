"""Where MLflow keeps runs and their artifacts.

What MLflow understands from the working directory is understood from that of the job: a worker has another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mlflow import MlflowClient

from accelbus.durable import write_atomically
from accelbus.tracking import RunInfo
from accelbus_sinks._places import from_job_directory, job_directory

logger = logging.getLogger(__name__)

_NAMES: Final = frozenset({"databricks", "databricks-uc", "uc"})
"""Tracking URIs that are no paths, though they look like one."""
_SQLITE: Final = "sqlite:///"
_NOTE: Final = "tracking-uri"


def tracking_uri(environ: Mapping[str, str], state_dir: Path) -> str:
    """Return the tracking URI that a worker uses: the user's, else MLflow's default ``mlflow.db`` in the job's directory.

    When that directory is not known or cannot be written, the database is the run's own, below *state_dir*. What is not said the
    second time, as by who delivers the rest of a run from elsewhere, is what it was the first time.
    """
    if given := environ.get("MLFLOW_TRACKING_URI", ""):
        return absolute_uri(given, environ)
    note = state_dir / _NOTE
    if note.exists():
        return note.read_text()
    here = job_directory(environ)
    directory = here if here is not None and os.access(here, os.W_OK) else state_dir
    return f"{_SQLITE}{directory / 'mlflow.db'}"


def remember(uri: str, state_dir: Path) -> None:
    """Note the *uri* of a database of files for `tracking_uri`; others may hold a password."""
    if uri.startswith(_SQLITE):
        state_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(state_dir / _NOTE, uri.encode())


def make_database(uri: str) -> None:
    """Make the database of *uri*, if it is a file that is missing.

    As a whole: runs that start at once do not come between each other's hundred migrations, and a crash leaves none half made.
    """
    path = _database_file(uri)
    if path is None or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".accelbus-") as directory:
        # There MLflow's default experiment gets the place for its artifacts.
        with contextlib.chdir(path.parent):
            MlflowClient(f"{_SQLITE}{directory}/new.db").search_experiments(max_results=1)
        # A copy: MLflow keeps its connection to the first one.
        made = shutil.copyfile(Path(directory, "new.db"), Path(directory, "made.db"))
        try:
            os.link(made, path)
        except FileExistsError:
            logger.info("%s was made by another run meanwhile", path)
        except OSError:  # a file system without links
            os.replace(made, path)


def artifact_location(
    uri: str,
    experiment: str,
    given: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    info: RunInfo = RunInfo(),  # noqa: B008  immutable
) -> str | None:
    """Return where a new experiment is to keep artifacts; None: where the server wants.

    Args:
        uri: tracking URI.
        experiment: its name.
        given: by the user: a path, or a URI such as ``s3://…``.
        environ: for the directory of the job.
        info: for the same.
    """
    if given is not None:
        given = os.fspath(given)
        return given if "://" in given else str(from_job_directory(given, environ, info).absolute())
    scheme = urllib.parse.urlsplit(uri).scheme.partition("+")[0]
    if scheme not in {"sqlite", "postgresql", "mysql", "mssql"}:
        return None
    # MLflow's default is ./mlruns of whoever creates the experiment, which would be this worker's.
    database = _database_file(uri)
    root = (job_directory(environ, info) or Path.cwd()) if database is None else database.parent
    return str(root / "mlruns" / (re.sub(r"[^\w.-]+", "_", experiment)[:100].strip(".") or "experiment"))


def run_address(uri: str, experiment_id: str, run_id: str) -> str:
    """Return where a person finds a run: a page of the server, or the database and the run's place in its user interface."""
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme in {"http", "https"}:
        # Without the password that may be in it.
        uri = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/") + "/"
    elif "@" in parts.netloc:
        uri = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{uri}#/experiments/{experiment_id}/runs/{run_id}"


def absolute_uri(uri: str, environ: Mapping[str, str], info: RunInfo = RunInfo()) -> str:  # noqa: B008  immutable
    """Return *uri*; the relative path in one is meant from the job's directory."""
    if uri in _NAMES:
        return uri
    if uri.startswith(_SQLITE):
        path = uri.removeprefix(_SQLITE)
        return uri if path.startswith("/") else f"{_SQLITE}{from_job_directory(path, environ, info)}"
    if ":" not in uri:
        return str(from_job_directory(uri, environ, info))
    if uri.startswith("file:") and not uri.startswith("file:/"):
        return from_job_directory(uri.removeprefix("file:"), environ, info).absolute().as_uri()
    return uri


def _database_file(uri: str) -> Path | None:
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]).absolute() if uri.startswith(_SQLITE) else None
