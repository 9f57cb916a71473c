"""Media as a tracker gets them."""

from __future__ import annotations

import itertools
from pathlib import Path

from accelbus.blobs import BlobStore
from accelbus.media import TIME, Media, Wrapper, pack, unpack

_numbers = itertools.count()


def media(value: Wrapper, directory: Path, time_ns: int = 0) -> Media:
    """Return *value* after its way through an event, and through *directory* if it is large."""
    blobs = BlobStore(directory / "blobs", f"test-{next(_numbers)}", quota=2**30)
    unpacked = unpack(pack(value.to_media(blobs), blobs), directory / "blobs")
    if time_ns:
        unpacked.meta[TIME] = time_ns
    return unpacked
