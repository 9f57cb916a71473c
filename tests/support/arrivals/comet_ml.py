"""What lies in an offline archive of Comet's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from accelbus.testing import Arrived
from tests.support.comet_readers import Archive

ARRIVALS: Final = {
    "int": "metric",
    "int beyond 64 bits": "metric",
    "int beyond floats": "Text tab; texts.jsonl; Other",
    "float": "metric",
    "bool": "metric (1)",
    "nan": "metric (text NaN)",
    "inf": "metric (text Infinity)",
    "Decimal": "metric",
    "numpy scalar": "metric",
    "torch scalar": "metric",
    "bf16 tensor": "metric",
    "str, log_text": "Text tab; texts.jsonl; Other",
    "Enum": "Text tab; texts.jsonl; Other",
    "Path": "Text tab; texts.jsonl; Other",
    "datetime": "Text tab; texts.jsonl; Other",
    "list": "Text tab (JSON); texts.jsonl (JSON); Other (JSON)",
    "small array": "Text tab (JSON); texts.jsonl (JSON); Other (JSON)",
    "mapping": "metric",
    "None": "nothing",
    "Image": "Graphics tab (PNG)",
    "Figure, matplotlib": "Graphics tab (PNG)",
    "Figure, plotly": "asset (JSON)",
    "Histogram": "3D histogram (other bins)",
    "Table": "asset (CSV)",
    "Audio": "Audio tab (WAV)",
    "Video": "video (GIF)",
    "Html": "HTML tab",
    "Artifact, file": "asset",
    "Artifact, directory": "asset",
    "alert": "Text tab; texts.jsonl; Other",
    "summary, number": "Other",
    "summary, text": "Other",
    "config, number": "hyperparameter",
    "config, bool": "hyperparameter",
    "config, text": "hyperparameter",
    "config, list": "hyperparameter (JSON)",
    "config, None": "hyperparameter",
    "config, nan": "hyperparameter (text NaN)",
    "config, nested": "hyperparameter (flat)",
}
"""See `accelbus.testing.SinkContract.arrivals`."""

KINDS = {"visualization": "Graphics tab", "histogram3d": "3D histogram", "audio": "Audio tab", "video": "video", "asset": "asset"}


def arrived(archive: Archive, key_of: Callable[[str], str]) -> Iterator[Arrived]:
    """Yield everything; *key_of* takes Comet's name to the key."""
    metrics = {payload["metric"]["metricName"]: payload["metric"]["metricValue"] for payload in archive.of("metric_msg")}
    for name, value in metrics.items():
        yield Arrived(key_of(name), "metric", value if isinstance(value, str) else float(value))
    files: dict[str, dict[str, bytes]] = {}
    for asset in archive.assets():
        if asset.kind == "text-sample":
            key, text = asset.metadata["key"], asset.data.decode()
            yield Arrived("alert" if key.startswith("alert/") else key, "Text tab", text)
        elif asset.kind == "asset" and "type" in asset.metadata:
            files.setdefault(asset.metadata["name"], {})[asset.name.partition("/")[2]] = asset.data
        elif asset.kind in KINDS:
            yield Arrived(_key(asset.name), KINDS[asset.kind], _content(asset.kind, asset.data))
    for name, content in files.items():
        yield Arrived(name, "asset", content.get("", content))
    for line in map(json.loads, archive.text("texts.jsonl").splitlines()):
        yield Arrived("alert" if line["key"].startswith("alert/") else line["key"], "texts.jsonl", line["value"])
    for payload in archive.of("html"):
        yield Arrived("html", "HTML tab", payload["html"])
    for name, value in archive.others().items():
        yield Arrived("alert" if name.startswith("alert/") else name, "Other", value)
        yield Arrived(f"summary/{name}", "Other", value)
    for name, value in archive.parameters().items():
        yield Arrived(f"config/{key_of(name)}", "hyperparameter", value)


def _key(name: str) -> str:
    """An asset is called like its key, with a step or a suffix."""
    return re.sub(r"(-\d+)?(\.plotly)?\.\w+$", "", name)


def _content(kind: str, data: bytes) -> Any:
    if kind != "histogram3d":
        return data
    filled = json.loads(data)["index_values"]
    return [count for _, count in filled], [index for index, _ in filled]
