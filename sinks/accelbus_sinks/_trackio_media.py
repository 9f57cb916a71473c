"""Media as Trackio's own data types."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import trackio

from accelbus.media import Media

_AUDIO_FORMATS: Final = frozenset({"wav", "mp3", "pcm16"})
_VIDEO_FORMATS: Final = frozenset({"gif", "mp4", "webm", "frames"})


def data_type(key: str, media: Media, directory: Path) -> Any:
    """Return Trackio's form of *media*, None if Trackio has none.

    Args:
        key: what it is logged as.
        media: other than an artifact or an alert.
        directory: for files on their way to Trackio.
    """
    caption = media.caption or None
    match media.kind:
        case "figure" if media.format == "plotly":
            return _plotly(media)
        case "image" | "figure":
            return trackio.Image(media.pil(), caption=caption)
        case "histogram":
            return trackio.Histogram(np_histogram=media.histogram())
        case "table":
            columns, rows = media.table()
            return trackio.Table(columns=columns, data=rows)
        case "html":
            return trackio.Html(media.payload().decode("utf-8", "replace"), inject=False, caption=caption)
        case "audio" if media.format in _AUDIO_FORMATS:
            return trackio.Audio(media.save(directory, safe_name(key)), caption=caption)
        case "video" if media.format in _VIDEO_FORMATS:
            return trackio.Video(media.save(directory, safe_name(key)), caption=caption)
    return None


def stored(value: Any, project: str, run: str, step: int) -> dict[str, Any]:
    """Store the files of *value*, one of Trackio's data types, and return what stands for it in a row."""
    if isinstance(value, trackio.Table):
        return dict(value._to_dict(project=project, run=run, step=step))  # noqa: SLF001  what Trackio's own log does
    if hasattr(value, "_save"):
        value._save(project, run, step)  # noqa: SLF001  the same
    return dict(value._to_dict())  # noqa: SLF001  the same


def artifact(media: Media) -> Any:
    """Return the file or directory *media* as Trackio's artifact."""
    made = trackio.Artifact(safe_name(str(media.meta["name"])), type=str(media.meta["type"]), metadata=dict(media.meta["metadata"]))
    source = media.source()
    if source.is_dir():
        made.add_dir(source)
    else:
        made.add_file(source, name=str(media.meta["filename"]))
    return made


def safe_name(key: str) -> str:
    """Return *key* as Trackio allows it for artifacts and aliases, and file systems for files."""
    return re.sub(r"[^\w.-]+", "-", key, flags=re.ASCII).strip("-.")[:100] or "unnamed"


def _plotly(media: Media) -> Any:
    try:
        from plotly import io  # noqa: PLC0415  only where it is installed can somebody have logged such a figure
    except ImportError:
        return None
    return trackio.Html(io.from_json(media.payload().decode(), skip_invalid=True), inject=False, caption=media.caption or None)


__all__ = ["artifact", "data_type", "safe_name", "stored"]
