r"""JSON lines: a tracker that needs no package and no account.

``metrics.jsonl`` has one line per row, in the order of delivery::

    {"step":20,"time":1767139200.25,"attempt":0,"values":{"loss":0.25,"lr":0.001}}

A key may come in several lines of one step; the last one counts, and so does the highest attempt. Every line is valid JSON, which
has no NaN: a number that is not finite is written as ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``, and the line names its key::

    {"step":21,"time":1767139200.50,"attempt":0,"values":{"loss":"NaN","note":"NaN"},"non_finite":["loss"]}

so that it differs from null and from text. ``float()`` understands all three. Media are files below ``files``, with a line that says
where::

    {"step":21,"time":1767139200.75,"attempt":0,"values":{},"media":{"samples":{"kind":"image","file":"files/samples-21.png"}}}

Beside it lie, as far as there is something to say, ``config.json`` (the hyperparameters as they are, nested; non-finite numbers as
the same texts), ``summary.json``, ``definitions.json``, ``run_record.json``, ``alerts.jsonl``, ``console.log``, and ``status.json``:
how the run ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelbus.media import Media
from accelbus.tracking import GeneralTracker, Row
from accelbus.values.json_lines import json_line, spelled_out
from accelbus_sinks._append_file import AppendFile, cut_back, set_aside
from accelbus_sinks._output import relied_on
from accelbus_sinks._side_files import SideFiles, about


class JSONLTracker(GeneralTracker):
    """Write rows to ``<logging_dir>/metrics.jsonl``, exactly once, each durable after ``flush``.

    Args:
        run_name: unused; the directory is the run's own.
        logging_dir: made when missing.
    """

    name = "jsonl"
    requires_logging_directory = True
    log_keywords = ()

    def __init__(self, run_name: str, logging_dir: str | Path) -> None:
        super().__init__()
        self._directory = Path(logging_dir)
        self._path = self._directory / "metrics.jsonl"
        self._file: AppendFile | None = None
        self._side: SideFiles | None = None
        self._offset = 0
        self._step = 0
        self._attempt = 0

    @property
    def tracker(self) -> Path:
        """The file."""
        return self._path

    @property
    def url(self) -> str:
        return str(self._path)

    def restore(self, checkpoint: dict[str, Any]) -> None:
        if "offset" in checkpoint:
            cut_back(self._path, checkpoint["offset"])
        elif self._path.exists():
            set_aside(self._path, "metrics.superseded.jsonl")
        self._side = SideFiles(self._directory, self.run_info)
        self._side.restore(checkpoint.get("side", {}))

    def start(self) -> None:
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / "status.json").unlink(missing_ok=True)
            self._file = AppendFile(self._path)
            self._offset = self._file.length

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._beside().document("config", values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(self._step if step is None else step, values, time.time_ns())])

    def log_batch(self, rows: Sequence[Row]) -> None:
        file = self._opened()
        file.make_room()
        file.append(b"".join([_line(row) for row in rows if row.values]))
        if rows:
            self._step, self._attempt = rows[-1].step, rows[-1].attempt

    def _log_file(self, key: str, media: Media, step: int) -> None:
        """Write a file, and a line that says where it is."""
        file = self._opened()
        said = about(media, self._beside().media(key, media, step))
        line = {"step": step, "time": media.time_ns / 1e9, "attempt": self._attempt, "values": {}, "media": {key: said}}
        file.make_room()
        file.append(json.dumps(spelled_out(line), separators=(",", ":"), default=str).encode() + b"\n")

    log_image = log_figure = log_histogram = log_table = log_audio = log_video = log_html = log_artifact = _log_file

    def alert(self, title: str, text: str, level: str) -> None:
        self._beside().alert(title, text, level, self._step)

    def summarise(self, values: Mapping[str, Any]) -> None:
        self._beside().summary(values)

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        self._beside().define(pattern, axis=axis, summary=summary, goal=goal)

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        self._beside().run_record(facts)

    def log_console(self, lines: Sequence[str]) -> None:
        self._beside().console(lines)

    def flush(self) -> None:
        file = self._opened()
        self._beside().flush()
        file.flush()
        self._offset = file.length

    def checkpoint(self) -> dict[str, Any]:
        side = self._side.checkpoint() if self._side else {}
        files = relied_on(self._directory, {self._path.name: self._offset, **side}, self.run_info)
        return {"offset": self._offset, "side": side, "files": files}

    def finish(self, status: str | None = None) -> None:
        self.flush()
        self._beside().document("status", {"status": status or "finished", "time": time.time()})
        self._beside().close()
        self._opened().close()
        self._file = None

    def _opened(self) -> AppendFile:
        if self._file is None:
            raise RuntimeError(f"{self._path} is not open; call start() first")
        return self._file

    def _beside(self) -> SideFiles:
        self._opened()
        if self._side is None:
            self._side = SideFiles(self._directory, self.run_info)
        return self._side


def _line(row: Row) -> bytes:
    return json_line({"step": row.step, "time": row.time_ns / 1e9, "attempt": row.attempt, "values": row.values})
