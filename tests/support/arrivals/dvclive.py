"""What lies in the directory of a DVCLive run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dvclive.serialize import load_yaml
from dvclive.utils import parse_tsv

from accelbus.testing import Arrived
from accelbus.testing.recognising import contents

ARRIVALS: Final = {
    "int": "metric",
    "int beyond 64 bits": "metric",
    "int beyond floats": "metric",
    "float": "metric",
    "bool": "metric (1)",
    "nan": "metric",
    "inf": "metric",
    "Decimal": "metric",
    "numpy scalar": "metric",
    "torch scalar": "metric",
    "bf16 tensor": "metric",
    "str, log_text": "metric",
    "Enum": "metric",
    "Path": "metric",
    "datetime": "metric",
    "list": "metric (JSON)",
    "small array": "metric (JSON)",
    "mapping": "metric",
    "None": "nothing",
    "Image": "image plot (PNG)",
    "Figure, matplotlib": "image plot (PNG)",
    "Figure, plotly": "file (JSON)",
    "Histogram": "plot",
    "Table": "file (CSV)",
    "Audio": "file (WAV)",
    "Video": "file (GIF)",
    "Html": "file",
    "Artifact, file": "file",
    "Artifact, directory": "file",
    "alert": "alerts.jsonl",
    "summary, number": "metrics.json",
    "summary, text": "metrics.json",
    "config, number": "params.yaml",
    "config, bool": "params.yaml",
    "config, text": "params.yaml",
    "config, list": "params.yaml",
    "config, None": "params.yaml",
    "config, nan": "params.yaml",
    "config, nested": "params.yaml",
}
"""See `accelbus.testing.SinkContract.arrivals`."""


def arrived(directory: Path) -> Iterator[Arrived]:
    """Yield everything. The specimens' keys are names that DVCLive can have."""
    metrics = directory / "plots" / "metrics"
    for path in metrics.rglob("*.tsv"):
        for row in parse_tsv(path):
            yield Arrived(path.relative_to(metrics).as_posix().removesuffix(".tsv"), "metric", _number_or_text(list(row.values())[2]))
    for path in (directory / "plots" / "images").rglob("*.png"):
        yield Arrived(path.parent.name, "image plot", path.read_bytes())
    for path in (directory / "plots" / "custom").rglob("*.json"):
        bins = json.loads(path.read_text())
        yield Arrived(path.parent.name, "plot", ([row["count"] for row in bins], [bins[0]["from"], *(row["to"] for row in bins)]))
    for path in (directory / "files").iterdir():
        yield Arrived(re.sub(r"-\d+$", "", path.stem), "file", path.read_bytes())
    for folder in (directory / "artifacts").iterdir():
        (path,) = next(folder.iterdir()).iterdir()
        yield Arrived(folder.name, "file", contents(path) if path.is_dir() else path.read_bytes())
    for line in (directory / "alerts.jsonl").read_text().splitlines():
        yield Arrived("alert", "alerts.jsonl", json.loads(line))
    for key, value in json.loads((directory / "metrics.json").read_text()).items():
        yield Arrived(f"summary/{key}", "metrics.json", value)
    for key, value in load_yaml(directory / "params.yaml").items():
        yield Arrived(f"config/{key}", "params.yaml", value)


def _number_or_text(text: str) -> float | str:
    """Tables have no types; DVC takes for a number what looks like one."""
    try:
        return float(text)
    except ValueError:
        return text
