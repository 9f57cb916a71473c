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
    from accelbus.client.current import attach, finish, init, log
    from accelbus.client.run import Run
    from accelbus.config import Settings
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
    from accelbus.tracking import GeneralTracker, register_tracker_class

    run: Run | None
    """The run that the last ``init`` or ``attach`` of this process returned, None before."""

# {public name: module that defines it}. Strings, so that nothing below is imported early and the layers stay layers.
_HOME = {
    "AccelbusError": "errors",
    "ConfigurationError": "errors",
    "CorruptDataError": "errors",
    "GeneralTracker": "tracking",
    "MissingExtraError": "errors",
    "NotInitializedError": "errors",
    "OwnershipError": "errors",
    "QueueFullError": "errors",
    "Run": "client.run",
    "RequiredTrackerError": "errors",
    "RunNotFoundError": "errors",
    "Settings": "config",
    "StrictError": "errors",
    "UnknownTrackerError": "errors",
    "attach": "client.current",
    "finish": "client.current",
    "init": "client.current",
    "log": "client.current",
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
    "ConfigurationError",
    "CorruptDataError",
    "GeneralTracker",
    "MissingExtraError",
    "NotInitializedError",
    "OwnershipError",
    "QueueFullError",
    "RequiredTrackerError",
    "Run",
    "RunNotFoundError",
    "Settings",
    "StrictError",
    "UnknownTrackerError",
    "__version__",
    "attach",
    "finish",
    "init",
    "log",
    "register_tracker_class",
    "run",
]
