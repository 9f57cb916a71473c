"""What lies in an offline run of SwanLab's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from accelbus.testing import Arrived
from accelbus_sinks._step_text import read_step_text

ARRIVALS: Final = {
    "int": "scalar",
    "int beyond 64 bits": "scalar",
    "int beyond floats": "text",
    "float": "scalar",
    "bool": "scalar (1)",
    "nan": "scalar",
    "inf": "scalar; console line",
    "Decimal": "scalar",
    "numpy scalar": "scalar",
    "torch scalar": "scalar",
    "bf16 tensor": "scalar",
    "str, log_text": "text",
    "Enum": "text",
    "Path": "text",
    "datetime": "text",
    "list": "text (JSON)",
    "small array": "text (JSON)",
    "mapping": "scalar",
    "None": "nothing",
    "Image": "image (PNG)",
    "Figure, matplotlib": "image (PNG)",
    "Figure, plotly": "file (JSON)",
    "Histogram": "chart",
    "Table": "table",
    "Audio": "audio (WAV)",
    "Video": "image (GIF)",
    "Html": "html",
    "Artifact, file": "file",
    "Artifact, directory": "file",
    "alert": "console line",
    "summary, number": "configuration",
    "summary, text": "configuration",
    "config, number": "configuration",
    "config, bool": "configuration",
    "config, text": "configuration",
    "config, list": "configuration",
    "config, None": "configuration (text None)",
    "config, nan": "configuration (text NaN)",
    "config, nested": "configuration",
}
"""See `accelbus.testing.SinkContract.arrivals`."""


def arrived(directory: Path, records: Iterable[Any], key_of: Callable[[str], str]) -> Iterator[Arrived]:
    """Yield everything.

    Args:
        directory: the run's.
        records: those of its file.
        key_of: SwanLab's name to key.
    """
    for record in records:
        if record.HasField("scalar"):
            yield Arrived(key_of(record.scalar.key), "scalar", record.scalar.value.number)
        elif record.HasField("media"):
            (item,) = record.media.value.items
            yield _media(directory / "media", item.filename, key_of(record.media.key))
        elif record.HasField("log"):
            if said := read_step_text(record.log.line):
                yield from (Arrived(key, "console line", value) for key, value in said[1].items())
            elif record.log.line.startswith("alert: "):
                yield Arrived("alert", "console line", record.log.line)
    yield from _saved(directory / "files" / "artifacts")
    config = yaml.safe_load((directory / "files" / "config.yaml").read_text())
    for key, value in config.pop("summary")["value"].items():
        yield Arrived(f"summary/{key}", "configuration", value)
    for key, entry in config.items():
        yield Arrived(f"config/{key}", "configuration", entry["value"])


def _media(directory: Path, name: str, key: str) -> Arrived:
    (path,) = directory.rglob(name)
    kind, content = path.parent.name, path.read_bytes()
    if kind == "text":
        return Arrived(key, "text", content.decode())
    if kind != "echarts":
        return Arrived(key, kind, content)
    chart = json.loads(content)
    if "series" in chart:
        starts = [float(label) for label in chart["xAxis"][0]["data"]]
        return Arrived(key, "chart", (chart["series"][0]["data"], [*starts, 2 * starts[-1] - starts[-2]]))
    columns = [column["field"] for column in chart["colDefs"]]
    return Arrived(key, "table", (columns, [[row[name] for name in columns] for row in chart["rowData"]]))


def _saved(directory: Path) -> Iterator[Arrived]:
    for named in directory.iterdir():
        (saved,) = next(named.iterdir()).iterdir()
        if saved.is_dir():
            content: Any = {path.relative_to(saved).as_posix(): path.read_bytes() for path in saved.rglob("*") if path.is_file()}
        else:
            content = saved.read_bytes()
        yield Arrived(named.name, "file", content)
