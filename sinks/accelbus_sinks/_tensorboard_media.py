"""Media as values of TensorBoard's summaries, and what has no tab of its own as Markdown.

Tags end like those of texts (``samples/image_summary``) and are shown without that end: a key may have a curve and a histogram, and a
tag belongs to one tab only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorboard.compat.proto import tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.audio import metadata as audio_metadata
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.image import metadata as image_metadata

from accelbus.media import Media
from accelbus.values import flatten
from accelbus_sinks._config import text_of
from accelbus_sinks._tfevents import string_tensor, tensor_value, text_value, valid_text

SHOWN_FORMATS: Final = frozenset({"png", "jpeg", "jpg", "gif", "bmp"})
"""Of pictures that go as they are; browsers show them."""
LONGEST_CELL: Final = 500
"""Characters of a value in a table of Markdown; longer ones get a block of their own."""


def image_value(key: str, media: Media) -> bytes:
    """Return a picture for the Images tab."""
    width, height = media.pil().size
    encoded = media.payload() if media.format in SHOWN_FORMATS else media.png()
    return _image(key, encoded, width, height)


def video_value(key: str, media: Media) -> bytes:
    """Return moving pictures for the Images tab, as a GIF, like torch's ``add_video``."""
    _, height, width, _ = media.meta["shape"]
    return _image(key, media.file()[1], width, height)


def histogram_value(key: str, counts: Sequence[float], edges: Sequence[float]) -> bytes:
    """Return a histogram for the Histograms and Distributions tabs, bins as they are."""
    rows = list(zip(edges[:-1], edges[1:], counts, strict=True))
    shape = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in (len(rows), 3)]
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_DOUBLE,
        tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=shape),
        tensor_content=b"".join([struct.pack("<ddd", *row) for row in rows]),
    )
    metadata = histogram_metadata.create_summary_metadata(display_name=valid_text(key), description="")
    return tensor_value(f"{key}/histogram_summary", metadata, tensor)


def audio_value(key: str, media: Media) -> bytes:
    """Return sound for the Audio tab, which knows WAV only."""
    encoding = audio_metadata.Encoding.Value("WAV")
    metadata = audio_metadata.create_summary_metadata(display_name=valid_text(key), description="", encoding=encoding)
    label = media.caption.encode("utf-8", "backslashreplace")
    return tensor_value(f"{key}/audio_summary", metadata, string_tensor([media.file()[1], label], 1, 2))


def caption_values(key: str, media: Media) -> list[bytes]:
    """Return what a picture's caption is: the Images tab has no place for one that changes."""
    return [text_value(f"{key}/caption", media.caption)] if media.caption else []


def file_value(key: str, media: Media, file: str) -> bytes:
    """Return a reference to *file*, which the Text tab shows."""
    meta = media.meta
    if media.kind != "artifact":
        return text_value(key, f"{media.kind}: `{file}`")
    aliases = f" ({', '.join(map(str, meta['aliases']))})" if meta.get("aliases") else ""
    return text_value(key, f"{meta['type']} **{meta['name']}**{aliases}: `{file}`")


def record_value(facts: Mapping[str, Any]) -> bytes:
    """Return the circumstances of a run as a table, with long texts below it."""
    short, long = [], []
    for name, value in flatten(facts).items():
        text = text_of(value)
        if len(text) <= LONGEST_CELL and "\n" not in text:
            short.append(f"| {name} | {text.replace('|', chr(92) + '|')} |")
        else:
            long.append(f"**{name}**\n\n```\n{text}\n```")
    return text_value("run_record", "\n".join(["| | |", "|---|---|", *short]) + "".join(f"\n\n{block}" for block in long))


def alert_value(title: str, text: str, level: str) -> bytes:
    return text_value("alerts", f"**{level}: {title}**" + (f"\n\n{text}" if text else ""))


def _image(key: str, encoded: bytes, width: int, height: int) -> bytes:
    metadata = image_metadata.create_summary_metadata(display_name=valid_text(key), description="")
    return tensor_value(f"{key}/image_summary", metadata, string_tensor([str(width).encode(), str(height).encode(), encoded]))


__all__ = ["alert_value", "audio_value", "caption_values", "file_value", "histogram_value", "image_value", "record_value", "video_value"]
