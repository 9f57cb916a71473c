"""A value of this kind as it travels, and as a tracker gets it."""

from __future__ import annotations

import base64
import io
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from accelbus.blobs import EXTENSION as LARGE, BlobStore, Reference, read, whole
from accelbus.errors import CorruptDataError, MissingExtraError

EXTENSION: Final = 2
"""Extension code of a packed `Media`; never to be used for anything else."""
INLINE_BYTES: Final = 16 * 1024
"""Larger payloads are files in the run directory, so that they never delay scalars."""
KINDS: Final = ("image", "histogram", "table", "figure", "audio", "video", "html", "artifact", "alert")
Kind: TypeAlias = Literal["image", "histogram", "table", "figure", "audio", "video", "html", "artifact", "alert"]

TIME: Final = "time_ns"
"""In `Media.meta`, of the row it was logged in; delivery puts it there."""

encode = msgspec.msgpack.Encoder(enc_hook=str, decimal_format="number").encode


class Media(msgspec.Struct, array_like=True):
    """One such value as a tracker gets it."""

    kind: Kind
    format: str
    """Of the payload: rgb (raw 8-bit pixels), png, jpeg, …, bins, rows, pcm16, frames, plotly, html, file, text."""
    meta: dict[str, Any]
    """caption, and what the format needs: shape, sample_rate, fps, filename, type, aliases, level, …"""
    data: bytes = b""
    blob: Reference | None = None
    directory: str = ""
    """Where blobs are; set by whoever unpacks it."""

    @property
    def caption(self) -> str:
        """What the user wrote below it; empty for nothing."""
        return str(self.meta.get("caption") or "")

    @property
    def time_ns(self) -> int:
        """Wall clock of the rank that logged it; now, when a tracker is called by hand."""
        return int(self.meta.get(TIME) or time.time_ns())

    def payload(self) -> bytes:
        """Return the bytes.

        Raises:
            CorruptDataError: their file is damaged or gone.
        """
        return self.data if self.blob is None else read(self.blob, Path(self.directory))

    def pil(self) -> Any:
        """Return a ``PIL.Image`` of an image or figure.

        Raises:
            MissingExtraError: Pillow is not installed.
            ValueError: there is no picture in it.
        """
        image = _pillow()
        if self.format == "rgb":
            height, width, channels = self.meta["shape"]
            mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
            return image.frombytes(mode, (width, height), self.payload())
        if self.kind in {"image", "figure"} and self.format not in {"plotly", "html"}:
            return image.open(io.BytesIO(self.payload()))
        raise ValueError(f"there is no picture in a {self.kind} of format {self.format}")

    def png(self) -> bytes:
        """Return an image or figure as PNG; see `pil` for the errors."""
        return self.payload() if self.format == "png" else _saved(self.pil(), "PNG")

    def array(self) -> Any:
        """Return an image as numpy array of uint8, height x width x channels."""
        import numpy as np  # noqa: PLC0415  trackers that ask for arrays have numpy

        if self.format == "rgb":
            return np.frombuffer(self.payload(), np.uint8).reshape(self.meta["shape"])
        pixels = np.asarray(self.pil())
        return pixels if pixels.ndim == 3 else pixels[:, :, None]

    def histogram(self) -> tuple[list[float], list[float]]:
        """Return (counts, edges); one more edge than counts."""
        return list(self.meta["counts"]), list(self.meta["edges"])

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return (columns, rows)."""
        columns, rows = msgspec.msgpack.decode(self.payload())
        return columns, rows

    def markdown(self) -> str:
        """Return a table as Markdown text."""
        columns, rows = self.table()
        lines = ["| " + " | ".join(map(_cell, line)) + " |" for line in [columns, *rows]]
        return "\n".join([lines[0], "|" + " --- |" * len(columns), *lines[1:]])

    def audio(self) -> tuple[bytes, int, int]:
        """Return (interleaved 16-bit samples, sample rate, channels)."""
        return self.payload(), int(self.meta["sample_rate"]), int(self.meta["channels"])

    def file(self) -> tuple[str, bytes]:
        """Return (suffix, content) of a file that programs can open. Not for artifacts, which are files already."""
        if self.format == "rgb":
            return "png", self.png()
        if self.format == "pcm16":
            return "wav", self._wav()
        if self.format == "frames":
            return "gif", self._gif()
        if self.format == "rows":
            return "md", self.markdown().encode()
        if self.format == "bins":
            return "json", msgspec.json.encode(dict(zip(("counts", "edges"), self.histogram(), strict=True)))
        return {"plotly": "json", "text": "txt"}.get(self.format, self.format), self.payload()

    def save(self, directory: Path, stem: str) -> Path:
        """Write a file that programs can open, and return its path; an artifact keeps its own name.

        Args:
            directory: made if needed.
            stem: file name without suffix.
        """
        directory.mkdir(parents=True, exist_ok=True)
        if self.kind == "artifact":
            return self._save_artifact(directory)
        suffix, content = self.file()
        path = directory / f"{stem}.{suffix}"
        path.write_bytes(content)
        return path

    def source(self) -> Path:
        """Return where an artifact lies now: a file or directory that must not be changed. Waits while it is still being copied.

        Raises:
            CorruptDataError: it is gone, or was never complete.
        """
        if self.blob is None or os.path.basename(self.blob.name) != self.blob.name:
            raise CorruptDataError("artifact", f"the artifact {self.meta.get('filename')!r} has no file")
        return whole(Path(self.directory) / self.blob.name)

    def _save_artifact(self, directory: Path) -> Path:
        target = directory / os.path.basename(str(self.meta["filename"]))
        if self.source().is_dir():
            shutil.copytree(self.source(), target, dirs_exist_ok=True)
        else:
            shutil.copyfile(self.source(), target)
        return target

    def _wav(self) -> bytes:
        import wave  # noqa: PLC0415  for trackers that take files only

        samples, rate, channels = self.audio()
        into = io.BytesIO()
        with wave.open(into, "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(samples)
        return into.getvalue()

    def _gif(self) -> bytes:
        count, height, width, channels = self.meta["shape"]
        size = height * width * channels
        data = self.payload()
        image = _pillow()
        mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
        frames = [image.frombytes(mode, (width, height), data[at * size : (at + 1) * size]) for at in range(count)]
        into = io.BytesIO()
        frames[0].save(into, "GIF", save_all=True, append_images=frames[1:], duration=round(1000 / self.meta["fps"]), loop=0)
        return into.getvalue()


def pack(media: Media, blobs: BlobStore) -> msgspec.msgpack.Ext:
    """Return what stands for *media* in an event; a large payload goes to a file.

    Raises:
        OSError: the disk, or the quota for large values, is full.
    """
    if len(media.data) > INLINE_BYTES:
        media = msgspec.structs.replace(media, blob=blobs.keep(media.data), data=b"")
    return msgspec.msgpack.Ext(EXTENSION, encode(media))


def unpack(extension: msgspec.msgpack.Ext, blobs: Path) -> Media:
    """Return the media that *extension* stands for.

    Raises:
        CorruptDataError: it cannot be read.
    """
    try:
        media = msgspec.msgpack.decode(extension.data, type=Media)
    except msgspec.MsgspecError as error:
        raise CorruptDataError("media", f"cannot be read ({error})") from error
    media.directory = str(blobs)
    return media


def blob_names(values: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the names of the files that encoded and decoded *values* refer to."""
    for value in values.values():
        if isinstance(value, Mapping):
            yield from blob_names(value)
        elif isinstance(value, list | tuple):
            yield from blob_names(dict(enumerate(value)))
        elif isinstance(value, msgspec.msgpack.Ext) and value.code == EXTENSION:
            if (blob := msgspec.msgpack.decode(value.data, type=Media).blob) is not None:
                yield blob.name
        elif isinstance(value, msgspec.msgpack.Ext) and value.code == LARGE:
            yield msgspec.msgpack.decode(value.data, type=Reference).name


def spelled_out(extension: msgspec.msgpack.Ext) -> dict[str, Any]:
    """Return packed media as plain data: kind, format, meta, and the bytes in base64 or the name of their file.

    Raises:
        CorruptDataError: it cannot be read.
    """
    media = unpack(extension, Path())
    where = {"data": base64.b64encode(media.data).decode()} if media.blob is None else {"blob": media.blob.name}
    return {"kind": media.kind, "format": media.format, "meta": media.meta, **where}


def _cell(value: Any) -> str:
    text = "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _pillow() -> Any:
    try:
        from PIL import Image as image  # noqa: PLC0415, N813  only trackers that want pictures need it
    except ImportError as error:
        raise MissingExtraError("pictures need Pillow: pip install pillow") from error
    return image


def _saved(image: Any, kind: str) -> bytes:
    into = io.BytesIO()
    image.save(into, kind)
    return into.getvalue()
