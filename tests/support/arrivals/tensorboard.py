"""What TensorBoard shows, by its own readers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from accelbus.testing import Arrived
from accelbus.testing.recognising import contents
from tests.support import tensorboard_readers as readers

ARRIVALS: Final = {
    "int": "scalar",
    "int beyond 64 bits": "scalar",
    "int beyond floats": "Text tab",
    "float": "scalar",
    "bool": "scalar (1)",
    "nan": "scalar",
    "inf": "scalar",
    "Decimal": "scalar",
    "numpy scalar": "scalar",
    "torch scalar": "scalar",
    "bf16 tensor": "scalar",
    "str, log_text": "Text tab",
    "Enum": "Text tab",
    "Path": "Text tab",
    "datetime": "Text tab",
    "list": "Text tab (JSON)",
    "small array": "Text tab (JSON)",
    "mapping": "scalar",
    "None": "nothing",
    "Image": "Images tab (PNG)",
    "Figure, matplotlib": "Images tab (PNG)",
    "Figure, plotly": "file, named on the Text tab (JSON)",
    "Histogram": "Histograms tab",
    "Table": "Text tab (Markdown)",
    "Audio": "Audio tab (WAV)",
    "Video": "Images tab (GIF)",
    "Html": "file, named on the Text tab",
    "Artifact, file": "file, named on the Text tab",
    "Artifact, directory": "file, named on the Text tab",
    "alert": "Text tab",
    "summary, number": "scalar; summary.json",
    "summary, text": "Text tab; summary.json",
    "config, number": "HParams tab",
    "config, bool": "HParams tab",
    "config, text": "HParams tab",
    "config, list": "HParams tab (JSON)",
    "config, None": "HParams tab (text None)",
    "config, nan": "HParams tab (text NaN)",
    "config, nested": "HParams tab (flat)",
}
"""See `accelbus.testing.SinkContract.arrivals`."""

FILE = re.compile(r".*: `(?P<path>[^`]+)`")


def arrived(logging_dir: Path) -> Iterator[Arrived]:
    """Yield everything."""
    (run,) = logging_dir.iterdir()
    for _, key, value, _ in readers.scalars(logging_dir):
        yield Arrived(key, "scalar", value)
    for _, key, text, _ in readers.texts(logging_dir):
        if named := FILE.fullmatch(text):
            file = run / named["path"]
            yield Arrived(key, "file, named on the Text tab", contents(file) if file.is_dir() else file.read_bytes())
        else:
            yield Arrived("alert" if key == "alerts" else key, "Text tab", text)
    for name, (_, points) in readers.shown(logging_dir, "images").items():
        for _, _, (_, _, image) in points:
            yield Arrived(name.removesuffix("/image_summary"), "Images tab", image)
    for name, (_, points) in readers.shown(logging_dir, "histograms").items():
        for _, _, rows in points:
            edges = [*np.asarray(rows)[:, 0].tolist(), float(rows[-1][1])]
            yield Arrived(name.removesuffix("/histogram_summary"), "Histograms tab", (np.asarray(rows)[:, 2].tolist(), edges))
    for name, (_, points) in readers.shown(logging_dir, "audio").items():
        for _, _, (sound, *_) in points:
            yield Arrived(name.removesuffix("/audio_summary"), "Audio tab", sound)
    for key, value in readers.hyperparameters(readers.sessions(logging_dir)).items():
        yield Arrived(f"config/{key}", "HParams tab", value)
    for key, value in json.loads((run / "summary.json").read_text()).items():
        yield Arrived(f"summary/{key}", "summary.json", value)
