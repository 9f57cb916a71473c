"""Media of a SwanLab run."""

from __future__ import annotations

import glob
import io
import json
import math
import time
from pathlib import Path
from typing import Any

from accelbus.media import Media
from accelbus.tracking import GeneralTracker


class SwanLabMedia(GeneralTracker):
    """The hooks for media; the tracker brings the run."""

    def log_image(self, key: str, media: Media, step: int) -> None:
        import swanlab  # noqa: PLC0415  only the worker imports trackers

        picture = media.pil()
        picture = picture.convert("RGBA") if picture.format == "GIF" else picture
        self._show(key, "image", media, step, swanlab.Image(picture, caption=media.caption or None))

    def log_figure(self, key: str, media: Media, step: int) -> None:
        if media.format == "plotly":
            self._log_as_file(key, media, step)
        else:
            self.log_image(key, media, step)

    def log_text(self, key: str, text: str, step: int) -> None:
        import swanlab  # noqa: PLC0415  only the worker imports trackers

        self._store_media(key, "text", step, swanlab.Text(text), time.time_ns())

    def log_html(self, key: str, media: Media, step: int) -> None:
        import swanlab  # noqa: PLC0415  only the worker imports trackers

        self._show(key, "html", media, step, swanlab.Html(media.payload().decode(), caption=media.caption or None))

    def log_audio(self, key: str, media: Media, step: int) -> None:
        if media.format not in {"pcm16", "wav"}:
            self._log_as_file(key, media, step)
            return
        self._show(key, "audio", media, step, _sound(self._saved(key, media, step).read_bytes(), media.caption))

    def log_video(self, key: str, media: Media, step: int) -> None:
        import swanlab  # noqa: PLC0415  only the worker imports trackers

        if media.format not in {"frames", "gif"}:
            self._log_as_file(key, media, step)
            return
        self._show(key, "image", media, step, swanlab.Video(self._saved(key, media, step).read_bytes(), caption=media.caption or None))

    def log_histogram(self, key: str, media: Media, step: int) -> None:
        import swanlab  # noqa: PLC0415  only the worker imports trackers

        self._show(key, "chart", media, step, swanlab.ECharts(_Bars(media)))

    def log_table(self, key: str, media: Media, step: int) -> None:
        import swanlab  # noqa: PLC0415  only the worker imports trackers

        columns, rows = media.table()
        table = swanlab.echarts.Table()
        table.add(columns, [[_cell(cell) for cell in row] for row in rows])
        self._show(key, "chart", media, step, swanlab.ECharts(table))

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        """Save it among the run's files, as ``artifacts/<name>/<step>/<its own name>``."""
        self._opened()
        root = self.run_info.output_dir / "saved"
        path = media.save(root / "artifacts" / _file_name(str(media.meta["name"])) / str(step), "file")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                self._save(file, root)

    def alert(self, title: str, text: str, level: str) -> None:
        line = f"alert: {title}: {text}" if text else f"alert: {title}"
        self._opened().store_lines([line], time.time_ns(), is_error=level == "error")

    def _save(self, path: Path, root: Path) -> None:
        """Make *path*, below *root*, one of the run's files. It must stay where it is until it is uploaded."""
        self._run_object().save(glob.escape(str(path)), base_path=str(root), policy="now")
        self._opened().settle()

    def _saved(self, key: str, media: Media, step: int) -> Path:
        return media.save(self.run_info.state_dir / "media", f"{_file_name(key)}-{step}")

    def _show(self, key: str, kind: str, media: Media, step: int, value: Any) -> None:
        """Store *value*; what SwanLab does not take, for its size or step, is saved as a file."""
        if not self._store_media(key, kind, step, value, media.time_ns):
            self._log_as_file(key, media, step)

    def _opened(self) -> Any:
        raise NotImplementedError

    def _run_object(self) -> Any:
        raise NotImplementedError

    def _store_media(self, key: str, kind: str, step: int, value: Any, time_ns: int) -> bool:
        raise NotImplementedError


class _Bars:
    """A histogram as ECharts has it; SwanLab asks a chart for nothing but ``dump_options``."""

    def __init__(self, media: Media) -> None:
        self._counts, edges = media.histogram()
        self._labels = [f"{low:.4g}" for low in edges[:-1]]

    def dump_options(self) -> str:
        options = {
            "xAxis": [{"type": "category", "data": self._labels}],
            "yAxis": [{"type": "value"}],
            "series": [{"type": "bar", "data": self._counts, "barCategoryGap": "0%"}],
            "tooltip": {"trigger": "axis"},
        }
        return json.dumps(options)


def _sound(wav: bytes, caption: str) -> Any:
    """Return a ``swanlab.Audio`` of a WAV file. Its constructor would need the package soundfile to write one."""
    import swanlab  # noqa: PLC0415  only the worker imports trackers

    sound: Any = swanlab.Audio.__new__(swanlab.Audio)
    sound.buffer, sound.sample_rate, sound.caption = io.BytesIO(wav), 0, caption
    return sound


def _cell(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _file_name(text: str) -> str:
    return "".join(character if character.isalnum() or character in "-_.@ " else "_" for character in text).strip(". ")[:100] or "unnamed"
