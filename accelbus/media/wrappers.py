"""What users wrap: `Image`, `Histogram`, `Table`, `Figure`, `Audio`, `Video`, `Html`, `Artifact`, `Alert`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelbus.blobs import BlobStore
from accelbus.media.arrays import as_array, as_pixels, binned, figure_png
from accelbus.media.value import Media, encode


class Wrapper:
    """Base of the wrappers. Making one copies nothing, and checks nothing; ``log`` does both, and never raises in training."""

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
        meta = {"caption": _caption(self._caption)}
        data = self._data
        if hasattr(data, "savefig"):
            return Media("image", "png", meta, figure_png(data))
        if isinstance(data, str | os.PathLike):
            path = Path(data)
            return Media("image", path.suffix.lstrip(".").lower() or "png", meta, path.read_bytes())
        if hasattr(data, "getbands"):
            if data.mode not in {"L", "RGB", "RGBA"}:
                data = data.convert("RGB")
            return Media("image", "rgb", {**meta, "shape": [data.height, data.width, len(data.getbands())]}, data.tobytes())
        pixels = as_pixels(as_array(data), dimensions=(2, 3))
        return Media("image", "rgb", {**meta, "shape": list(pixels.shape)}, pixels.tobytes())


class Histogram(Wrapper):
    """How values are distributed.

    Args:
        values: array, tensor or sequence of numbers, any shape. NaN and infinities are counted, not binned.
        bins: how many bins of equal width between the smallest and the largest.
        np_histogram: (counts, edges) instead of *values*.
    """

    def __init__(self, values: Any = None, *, bins: int = 64, np_histogram: tuple[Any, Any] | None = None) -> None:
        self._values = values
        self._bins = bins
        self._given = np_histogram

    def to_media(self, blobs: BlobStore) -> Media:
        if (self._values is None) == (self._given is None):
            raise TypeError("expected either values or np_histogram=(counts, edges)")
        if self._given is not None:
            counts, edges = ([float(number) for number in part] for part in self._given)
            if len(edges) != len(counts) + 1:
                raise ValueError(f"expected one more edge than counts, got {len(edges)} edges and {len(counts)} counts")
            return Media("histogram", "bins", {"counts": counts, "edges": edges, "non_finite": 0})
        return Media("histogram", "bins", binned(self._values, self._bins))


class Table(Wrapper):
    """Rows under named columns.

    Args:
        columns: names; not given: those of *dataframe* or of the mappings in *data*, else numbers.
        data: rows, each a sequence or a mapping.
        dataframe: a pandas-like frame instead.
    """

    def __init__(self, columns: Sequence[Any] | None = None, data: Iterable[Any] | None = None, dataframe: Any = None) -> None:
        self._columns = columns
        self._data = data
        self._frame = dataframe

    def to_media(self, blobs: BlobStore) -> Media:
        if (self._data is None) == (self._frame is None):
            raise TypeError("expected either data or dataframe")
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
        return Media("table", "rows", {"columns": len(columns), "rows": len(rows)}, encode([columns, rows]))


class Figure(Wrapper):
    """A matplotlib figure (kept as picture) or a plotly figure (kept as it is).

    Args:
        figure: the figure; drawn now, which takes as long as drawing takes.
        caption: shown below it.
        place: path that it has to have in trackers whose files have paths, such as MLflow.
    """

    def __init__(self, figure: Any, caption: str | None = None, *, place: str | None = None) -> None:
        self._figure = figure
        self._caption = caption
        self._place = place

    def to_media(self, blobs: BlobStore) -> Media:
        meta: dict[str, Any] = {"caption": _caption(self._caption)}
        if self._place:
            meta["place"] = _text(self._place)
        figure = getattr(self._figure, "figure", self._figure)  # seaborn's and pandas' axes know their figure
        if hasattr(figure, "savefig"):
            return Media("figure", "png", meta, figure_png(figure))
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
        meta: dict[str, Any] = {"caption": _caption(self._caption), "sample_rate": int(self._rate)}
        if isinstance(self._data, str | os.PathLike):
            path = Path(self._data)
            return Media("audio", path.suffix.lstrip(".").lower() or "wav", meta, path.read_bytes())
        samples = as_array(self._data)
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
        meta: dict[str, Any] = {"caption": _caption(self._caption), "fps": float(self._fps)}
        if isinstance(self._data, str | os.PathLike):
            path = Path(self._data)
            return Media("video", path.suffix.lstrip(".").lower() or "mp4", meta, path.read_bytes())
        frames = as_pixels(as_array(self._data), dimensions=(4,))
        return Media("video", "frames", {**meta, "shape": list(frames.shape)}, frames.tobytes())


class Html(Wrapper):
    """A piece of HTML."""

    def __init__(self, html: str, caption: str | None = None) -> None:
        self._html = html
        self._caption = caption

    def to_media(self, blobs: BlobStore) -> Media:
        return Media("html", "html", {"caption": _caption(self._caption)}, _text(self._html).encode())


class Artifact(Wrapper):
    """A file or directory, as it is now.

    Args:
        path: small files are copied; one of more than 64 MiB is hard-linked where that is possible, which keeps it when it is
            deleted or replaced, but not when it is written to in place.
        name: what trackers call it; the file's name when not given.
        type: file, model, dataset, …
        aliases: latest, best, …; one or several.
        metadata: plain values.
        place: path that it has to have in trackers whose files have paths, such as MLflow; of a directory, that of what is in it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        type: str = "file",  # noqa: A002  the trackers' word
        aliases: str | Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        *,
        place: str | None = None,
    ) -> None:
        self._place = place
        self._path = path
        self._name = name
        self._type = type
        self._aliases = aliases
        self._metadata = metadata

    def to_media(self, blobs: BlobStore) -> Media:
        path = Path(self._path).absolute()
        aliases = [self._aliases] if isinstance(self._aliases, str) else self._aliases
        meta = {
            "name": _text(self._name or path.name),
            "filename": _text(path.name),
            "type": _text(self._type),
            "aliases": [_text(alias) for alias in aliases],
            "metadata": dict(self._metadata or {}),
        }
        if self._place:
            meta["place"] = _text(self._place)
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
        self._title, self._text, self._level = title, text, level

    def to_media(self, blobs: BlobStore) -> Media:
        level = str(self._level).lower()
        level = {"warn": "warning"}.get(level, level)
        if level not in self.LEVELS:
            raise ValueError(f"level={self._level!r}: expected one of {', '.join(self.LEVELS)}")
        return Media("alert", "text", {"title": _text(self._title), "level": level}, _text(self._text).encode())


def _caption(value: object) -> str | None:
    return None if value is None else _text(value)


def _text(value: object) -> str:
    """Return *value* as text that can be encoded."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _plain(cell: Any) -> Any:
    cell = cell.item() if hasattr(cell, "item") and getattr(cell, "size", 1) == 1 else cell
    if isinstance(cell, Wrapper):
        return f"<{type(cell).__name__}>"
    return cell if isinstance(cell, int | float | bool | None) else str(cell)
