"""Values that are more than a number or text: images, histograms, tables, figures, audio, video, files, alerts.

A wrapper is a value like any other: ``run.log({"samples": accelbus.Image(batch[0])}, step=step)``. What it wraps is copied before
``log`` returns. In the training process it is reduced to plain bytes and nothing more; making a PNG, a GIF or a WAV of them is left
to the process of the tracker that wants one.

In an event such a value is a msgpack extension. To add a kind: a wrapper here, its name in `KINDS`, a ``log_<kind>`` hook with a
fallback in `accelbus.tracking.GeneralTracker`.
"""

from __future__ import annotations

import io
import math
import os
import wave
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from accelbus.blobs import BlobStore, Reference, read
from accelbus.errors import CorruptDataError, MissingExtraError

EXTENSION: Final = 2
"""Extension code of a packed `Media`; never to be used for anything else."""
INLINE_BYTES: Final = 16 * 1024
"""Larger payloads are files in the run directory, so that they never delay scalars."""
KINDS: Final = ("image", "histogram", "table", "figure", "audio", "video", "html", "artifact", "alert")
Kind: TypeAlias = Literal["image", "histogram", "table", "figure", "audio", "video", "html", "artifact", "alert"]

_encode = msgspec.msgpack.Encoder(enc_hook=str, decimal_format="number").encode


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

    def save(self, directory: Path, stem: str) -> Path:
        """Write a file that programs can open, and return its path; an artifact keeps its own name.

        Args:
            directory: made if needed.
            stem: file name without suffix.
        """
        directory.mkdir(parents=True, exist_ok=True)
        if self.kind == "artifact":
            return self._save_artifact(directory)
        suffix, content = self._as_file()
        path = directory / f"{stem}.{suffix}"
        path.write_bytes(content)
        return path

    def source(self) -> Path:
        """Return where an artifact lies now: a file or directory that must not be changed."""
        if self.blob is None:
            raise CorruptDataError("artifact", f"the artifact {self.meta.get('filename')!r} has no file")
        return Path(self.directory) / self.blob.name

    def _save_artifact(self, directory: Path) -> Path:
        import shutil  # noqa: PLC0415  rarely needed

        target = directory / os.path.basename(str(self.meta["filename"]))
        if self.source().is_dir():
            shutil.copytree(self.source(), target, dirs_exist_ok=True)
        else:
            shutil.copyfile(self.source(), target)
        return target

    def _as_file(self) -> tuple[str, bytes]:
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

    def _wav(self) -> bytes:
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
    return msgspec.msgpack.Ext(EXTENSION, _encode(media))


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


class Wrapper:
    """Base of the wrappers. Making one copies nothing; ``log`` does."""

    def to_media(self, blobs: BlobStore) -> Media:
        """Return a copy of what is wrapped as it is now.

        Raises:
            ValueError, TypeError: it is not what it should be.
        """
        raise NotImplementedError


class Image(Wrapper):
    """A picture.

    Args:
        data: array or tensor of height x width, height x width x channels or channels x height x width, with 1, 3 or 4 channels;
            integers 0 to 255 or floats 0 to 1. Or a ``PIL.Image``, a matplotlib figure, or the path of a picture file.
        caption: shown below it.
    """

    def __init__(self, data: Any, caption: str | None = None) -> None:
        self._data = data
        self._caption = caption

    def to_media(self, blobs: BlobStore) -> Media:
        meta = {"caption": self._caption}
        data = self._data
        if hasattr(data, "savefig"):
            return Media("image", "png", meta, _figure_png(data))
        if isinstance(data, str | os.PathLike):
            path = Path(data)
            return Media("image", path.suffix.lstrip(".").lower() or "png", meta, path.read_bytes())
        if hasattr(data, "getbands"):
            if data.mode not in {"L", "RGB", "RGBA"}:
                data = data.convert("RGB")
            return Media("image", "rgb", {**meta, "shape": [data.height, data.width, len(data.getbands())]}, data.tobytes())
        pixels = _as_pixels(_as_array(data), dimensions=(2, 3))
        return Media("image", "rgb", {**meta, "shape": list(pixels.shape)}, pixels.tobytes())


class Histogram(Wrapper):
    """How values are distributed.

    Args:
        values: array, tensor or sequence of numbers, any shape. NaN and infinities are counted, not binned.
        bins: how many bins of equal width between the smallest and the largest.
        np_histogram: (counts, edges) instead of *values*.
    """

    def __init__(self, values: Any = None, *, bins: int = 64, np_histogram: tuple[Any, Any] | None = None) -> None:
        if (values is None) == (np_histogram is None):
            raise TypeError("expected either values or np_histogram=(counts, edges)")
        self._values = values
        self._bins = bins
        self._given = np_histogram

    def to_media(self, blobs: BlobStore) -> Media:
        if self._given is not None:
            counts, edges = ([float(number) for number in part] for part in self._given)
            if len(edges) != len(counts) + 1:
                raise ValueError(f"expected one more edge than counts, got {len(edges)} edges and {len(counts)} counts")
            return Media("histogram", "bins", {"counts": counts, "edges": edges, "non_finite": 0})
        return Media("histogram", "bins", _binned(self._values, self._bins))


class Table(Wrapper):
    """Rows under named columns.

    Args:
        columns: names; not given: those of *dataframe* or of the mappings in *data*, else numbers.
        data: rows, each a sequence or a mapping.
        dataframe: a pandas-like frame instead.
    """

    def __init__(self, columns: Sequence[Any] | None = None, data: Iterable[Any] | None = None, dataframe: Any = None) -> None:
        if (data is None) == (dataframe is None):
            raise TypeError("expected either data or dataframe")
        self._columns = columns
        self._data = data
        self._frame = dataframe

    def to_media(self, blobs: BlobStore) -> Media:
        columns = None if self._columns is None else [str(name) for name in self._columns]
        if self._frame is not None:
            columns = columns or [str(name) for name in self._frame.columns]
            rows = self._frame.values.tolist()
        else:
            rows = list(self._data or ())
            if rows and all(isinstance(row, Mapping) for row in rows):
                columns = columns or list(dict.fromkeys(str(key) for row in rows for key in row))
                rows = [[row.get(name) for name in columns] for row in rows]
        rows = [[_plain(cell) for cell in row] for row in rows]
        columns = columns or [str(number) for number in range(max(map(len, rows), default=0))]
        if any(len(row) != len(columns) for row in rows):
            raise ValueError(f"expected {len(columns)} cells in every row, got rows of {sorted({len(row) for row in rows})}")
        return Media("table", "rows", {"columns": len(columns), "rows": len(rows)}, _encode([columns, rows]))


class Figure(Wrapper):
    """A matplotlib figure (kept as picture) or a plotly figure (kept as it is).

    Args:
        figure: the figure; drawn now, which takes as long as drawing takes.
        caption: shown below it.
    """

    def __init__(self, figure: Any, caption: str | None = None) -> None:
        self._figure = figure
        self._caption = caption

    def to_media(self, blobs: BlobStore) -> Media:
        meta = {"caption": self._caption}
        figure = getattr(self._figure, "figure", self._figure)  # seaborn's and pandas' axes know their figure
        if hasattr(figure, "savefig"):
            return Media("figure", "png", meta, _figure_png(figure))
        if hasattr(self._figure, "to_json"):
            return Media("figure", "plotly", meta, str(self._figure.to_json()).encode())
        raise TypeError(f"expected a matplotlib or plotly figure, got {type(self._figure).__name__}")


class Audio(Wrapper):
    """Sound.

    Args:
        data: array or tensor of samples, or samples x channels, or channels x samples; floats -1 to 1 or 16-bit integers. Or the
            path of a sound file.
        sample_rate: samples per second.
        caption: shown below it.
    """

    def __init__(self, data: Any, sample_rate: int = 44100, caption: str | None = None) -> None:
        self._data = data
        self._rate = sample_rate
        self._caption = caption

    def to_media(self, blobs: BlobStore) -> Media:
        meta: dict[str, Any] = {"caption": self._caption, "sample_rate": int(self._rate)}
        if isinstance(self._data, str | os.PathLike):
            path = Path(self._data)
            return Media("audio", path.suffix.lstrip(".").lower() or "wav", meta, path.read_bytes())
        samples = _as_array(self._data)
        if samples.ndim == 1:
            samples = samples[:, None]
        elif samples.ndim == 2 and samples.shape[0] < samples.shape[1]:
            samples = samples.T
        if samples.ndim != 2:
            raise ValueError(f"expected samples, or samples x channels, got an array of shape {samples.shape}")
        if samples.dtype.kind == "f":
            samples = (samples.clip(-1, 1) * 32767).round()
        return Media("audio", "pcm16", {**meta, "channels": int(samples.shape[1])}, samples.astype("<i2").tobytes())


class Video(Wrapper):
    """Moving pictures.

    Args:
        data: array or tensor of time x height x width x channels or time x channels x height x width, like `Image`. Or the path of
            a video file.
        fps: frames per second.
        caption: shown below it.
    """

    def __init__(self, data: Any, fps: float = 4, caption: str | None = None) -> None:
        self._data = data
        self._fps = fps
        self._caption = caption

    def to_media(self, blobs: BlobStore) -> Media:
        meta: dict[str, Any] = {"caption": self._caption, "fps": float(self._fps)}
        if isinstance(self._data, str | os.PathLike):
            path = Path(self._data)
            return Media("video", path.suffix.lstrip(".").lower() or "mp4", meta, path.read_bytes())
        frames = _as_pixels(_as_array(self._data), dimensions=(4,))
        return Media("video", "frames", {**meta, "shape": list(frames.shape)}, frames.tobytes())


class Html(Wrapper):
    """A piece of HTML."""

    def __init__(self, html: str, caption: str | None = None) -> None:
        self._html = html
        self._caption = caption

    def to_media(self, blobs: BlobStore) -> Media:
        return Media("html", "html", {"caption": self._caption}, self._html.encode("utf-8", "backslashreplace"))


class Artifact(Wrapper):
    """A file or directory, as it is now.

    Args:
        path: small files are copied; one of more than 64 MiB is hard-linked where that is possible, which keeps it when it is
            deleted or replaced, but not when it is written to in place.
        name: what trackers call it; the file's name when not given.
        type: file, model, dataset, …
        aliases: latest, best, …
        metadata: plain values.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        type: str = "file",  # noqa: A002  the trackers' word
        aliases: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = Path(path)
        self._name = name
        self._type = type
        self._aliases = list(aliases)
        self._metadata = dict(metadata or {})

    def to_media(self, blobs: BlobStore) -> Media:
        path = self._path.absolute()
        meta = {
            "name": self._name or path.name,
            "filename": path.name,
            "type": self._type,
            "aliases": self._aliases,
            "metadata": self._metadata,
        }
        return Media("artifact", "file", meta, blob=blobs.adopt(path))


class Alert(Wrapper):
    """A message that should reach somebody.

    Args:
        title: short; several of one title at one step, from several ranks, are one.
        text: the rest.
        level: info, warning or error.
    """

    LEVELS = ("info", "warning", "error")

    def __init__(self, title: str, text: str = "", level: str = "info") -> None:
        level = {"warn": "warning"}.get(level.lower(), level.lower())
        if level not in self.LEVELS:
            raise ValueError(f"level={level!r}: expected one of {', '.join(self.LEVELS)}")
        self._title, self._text, self._level = title, text, level

    def to_media(self, blobs: BlobStore) -> Media:
        text = self._text.encode("utf-8", "backslashreplace")
        return Media("alert", "text", {"title": self._title, "level": self._level}, text)


def _as_array(data: Any) -> Any:
    """Return *data* as numpy array; tensors of any kind and device are copied to the host."""
    import numpy as np  # noqa: PLC0415  whoever has an array has numpy, and nobody else needs it

    if hasattr(data, "detach"):
        data = data.detach().cpu()
        data = (data.float() if data.is_floating_point() else data).numpy()
    return np.asarray(data)


def _as_pixels(array: Any, *, dimensions: tuple[int, ...]) -> Any:
    """Return *array* as contiguous uint8 with channels last."""
    import numpy as np  # noqa: PLC0415  see above

    if array.ndim not in dimensions:
        raise ValueError(f"expected an array of {' or '.join(map(str, dimensions))} dimensions, got shape {array.shape}")
    if array.ndim == 2:
        array = array[:, :, None]
    channels = (1, 3, 4)
    if array.shape[-1] not in channels:
        if array.shape[-3] not in channels:
            raise ValueError(f"expected 1, 3 or 4 channels, first or last, got shape {array.shape}")
        array = np.moveaxis(array, -3, -1)
    if array.dtype == bool:
        array = array * 255
    elif array.dtype.kind == "f":
        array = np.nan_to_num(array, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255 + 0.5
    return np.ascontiguousarray(array.clip(0, 255).astype(np.uint8))


def _binned(values: Any, bins: int) -> dict[str, Any]:
    import numpy as np  # noqa: PLC0415  see above

    numbers = _as_array(values).ravel().astype(float)
    finite = numbers[np.isfinite(numbers)]
    counts, edges = np.histogram(finite, bins=bins)
    return {
        "counts": counts.astype(float).tolist(), "edges": edges.tolist(), "non_finite": int(numbers.size - finite.size),
        "sum": float(finite.sum()), "sum_squares": float((finite**2).sum()),
    }  # fmt: skip


def _figure_png(figure: Any) -> bytes:
    into = io.BytesIO()
    figure.savefig(into, format="png", bbox_inches="tight")
    return into.getvalue()


def _plain(cell: Any) -> Any:
    cell = cell.item() if hasattr(cell, "item") and getattr(cell, "size", 1) == 1 else cell
    if isinstance(cell, Wrapper):
        return f"<{type(cell).__name__}>"
    return cell if isinstance(cell, int | float | bool | None) else str(cell)


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
