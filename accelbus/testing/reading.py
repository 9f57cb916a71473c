"""What a tracker's own reader finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Point(NamedTuple):
    """One value as the tracker stored it."""

    step: int
    key: str
    value: Any
    time: float = 0.0
    """Seconds."""


class ReadBack(NamedTuple):
    """What a tracker's own reader finds, under the keys that were logged."""

    points: list[Point]
    """In stored order."""
    config: Mapping[str, Any] = {}
    """{flat key: value}"""
    status: str | None = None


class Arrived(NamedTuple):
    """One thing that was found under a key that was logged."""

    key: str
    """Of hyperparameters ``config/<key>``, of the summary ``summary/<key>``, of an alert ``alert``."""
    place: str
    """Where, in the tracker's own words: scalar, Text tab, artifact, …"""
    content: Any
    """A number, text, list; bytes of a file; (counts, edges) of a histogram; (columns, rows) of a table."""
