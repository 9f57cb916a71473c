"""Every rank of a distributed PyTorch job logs, nothing is lost, any number of experiment trackers listen.

::

    import accelbus

    with accelbus.init("digits", config={"lr": 0.1}) as run:      # in every rank
        run.log({"loss": 0.5}, step=1)

Importing this package is quick and has no side effects: names are looked up when they are first used, and neither torch nor numpy,
anyio, zmq or a tracker is imported until something needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from accelbus.accelerator import Accelerator
    from accelbus.client.current import alert, attach, define_metric, finish, get_tracker, init, log, log_artifact
    from accelbus.client.run import Run
    from accelbus.config import Settings, SinkOptions
    from accelbus.errors import (
        AccelbusError,
        ConfigurationError,
        CorruptDataError,
        MissingExtraError,
        NotInitializedError,
        OwnershipError,
        QueueFullError,
        RequiredTrackerError,
        RunNotFoundError,
        StrictError,
        UnknownTrackerError,
    )
    from accelbus.media import Alert, Artifact, Audio, Figure, Histogram, Html, Image, Table, Video
    from accelbus.tracking import GeneralTracker, register_tracker_class

    run: Run | None
    """The run that the last ``init`` or ``attach`` of this process returned, None before."""

# {public name: module that defines it}. Strings, so that nothing below is imported early and the layers stay layers.
_HOME = {
    "AccelbusError": "errors",
    "Accelerator": "accelerator",
    "Alert": "media",
    "Artifact": "media",
    "Audio": "media",
    "ConfigurationError": "errors",
    "CorruptDataError": "errors",
    "Figure": "media",
    "GeneralTracker": "tracking",
    "Histogram": "media",
    "Html": "media",
    "Image": "media",
    "MissingExtraError": "errors",
    "NotInitializedError": "errors",
    "OwnershipError": "errors",
    "QueueFullError": "errors",
    "RequiredTrackerError": "errors",
    "Run": "client.run",
    "RunNotFoundError": "errors",
    "Settings": "config",
    "SinkOptions": "config",
    "StrictError": "errors",
    "Table": "media",
    "UnknownTrackerError": "errors",
    "Video": "media",
    "alert": "client.current",
    "attach": "client.current",
    "define_metric": "client.current",
    "finish": "client.current",
    "get_tracker": "client.current",
    "init": "client.current",
    "log": "client.current",
    "log_artifact": "client.current",
    "register_tracker_class": "tracking",
}


def __getattr__(name: str) -> Any:
    if name == "run":
        return importlib.import_module("accelbus.client.current").current_run()
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'accelbus' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"accelbus.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, "run"})


__all__ = [
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
]
