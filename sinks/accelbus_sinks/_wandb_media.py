"""Media as W&B's own data types. W&B moves their files when they are logged, so each is made anew for each time it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import wandb

from accelbus.media import Media

_VIDEO_FORMATS: Final = frozenset({"gif", "mp4", "webm", "ogg"})


def maker(key: str, media: Media, directory: Path) -> Callable[[], Any] | None:
    """Return what makes W&B's form of *media*, None if W&B has none.

    Args:
        key: what it is logged as.
        media: other than an artifact or an alert.
        directory: for files on their way to W&B.
    """
    makers: dict[str, Callable[[], Any]] = {
        "image": lambda: wandb.Image(media.pil(), caption=media.caption or None),
        "figure": lambda: wandb.Image(media.pil(), caption=media.caption or None),
        "histogram": lambda: wandb.Histogram(np_histogram=media.histogram()),
        "table": lambda: _table(media),
        "html": lambda: wandb.Html(media.payload().decode("utf-8", "replace"), inject=False, data_is_not_path=True),
        "audio": lambda: wandb.Audio(str(media.save(directory, safe_name(key))), caption=media.caption or None),
        "video": lambda: wandb.Video(str(media.save(directory, safe_name(key))), caption=media.caption or None),
    }
    if media.kind == "video" and media.format not in _VIDEO_FORMATS | {"frames"}:
        return None
    if media.kind == "figure" and media.format == "plotly":
        return _plotly_maker(media)
    return makers.get(media.kind)


def artifact(media: Media) -> Any:
    """Return the file or directory *media* as W&B's artifact; its files are copied to W&B's staging area."""
    made = wandb.Artifact(safe_name(str(media.meta["name"])), type=str(media.meta["type"]), metadata=dict(media.meta["metadata"]))
    source = media.source()
    if source.is_dir():
        made.add_dir(str(source))
    else:
        made.add_file(str(source), name=str(media.meta["filename"]))
    return made


def safe_name(key: str) -> str:
    """Return *key* as W&B allows it for artifacts, and file systems for files."""
    return re.sub(r"[^\w.-]+", "-", key, flags=re.ASCII).strip("-.")[:100] or "unnamed"


def _table(media: Media) -> Any:
    columns, rows = media.table()
    return wandb.Table(columns=columns, data=rows, allow_mixed_types=True)


def _plotly_maker(media: Media) -> Callable[[], Any] | None:
    try:
        from plotly import io  # noqa: PLC0415  only where it is installed can somebody have logged such a figure
    except ImportError:
        return None
    return lambda: wandb.Plotly(io.from_json(media.payload().decode(), skip_invalid=True))


__all__ = ["artifact", "maker", "safe_name"]
