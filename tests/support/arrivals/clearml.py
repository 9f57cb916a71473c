"""What lies in an offline session of ClearML's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

from accelbus.testing import Arrived
from accelbus_sinks._clearml_names import Curves
from accelbus_sinks._step_text import read_step_text

ARRIVALS: Final = {
    "int": "scalar",
    "int beyond 64 bits": "scalar",
    "int beyond floats": "console line",
    "float": "scalar",
    "bool": "scalar (1)",
    "nan": "console line",
    "inf": "console line",
    "Decimal": "scalar",
    "numpy scalar": "scalar",
    "torch scalar": "scalar",
    "bf16 tensor": "scalar",
    "str, log_text": "console line",
    "Enum": "console line",
    "Path": "console line",
    "datetime": "console line",
    "list": "console line",
    "small array": "console line",
    "mapping": "scalar",
    "None": "nothing",
    "Image": "debug sample (PNG)",
    "Figure, matplotlib": "debug sample (PNG)",
    "Figure, plotly": "plot (JSON)",
    "Histogram": "plot",
    "Table": "plot",
    "Audio": "debug sample (WAV)",
    "Video": "debug sample (GIF)",
    "Html": "debug sample",
    "Artifact, file": "artifact",
    "Artifact, directory": "artifact",
    "alert": "console line",
    "summary, number": "single value",
    "summary, text": "user property",
    "config, number": "hyperparameter (text); configuration object",
    "config, bool": "hyperparameter (text True); configuration object",
    "config, text": "hyperparameter; configuration object",
    "config, list": "hyperparameter (JSON); configuration object",
    "config, None": "hyperparameter (empty text); configuration object",
    "config, nan": "hyperparameter (text nan); configuration object (text NaN)",
    "config, nested": "hyperparameter (flat, text); configuration object",
}
"""See `accelbus.testing.SinkContract.arrivals`."""


def arrived(folder: Path, events: Iterable[Mapping[str, Any]], curves: Curves) -> Iterator[Arrived]:
    """Yield everything.

    Args:
        folder: the session's.
        events: those of its file.
        curves: (title, series) to key.
    """
    for event in events:
        match event["type"]:
            case "training_stats_scalar" if event["metric"] == "Summary":
                yield Arrived(f"summary/{event['variant']}", "single value", event["value"])
            case "training_stats_scalar":
                yield Arrived(curves.key(event["metric"], event["variant"]), "scalar", event["value"])
            case "training_debug_image":
                yield Arrived(curves.key(event["metric"], event["variant"]), "debug sample", (folder / "data" / event["key"]).read_bytes())
            case "plot":
                yield Arrived(curves.key(event["metric"], event["variant"]), "plot", _plotted(json.loads(event["plot_str"])))
            case "log" if said := read_step_text(event["msg"]):
                yield from (Arrived(key, "console line", value) for key, value in said[1].items())
            case "log" if event["msg"].startswith("alert: "):
                yield Arrived("alert", "console line", event["msg"])
    task = json.loads((folder / "task.json").read_text())
    for artifact in task["execution"]["artifacts"]:
        if "@" not in artifact["key"]:
            yield Arrived(artifact["key"], "artifact", _files(Path(artifact["uri"])))
    for key, item in task["hyperparams"].get("properties", {}).items():
        yield Arrived(f"summary/{key}", "user property", item["value"])
    for key, item in task["hyperparams"]["General"].items():
        yield Arrived(f"config/{key}", "hyperparameter", item["value"])
    for key, value in json.loads(task["configuration"]["General"]["value"]).items():
        yield Arrived(f"config/{key}", "configuration object", value)


def _plotted(plot: dict[str, Any]) -> Any:
    (trace,) = plot["data"]
    if trace["type"] == "table":
        return trace["header"]["values"], [list(row) for row in zip(*trace["cells"]["values"], strict=True)]
    if trace["type"] == "bar":
        edges = [middle - width / 2 for middle, width in zip(trace["x"], trace["width"], strict=True)]
        return trace["y"], [*edges, trace["x"][-1] + trace["width"][-1] / 2]
    return json.dumps(plot)


def _files(path: Path) -> Any:
    if path.suffix != ".zip":
        return path.read_bytes()
    with ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
