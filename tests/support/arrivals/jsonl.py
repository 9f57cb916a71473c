"""What lies in the directory of a JSONL run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from accelbus.testing import Arrived
from accelbus.testing.recognising import contents

ARRIVALS: Final = {
    "int": "value",
    "int beyond 64 bits": "value",
    "int beyond floats": "value",
    "float": "value",
    "bool": "value (1)",
    "nan": "value (text NaN)",
    "inf": "value (text Infinity)",
    "Decimal": "value",
    "numpy scalar": "value",
    "torch scalar": "value",
    "bf16 tensor": "value",
    "str, log_text": "value",
    "Enum": "value",
    "Path": "value",
    "datetime": "value",
    "list": "value",
    "small array": "value",
    "mapping": "value",
    "None": "nothing",
    "Image": "file (PNG)",
    "Figure, matplotlib": "file (PNG)",
    "Figure, plotly": "file (JSON)",
    "Histogram": "file (JSON)",
    "Table": "file (JSON)",
    "Audio": "file (WAV)",
    "Video": "file (GIF)",
    "Html": "file",
    "Artifact, file": "file",
    "Artifact, directory": "file",
    "alert": "alerts.jsonl",
    "summary, number": "summary.json",
    "summary, text": "summary.json",
    "config, number": "config.json",
    "config, bool": "config.json",
    "config, text": "config.json",
    "config, list": "config.json",
    "config, None": "config.json",
    "config, nan": "config.json (text NaN)",
    "config, nested": "config.json",
}
"""See `accelbus.testing.SinkContract.arrivals`."""


def arrived(logging_dir: Path) -> Iterator[Arrived]:
    """Yield everything."""
    for line in map(json.loads, (logging_dir / "metrics.jsonl").read_text().splitlines()):
        yield from (Arrived(key, "value", value) for key, value in line["values"].items())
        for key, said in line.get("media", {}).items():
            file = logging_dir / said["file"]
            yield Arrived(key, "file", contents(file) if file.is_dir() else file.read_bytes())
    for line in (logging_dir / "alerts.jsonl").read_text().splitlines():
        yield Arrived("alert", "alerts.jsonl", json.loads(line))
    for name in ("config", "summary"):
        for key, value in json.loads((logging_dir / f"{name}.json").read_text()).items():
            yield Arrived(f"{name}/{key}", f"{name}.json", value)
