"""Importing accelbus is cheap and quiet, and its public names are the promised ones."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import accelbus

PUBLIC = {
    "AccelbusError",
    "Accelerator",
    "Alert",
    "Artifact",
    "Audio",
    "ConfigurationError",
    "CorruptDataError",
    "Figure",
    "GeneralTracker",
    "Histogram",
    "Html",
    "Image",
    "MissingExtraError",
    "NotInitializedError",
    "OwnershipError",
    "QueueFullError",
    "RequiredTrackerError",
    "Run",
    "RunNotFoundError",
    "Settings",
    "SinkOptions",
    "StrictError",
    "Table",
    "UnknownTrackerError",
    "Video",
    "__version__",
    "alert",
    "attach",
    "define_metric",
    "finish",
    "get_tracker",
    "init",
    "log",
    "log_artifact",
    "register_tracker_class",
    "run",
}
HEAVY = {"torch", "numpy", "anyio", "zmq", "tensorboard", "typer", "rich", "accelbus_sinks", "importlib.metadata", "asyncio"}


def modules_after(statement: str) -> set[str]:
    """Return what a fresh interpreter has imported after *statement*, beyond what it starts with."""
    program = f"import sys, json; before = set(sys.modules); {statement}; print(json.dumps(sorted(set(sys.modules) - before)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""
    return set(json.loads(result.stdout))


def test_import_brings_nothing_heavy():
    """After ``import accelbus`` no torch, numpy, anyio, zmq, tracker or entry point has been touched."""
    assert modules_after("import accelbus") & HEAVY == set()


def test_import_of_the_client_brings_no_tracker_and_no_framework():
    """Even what `init` needs imports neither torch nor numpy, anyio or a tracker."""
    assert modules_after("import accelbus; accelbus.init") & (HEAVY - {"zmq", "importlib.metadata", "asyncio"}) == set()


def test_public_names_are_the_promised_ones():
    """A name is added to or removed from the public surface on purpose, here."""
    assert set(accelbus.__all__) == PUBLIC
    assert list(accelbus.__all__) == sorted(accelbus.__all__)


def test_every_public_name_resolves_and_is_documented():
    """What ``__all__`` promises is there and says what it does."""
    for name in PUBLIC - {"__version__", "run"}:
        assert getattr(accelbus, name).__doc__, name
    assert set(dir(accelbus)) >= PUBLIC


def test_unknown_name_is_an_attribute_error():
    """A typo fails as it does in any module."""
    assert not hasattr(accelbus, "initialise")


def test_version_is_the_one_of_the_installed_package():
    """One place decides the version."""
    assert accelbus.__version__ == importlib.metadata.version("accelbus")
