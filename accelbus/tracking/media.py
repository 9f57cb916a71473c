"""Hooks of a tracker for media, each with a fallback: nothing a user logs is an error because a tracker has no such kind.

A tracker overrides the kinds it has. What it has not falls back: a figure to an image, a table to Markdown text, everything with a
file form to an artifact, an artifact to a copy below the run's output directory.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from accelbus.media import TIME, Media

if TYPE_CHECKING:
    from accelbus.tracking.base import RunInfo

_log = logging.getLogger(__name__)


class MediaHooks:
    """Mixed into `GeneralTracker`. All of them may block and raise, like ``log``."""

    run_info: RunInfo

    def log_media(self, key: str, media: Media, step: int) -> None:
        """Hand *media* to the hook of its kind."""
        if media.kind == "alert":
            self.alert(str(media.meta["title"]), media.payload().decode("utf-8", "replace"), str(media.meta["level"]))
        else:
            getattr(self, f"log_{media.kind}")(key, media, step)

    def log_image(self, key: str, media: Media, step: int) -> None:
        """Record an image: ``media.png()``, ``media.pil()``, ``media.array()`` (height x width x channels, uint8)."""
        images = getattr(self, "log_images", None)  # of trackers written for Accelerate
        if callable(images):
            images({key: [media.array()]}, step=step)
        else:
            self._log_as_file(key, media, step)

    def log_figure(self, key: str, media: Media, step: int) -> None:
        """Record a figure: a PNG of matplotlib's, the JSON of plotly's."""
        if media.format == "plotly":
            self._log_as_file(key, media, step)
        else:
            self.log_image(key, media, step)

    def log_histogram(self, key: str, media: Media, step: int) -> None:
        """Record a histogram: ``media.histogram()`` gives (counts, edges)."""
        self._log_as_file(key, media, step)

    def log_table(self, key: str, media: Media, step: int) -> None:
        """Record a table: ``media.table()`` gives (columns, rows)."""
        self.log_text(key, media.markdown(), step)

    def log_text(self, key: str, text: str, step: int) -> None:
        """Record longer text that came as media; plain text values come with the other values of their row."""
        self.log({key: text}, step=step)  # type: ignore[attr-defined]  # of GeneralTracker

    def log_audio(self, key: str, media: Media, step: int) -> None:
        """Record sound: ``media.audio()`` gives (16-bit samples, rate, channels) unless ``media.format`` names a file format."""
        self._log_as_file(key, media, step)

    def log_video(self, key: str, media: Media, step: int) -> None:
        """Record moving pictures: ``media.save`` gives a file."""
        self._log_as_file(key, media, step)

    def log_html(self, key: str, media: Media, step: int) -> None:
        """Record HTML."""
        self._log_as_file(key, media, step)

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        """Record a file or directory: ``media.source()``, and name, type, aliases and metadata in ``media.meta``."""
        media.save(self.run_info.output_dir / "files" / _file_name(str(media.meta["name"])), key)

    def alert(self, title: str, text: str, level: str) -> None:
        """Tell somebody. *level* is info, warning or error."""
        _log.warning("alert (%s): %s %s", level, title, text)

    def _log_as_file(self, key: str, media: Media, step: int) -> None:
        """Record *media* as an artifact: a file in the format of its kind."""
        path = media.save(self.run_info.state_dir / "media", f"{_file_name(key)}-{step}")
        self.log_artifact(key, _as_artifact(key, media, path), step)


def _as_artifact(key: str, media: Media, path: Any) -> Media:
    from accelbus.blobs import Reference  # noqa: PLC0415  rarely needed

    meta = {
        "name": key, "filename": path.name, "type": media.kind, "aliases": [], "metadata": {"caption": media.caption}, TIME: media.time_ns,
    }  # fmt: skip
    return Media("artifact", "file", meta, blob=Reference(path.name, path.stat().st_size), directory=str(path.parent))


def _file_name(key: str) -> str:
    """Return *key* as a file name; different keys may share one, so put something else beside it."""
    return re.sub(r"[^\w.-]+", "_", key).strip("._")[:100] or "unnamed"
