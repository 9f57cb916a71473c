"""Media of a ClearML task: debug samples, plots, artifacts, texts of the console."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from accelbus.media import Media
from accelbus.tracking import GeneralTracker
from accelbus_sinks import _clearml_events as events, _clearml_task as tasks
from accelbus_sinks._clearml_names import Curves
from accelbus_sinks._step_text import step_text

_encode = msgspec.json.Encoder().encode


class ClearMLMedia(GeneralTracker):
    """The hooks for media; the tracker brings the task."""

    _curves: Curves
    _first_step: int
    """Added to every step."""

    def log_image(self, key: str, media: Media, step: int) -> None:
        self._sample(key, media, step)

    def log_audio(self, key: str, media: Media, step: int) -> None:
        self._sample(key, media, step)

    def log_video(self, key: str, media: Media, step: int) -> None:
        self._sample(key, media, step)

    def log_html(self, key: str, media: Media, step: int) -> None:
        self._sample(key, media, step)

    def log_figure(self, key: str, media: Media, step: int) -> None:
        if media.format == "plotly":
            self._plot(key, media, step, media.payload().decode())
        else:
            self._sample(key, media, step)

    def log_histogram(self, key: str, media: Media, step: int) -> None:
        self._plot(key, media, step, histogram_plot(media, key))

    def log_table(self, key: str, media: Media, step: int) -> None:
        self._plot(key, media, step, table_plot(*media.table(), key))

    def log_text(self, key: str, text: str, step: int) -> None:
        self._say(step_text(step, {key: text}))

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        """Upload it as ``name@step``; ``name`` is the newest."""
        name = str(media.meta["name"])
        details = {"step": step, "type": media.meta.get("type", ""), **(media.meta.get("metadata") or {})}
        if aliases := media.meta.get("aliases"):
            details["aliases"] = ", ".join(map(str, aliases))
        with tempfile.TemporaryDirectory(prefix="artifact-", dir=self.run_info.state_dir) as directory:
            uri = self._upload(f"{name}@{step}", media.save(Path(directory), "file"), details)
            self._upload(name, uri, details)
        self._keep()

    def alert(self, title: str, text: str, level: str) -> None:
        self._say(f"alert: {title}: {text}" if text else f"alert: {title}", level)

    @property
    def _is_offline(self) -> bool:
        raise NotImplementedError

    def _send(self, encoded: Sequence[bytes]) -> None:
        raise NotImplementedError

    def _opened(self) -> Any:
        raise NotImplementedError

    def _keep(self) -> None:
        raise NotImplementedError

    def _sample(self, key: str, media: Media, step: int) -> None:
        """Show *media* under the debug samples. Its file is named after the step, so that a repetition replaces it and nothing else."""
        task, curve, step = self._opened(), self._curves[key], step + self._first_step
        local = media.save(self.run_info.state_dir / "media", f"{quote(key, safe='')[:100]}-{step}")
        path = f"{_folder(task)}/metrics/{_part(curve.title)}/{_part(curve.series)}/{step:08d}{local.suffix}"
        if not self._is_offline:
            url = f"{task.get_logger().get_default_upload_destination().rstrip('/')}/{path}"
        else:
            url = str(Path(str(task.get_offline_mode_folder()), "data", path))
        tasks.upload(local, url)
        local.unlink()
        time_ms = media.time_ns // 1_000_000
        self._send([events.sample_event(task.id, curve, step, time_ms, key=path, url=url)])
        if media.caption:
            self._send([events.text_event(task.id, step_text(step, {f"{key}/caption": media.caption}), time_ms)])

    def _plot(self, key: str, media: Media, step: int, plotly: str) -> None:
        step += self._first_step
        self._send([events.plot_event(self._opened().id, self._curves[key], step, media.time_ns // 1_000_000, plotly)])

    def _say(self, text: str, level: str = "info") -> None:
        self._send([events.text_event(self._opened().id, text, events.now_ms(), level)])

    def _upload(self, name: str, content: Path | str, details: Mapping[str, Any]) -> str:
        """Upload an artifact and return its URI. *content* may be the URI of one that is there already."""
        task = self._opened()
        if not task.upload_artifact(name, content, metadata={key: str(value) for key, value in details.items()}, wait_on_upload=True):
            raise ConnectionError(f"artifact {name!r} could not be uploaded")
        return next(str(artifact.uri) for artifact in task.data.execution.artifacts if artifact.key == name)


def histogram_plot(media: Media, title: str) -> str:
    """Return bars as plotly's JSON."""
    counts, edges = media.histogram()
    pairs = list(itertools.pairwise(edges))
    bars = {"type": "bar", "x": [(low + high) / 2 for low, high in pairs], "width": [high - low for low, high in pairs], "y": counts}
    left_out = media.meta.get("non_finite")
    layout = {"title": f"{title} ({left_out} values are not finite)" if left_out else title, "bargap": 0}
    return _encode({"data": [bars], "layout": layout}).decode()


def table_plot(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str) -> str:
    """Return a table as plotly's JSON; numbers that are not finite are words in it."""
    cells = [[_cell(row[index]) for row in rows] for index in range(len(columns))]
    table = {"type": "table", "header": {"values": list(columns)}, "cells": {"values": cells}}
    return _encode({"data": [table], "layout": {"title": title}}).decode()


def _cell(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _folder(task: Any) -> str:
    """Return the task's part of every path, as ClearML's own uploads have it: `import_offline_session` replaces the id in it."""
    return f"{_part(task.get_project_name() or 'unknown')}/{_part(task.name or 'task')}.{task.id}"


def _part(name: str) -> str:
    return quote(name, safe=" ()[]")[:150]
