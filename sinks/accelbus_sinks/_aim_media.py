"""Media as objects of Aim's; None where Aim has no such thing."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any, Final

import PIL.Image
from aim import Audio, Distribution, Figure, Image, Run
from aim.ext.resource.log import LogLine

from accelbus.media import Media

_SOUNDS: Final = frozenset({"wav", "mp3", "flac"})
_MOST_BINS: Final = 512


def image(media: Media) -> Image:
    """Return a picture."""
    return Image(media.pil(), caption=media.caption)


def figure(media: Media) -> Figure | None:
    """Return a figure of plotly's, where plotly is installed here."""
    try:
        import plotly.io  # noqa: PLC0415  optional
    except ImportError:
        return None
    return Figure(plotly.io.from_json(media.payload().decode(), skip_invalid=True))


def distribution(media: Media) -> Distribution | None:
    """Return a histogram, if its bins are of equal width and not too many: Aim keeps where the first begins and the last ends."""
    counts, edges = media.histogram()
    if not 1 <= len(counts) <= _MOST_BINS:
        return None
    width = (edges[-1] - edges[0]) / len(counts)
    if any(not math.isclose(edge, edges[0] + number * width, abs_tol=1e-6 * abs(width)) for number, edge in enumerate(edges)):
        return None
    return Distribution.from_histogram(counts, (edges[0], edges[-1]))


def audio(media: Media, directory: Path) -> Audio | None:
    """Return sound of a kind that Aim plays."""
    path = media.save(directory, "sound")
    suffix = path.suffix.lstrip(".")
    return Audio(path.read_bytes(), format=suffix, caption=media.caption) if suffix in _SOUNDS else None


def animation(media: Media, directory: Path) -> Image | None:
    """Return moving pictures that are, or can become, a GIF."""
    if media.format not in {"gif", "frames"}:
        return None
    content = media.save(directory, "animation").read_bytes()
    return Image(PIL.Image.open(io.BytesIO(content)), caption=media.caption)


def console_line(line: str) -> LogLine:
    """Return a line that the run printed."""
    return LogLine(line.encode("utf-8", "backslashreplace").decode())


def store_file(run: Run, media: Media, step: int) -> str:
    """Copy a file or directory to where the run keeps artifacts, and return its name there."""
    filename = os.path.basename(str(media.meta["filename"])) or "file"
    name = "/".join([*_parts(str(media.meta["name"])), f"step_{step}", filename])
    source = media.source()
    if source.is_dir():
        run.log_artifacts(str(source), name=name, block=True)
    else:
        run.log_artifact(str(source), name=name, block=True)
    return name


def _parts(name: str) -> list[Any]:
    """Return *name* as directories below the run's, whatever it contains."""
    return [part for part in name.replace("\0", "").split("/") if part not in {"", ".", ".."}] or ["unnamed"]
