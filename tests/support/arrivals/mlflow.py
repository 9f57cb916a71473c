"""What lies in a run of MLflow's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mlflow.entities import Run

from accelbus.testing import Arrived
from accelbus_sinks._keys import read_keys
from tests.support import mlflow_reader as reader

ARRIVALS: Final = {
    "int": "metric",
    "int beyond 64 bits": "metric",
    "int beyond floats": "texts.json; tag",
    "float": "metric",
    "bool": "metric (1)",
    "nan": "metric",
    "inf": "metric (the largest float)",
    "Decimal": "metric",
    "numpy scalar": "metric",
    "torch scalar": "metric",
    "bf16 tensor": "metric",
    "str, log_text": "texts.json; tag",
    "Enum": "texts.json; tag",
    "Path": "texts.json; tag",
    "datetime": "texts.json; tag",
    "list": "texts.json; tag (JSON)",
    "small array": "texts.json; tag (JSON)",
    "mapping": "metric",
    "None": "nothing",
    "Image": "image (PNG)",
    "Figure, matplotlib": "figure (PNG)",
    "Figure, plotly": "figure (HTML)",
    "Histogram": "artifact (JSON)",
    "Table": "table (JSON)",
    "Audio": "artifact (WAV)",
    "Video": "artifact (GIF)",
    "Html": "artifact",
    "Artifact, file": "artifact",
    "Artifact, directory": "artifact",
    "alert": "texts.json; tag",
    "summary, number": "metric",
    "summary, text": "tag",
    "config, number": "parameter (text)",
    "config, bool": "parameter (text True)",
    "config, text": "parameter",
    "config, list": "parameter (JSON)",
    "config, None": "parameter (text None)",
    "config, nan": "parameter (text nan)",
    "config, nested": "parameter (flat, text)",
}
"""See `accelbus.testing.SinkContract.arrivals`."""

KINDS = {"figures": "figure", "histograms": "artifact", "tables": "table"}


def arrived(run: Run, state: Path) -> Iterator[Arrived]:
    """Yield everything."""
    keys = {name: key for key, name in read_keys(state / "metric-names.jsonl").items()}
    for name, value in run.data.metrics.items():
        yield Arrived(keys[name], "metric", value)
    for _, key, text, _ in reader.texts(run):
        if key.startswith("alert/"):
            yield Arrived("alert", "texts.json", f"{key}: {text}")
        else:
            yield Arrived(key, "texts.json", text)
    tags = {name: key for key, name in read_keys(state / "tag-names.jsonl").items()}
    for name, text in run.data.tags.items():
        kind, _, key = tags.get(name, name).partition("/")
        if kind in {"text", "alert", "summary"}:
            yield Arrived(
                {"text": key, "alert": "alert", "summary": f"summary/{key}"}[kind], "tag", f"{key}: {text}" if kind == "alert" else text
            )
    params = {name: key for key, name in read_keys(state / "param-names.jsonl").items()}
    for name, text in run.data.params.items():
        yield Arrived(f"config/{params[name]}", "parameter", text)
    yield from _files(run)


def _files(run: Run) -> Iterator[Arrived]:
    folders: dict[str, dict[str, bytes]] = {}
    for path in reader.artifacts(run):
        kind, _, rest = path.partition("/")
        name = rest.partition("/")[0]
        content = reader.artifact(run, path) or b""
        if kind == "images" and path.endswith(".png"):  # and a small copy
            yield Arrived(name.partition("+")[0], "image", content)
        elif kind in KINDS:
            yield Arrived(name, KINDS[kind], content)
        elif kind == "files":
            _, _, place = rest.split("/", 2)
            folders.setdefault(name, {})[place.partition("/")[2]] = content
    for name, files in folders.items():
        yield Arrived(name, "artifact", files.get("", files))
