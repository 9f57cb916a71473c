"""Values that are more than a number or text: images, histograms, tables, figures, audio, video, files, alerts.

A wrapper is a value like any other: ``run.log({"samples": accelbus.Image(batch[0])}, step=step)``. What it wraps is copied before
``log`` returns. In the training process it is reduced to plain bytes and nothing more; making a PNG, a GIF or a WAV of them is left
to the process of the tracker that wants one.

In an event such a value is a msgpack extension. To add a kind: a wrapper in ``wrappers.py``, its name in `KINDS`, a ``log_<kind>`` hook
with a fallback in `accelbus.tracking.media`.
"""

from __future__ import annotations

from accelbus.media.value import EXTENSION, INLINE_BYTES, KINDS, TIME, Kind, Media, blob_names, pack, spelled_out, unpack
from accelbus.media.wrappers import Alert, Artifact, Audio, Figure, Histogram, Html, Image, Table, Video, Wrapper

__all__ = [
    "EXTENSION",
    "INLINE_BYTES",
    "KINDS",
    "TIME",
    "Alert",
    "Artifact",
    "Audio",
    "Figure",
    "Histogram",
    "Html",
    "Image",
    "Kind",
    "Media",
    "Table",
    "Video",
    "Wrapper",
    "blob_names",
    "pack",
    "spelled_out",
    "unpack",
]
