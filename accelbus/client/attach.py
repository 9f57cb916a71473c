"""What another process needs to become a producer of the same run."""

from __future__ import annotations

from typing import NamedTuple

from accelbus.client.identity import Identity
from accelbus.client.trackers import Trackers
from accelbus.config import Settings, Tuning


class Handle(NamedTuple):
    """Pickles. ``identity`` may be None for a disabled run."""

    settings: Settings
    identity: Identity | None
    dir: str
    trackers: Trackers
    tuning: Tuning
