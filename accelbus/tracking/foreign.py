"""Trackers with another base class, or none: Accelerate's interface, without our hooks.

Their methods of the same names as our hooks (``log_table``, ``log_artifact``, …) have signatures of their own, so they are not
hooks: an adapter stands in front of them, and uses those that it knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from accelbus.media import Media
from accelbus.tracking.base import GeneralTracker


class ForeignTracker(GeneralTracker):
    """In front of a tracker that was written for Accelerate."""

    name = "foreign"
    requires_logging_directory = False

    def __init__(self, inner: Any) -> None:
        super().__init__(_blank=True)
        self.inner = inner
        self.name = str(inner.name)
        self.requires_logging_directory = bool(inner.requires_logging_directory)
        self.main_process_only = bool(getattr(inner, "main_process_only", True))
        self.durable_after = getattr(inner, "durable_after", "flush")
        self.log_images = getattr(inner, "log_images", None)
        """Found by the default of ``log_image``."""

    @property
    def tracker(self) -> Any:
        """The underlying object, such as W&B's run."""
        return self.inner.tracker

    @property
    def url(self) -> str | None:
        return getattr(self.inner, "url", None)

    def start(self) -> None:
        # Accelerate's trackers have had it since 2025; the older ones start when they are made.
        start = getattr(self.inner, "start", None)
        if callable(start):
            start()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        store = getattr(self.inner, "store_init_configuration", None)
        if callable(store):
            store(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.inner.log(values, step=step, **kwargs)

    def log_table(self, key: str, media: Media, step: int) -> None:
        table = getattr(self.inner, "log_table", None)
        if callable(table) and _takes(table, "table_name", "columns", "data", "step"):
            columns, rows = media.table()
            table(table_name=key, columns=columns, data=rows, step=step)
        else:
            super().log_table(key, media, step)

    def finish(self, status: str | None = None) -> None:
        finish = getattr(self.inner, "finish", None)
        if callable(finish):
            finish(**({"status": status} if _takes(finish, "status") else {}))

    @property
    def logs_with(self) -> Any:
        """The method whose signature says which keyword arguments are taken."""
        return self.inner.log


def adapted(tracker: Any) -> GeneralTracker:
    """Return *tracker* with all of our hooks."""
    return tracker if isinstance(tracker, GeneralTracker) else ForeignTracker(tracker)


def _takes(method: Any, *names: str) -> bool:
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return False
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return True
    return set(names) <= {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}


__all__ = ["ForeignTracker", "adapted"]
