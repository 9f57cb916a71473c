"""Trackers with another base class, or none: Accelerate's interface, without our hooks.

Their methods of the same names as our hooks (``log_table``, ``log_artifact``, …) have signatures of their own, so they are not
hooks: an adapter stands in front of them, and uses those that it knows.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

from accelbus.media import Media
from accelbus.tracking.base import GeneralTracker

_log = logging.getLogger(__name__)


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
        if not callable(store):
            return
        try:
            store(values)
        except (TypeError, ValueError):
            # Accelerate's documentation promises nothing but numbers, text and bools.
            if (simple := _simple(values)) == values:
                raise
            store(simple)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.inner.log(values, step=step, **kwargs)

    def log_image(self, key: str, media: Media, step: int) -> None:
        """Accelerate's trackers want a list of images, or a batch with channels first; what takes neither gets a file."""
        images = getattr(self.inner, "log_images", None)
        if callable(images):
            array = media.array()
            for form in ([array], array.transpose(2, 0, 1)[None]):
                try:
                    images({key: form}, step=step)
                except (TypeError, ValueError, AttributeError, NotImplementedError, AssertionError) as error:
                    _log.debug("%s: log_images takes no %s: %r", self.name, type(form).__name__, error)
                else:
                    return
        self._log_as_file(key, media, step)

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


def _simple(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return *values* flat, names joined with ``/``, lists and None as text."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _simple(value, f"{prefix}{key}/")
        else:
            flat[prefix + key] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


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
