"""Trackio in a directory of the tests' own, which it chooses when it is imported, and its own reader."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

if "trackio" not in sys.modules:
    before = os.environ.get("TRACKIO_DIR")
    os.environ["TRACKIO_DIR"] = directory = tempfile.mkdtemp(prefix="accelbus-trackio-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    try:
        import trackio  # noqa: F401
    finally:
        del os.environ["TRACKIO_DIR"]
        if before is not None:
            os.environ["TRACKIO_DIR"] = before

from trackio import utils
from trackio.sqlite_storage import SQLiteStorage

DIRECTORY: Path = utils.TRACKIO_DIR


def rows(project: str, run_id: str) -> list[dict[str, Any]]:
    """Every row in stored order, as Trackio's dashboard reads it."""
    return SQLiteStorage.get_logs(project, run_id=run_id)


def points(project: str, run_id: str, keys: Path | None = None) -> list[tuple[int, str, Any, float]]:
    """(step, key, value, time) in stored order, under the keys that were logged."""
    from accelbus_sinks._keys import read_keys

    names = {name: key for key, name in read_keys(keys).items()} if keys else {}
    found = []
    for row in rows(project, run_id):
        step, seconds = row.pop("step"), datetime.fromisoformat(row.pop("timestamp")).timestamp()
        for name, value in row.items():
            text = isinstance(value, dict) and value["_type"] == "trackio.markdown"
            found.append((step, names.get(name, name), value["_value"] if text else value, seconds))
    return found


def config(project: str, run_id: str) -> dict[str, Any]:
    """The run's configuration."""
    return SQLiteStorage.get_run_config(project, run_id=run_id) or {}
