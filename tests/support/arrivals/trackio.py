"""What lies in Trackio's database and directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from trackio.cas import blob_path
from trackio.sqlite_storage import SQLiteStorage

from accelbus.testing import Arrived
from tests.support import trackio_reader as reader

ARRIVALS: Final = {
    "int": "log",
    "int beyond 64 bits": "log",
    "int beyond floats": "log",
    "float": "log",
    "bool": "log (1)",
    "nan": "log",
    "inf": "log",
    "Decimal": "log",
    "numpy scalar": "log",
    "torch scalar": "log",
    "bf16 tensor": "log",
    "str, log_text": "log",
    "Enum": "log",
    "Path": "log",
    "datetime": "log",
    "list": "log",
    "small array": "log",
    "mapping": "log",
    "None": "nothing",
    "Image": "trackio.Image (PNG)",
    "Figure, matplotlib": "trackio.Image (PNG)",
    "Figure, plotly": "trackio.Html (HTML)",
    "Histogram": "trackio.Histogram",
    "Table": "trackio.Table",
    "Audio": "trackio.Audio (WAV)",
    "Video": "trackio.Video (GIF)",
    "Html": "trackio.Html",
    "Artifact, file": "artifact",
    "Artifact, directory": "artifact",
    "alert": "alert",
    "summary, number": "config",
    "summary, text": "config",
    "config, number": "config",
    "config, bool": "config",
    "config, text": "config",
    "config, list": "config (JSON)",
    "config, None": "config",
    "config, nan": "config",
    "config, nested": "config (flat)",
}
"""See `accelbus.testing.SinkContract.arrivals`."""


def arrived(project: str, run_id: str, keys: Path) -> Iterator[Arrived]:
    """Yield everything."""
    for _, key, value, _ in reader.points(project, run_id, keys):
        if isinstance(value, dict):
            kind = value["_type"].removeprefix("trackio.")
            yield Arrived(key, f"trackio.{kind.capitalize()}", _content(value, kind))
        else:
            yield Arrived(key, "log", value)
    for name in ("artifact_file", "artifact_directory"):
        manifest = SQLiteStorage.get_artifact_manifest(project, name, None)["manifest"]
        files = {entry["path"]: blob_path(project, entry["digest"]).read_bytes() for entry in manifest}
        yield Arrived(name, "artifact", files if len(files) > 1 else next(iter(files.values())))
    for alert in SQLiteStorage.get_alerts(project):
        if alert["run"] == run_id:
            yield Arrived("alert", "alert", f"{alert['title']}: {alert['text']}")
    for key, value in reader.config(project, run_id).items():
        yield Arrived(key if key.startswith("summary/") else f"config/{key}", "config", value)


def _content(value: dict[str, Any], kind: str) -> Any:
    readers: dict[str, Callable[[], Any]] = {
        "histogram": lambda: (value["values"], value["bins"]),
        "table": lambda: (list(value["_value"][0]), [list(row.values()) for row in value["_value"]]),
    }
    return readers[kind]() if kind in readers else (reader.DIRECTORY / "media" / value["file_path"]).read_bytes()
