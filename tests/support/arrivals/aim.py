"""What lies in a repository of Aim's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from aim import Run

from accelbus.testing import Arrived
from tests.support import aim_reader as reader

ARRIVALS: Final = {
    "int": "metric",
    "int beyond 64 bits": "metric",
    "int beyond floats": "Text",
    "float": "metric",
    "bool": "metric (1)",
    "nan": "metric",
    "inf": "metric",
    "Decimal": "metric",
    "numpy scalar": "metric",
    "torch scalar": "metric",
    "bf16 tensor": "metric",
    "str, log_text": "Text",
    "Enum": "Text",
    "Path": "Text",
    "datetime": "Text",
    "list": "Text (JSON)",
    "small array": "Text (JSON)",
    "mapping": "metric",
    "None": "nothing",
    "Image": "Image (PNG)",
    "Figure, matplotlib": "Image (PNG)",
    "Figure, plotly": "Figure (JSON)",
    "Histogram": "Distribution",
    "Table": "Text (Markdown)",
    "Audio": "Audio (WAV)",
    "Video": "Image (GIF)",
    "Html": "artifact",
    "Artifact, file": "artifact",
    "Artifact, directory": "artifact",
    "alert": "log record",
    "summary, number": "parameter",
    "summary, text": "parameter",
    "config, number": "parameter",
    "config, bool": "parameter",
    "config, text": "parameter",
    "config, list": "parameter",
    "config, None": "parameter",
    "config, nan": "parameter",
    "config, nested": "parameter",
}
"""See `accelbus.testing.SinkContract.arrivals`."""

PLACES = {"metric": "metric", "texts": "Text", "images": "Image", "audios": "Audio", "distributions": "Distribution", "figures": "Figure"}


def arrived(run: Run, keys: dict[tuple[str, str], str], artifacts: Path) -> Iterator[Arrived]:
    """Yield everything.

    Args:
        run: Aim's.
        keys: {(kind, name): key}.
        artifacts: where Aim keeps files.
    """
    by_name = {name: key for (_, name), key in keys.items()}
    for kind, name, _, items in reader.sequences(run):
        for _, value, _ in items:
            yield Arrived(by_name.get(name, name), PLACES[kind], _content(kind, value))
    for name, said in run.get("files", {}).items():
        place = artifacts / run.hash / said["path"]
        yield Arrived(name, "artifact", _files(place))
    for key in run.artifacts:
        if (name := key.partition("/")[0]) not in run.get("files", {}):
            yield Arrived(name, "artifact", (artifacts / run.hash / key).read_bytes())
    for _, (record, *_) in run.get_log_records().data.items():
        yield Arrived("alert", "log record", record.message)
    for section, parameters in (("summary", run["summary"]), ("config", run["hparams"])):
        for key, value in parameters.items():
            yield Arrived(f"{section}/{key}", "parameter", value)


def _content(kind: str, value: Any) -> Any:
    if kind == "distributions":
        counts, (low, high) = value.weights.tolist(), value.range
        return counts, [low + number * (high - low) / len(counts) for number in range(len(counts) + 1)]
    return value if kind == "metric" else bytes(value.storage["data"].load()) if kind in {"images", "audios"} else value.data


def _files(path: Path) -> Any:
    if path.is_file():
        return path.read_bytes()
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}
