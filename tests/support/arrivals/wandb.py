"""What lies in an offline run of W&B's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from accelbus.testing import Arrived
from tests.support import wandb_reader as reader

ARRIVALS: Final = {
    "int": "history",
    "int beyond 64 bits": "history",
    "int beyond floats": "history",
    "float": "history",
    "bool": "history (1)",
    "nan": "history",
    "inf": "history",
    "Decimal": "history",
    "numpy scalar": "history",
    "torch scalar": "history",
    "bf16 tensor": "history",
    "str, log_text": "history",
    "Enum": "history",
    "Path": "history",
    "datetime": "history",
    "list": "history",
    "small array": "history",
    "mapping": "history",
    "None": "nothing",
    "Image": "wandb.Image (PNG)",
    "Figure, matplotlib": "wandb.Image (PNG)",
    "Figure, plotly": "wandb.Plotly (JSON)",
    "Histogram": "wandb.Histogram",
    "Table": "wandb.Table",
    "Audio": "wandb.Audio (WAV)",
    "Video": "wandb.Video (GIF)",
    "Html": "wandb.Html",
    "Artifact, file": "artifact",
    "Artifact, directory": "artifact",
    "alert": "alert",
    "summary, number": "summary",
    "summary, text": "summary",
    "config, number": "config",
    "config, bool": "config",
    "config, text": "config",
    "config, list": "config",
    "config, None": "config",
    "config, nan": "config (text NaN)",
    "config, nested": "config",
}
"""See `accelbus.testing.SinkContract.arrivals`."""

PLACES: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "image-file": ("wandb.Image", bytes),
    "audio-file": ("wandb.Audio", bytes),
    "video-file": ("wandb.Video", bytes),
    "html-file": ("wandb.Html", bytes),
    "plotly-file": ("wandb.Plotly", bytes),
    "table-file": ("wandb.Table", lambda data: (json.loads(data)["columns"], json.loads(data)["data"])),
}


def arrived(logging_dir: Path, keys: Path) -> Iterator[Arrived]:
    """Yield everything."""
    (file,) = reader.files(logging_dir)
    for _, key, value, _ in reader.points(file, keys):
        if isinstance(value, dict) and value.get("_type") == "histogram":
            yield Arrived(key, "wandb.Histogram", (value["values"], value["bins"]))
        elif isinstance(value, dict):
            place, read = PLACES[value["_type"]]
            yield Arrived(key, place, read((file.parent / "files" / value["path"]).read_bytes()))
        else:
            yield Arrived(key, "history", value)
    for artifact in reader.of_kind(file, "artifact"):
        files = {content.path: Path(content.local_path).read_bytes() for content in artifact.manifest.contents}
        name = artifact.name.replace("-", "_")
        yield Arrived(name, "artifact", files if len(files) > 1 else next(iter(files.values())))
    for alert in reader.of_kind(file, "alert"):
        yield Arrived("alert", "alert", f"{alert.title}: {alert.text}")
    for key, value in reader.summary(file).items():
        yield Arrived(f"summary/{key}", "summary", value)
    for key, value in reader.config(file).items():
        yield Arrived(f"config/{key}", "config", value)
