"""Read Comet's offline archives, with the checks that ``comet upload`` makes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from comet_ml import schemas

CHECKS = {
    "metric_msg": schemas.get_metric_msg_validator(),
    "parameter_msg": schemas.get_parameter_msg_validator(),
    "log_other": schemas.get_log_other_msg_validator(),
    "file_upload": schemas.get_upload_msg_validator(),
    "html": schemas.get_html_msg_validator(),
    "system_info": schemas.get_system_info_msg_validator(),
    "log_dependency": schemas.get_log_dependency_msg_validator(),
    "standard_output": schemas.get_standard_output_msg_validator(),
}


class Asset(NamedTuple):
    kind: str
    name: str
    step: int | None
    metadata: dict[str, Any]
    data: bytes


class Archive:
    """One archive, every message of it valid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with zipfile.ZipFile(path) as archive:
            self.experiment = json.loads(archive.read("experiment.json"))
            schemas.get_experiment_file_validator().validate(self.experiment)
            self.messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
            self._files = {name: archive.read(name) for name in archive.namelist()}
        for message in self.messages:
            CHECKS[message["type"]].validate(message["payload"])

    def metrics(self) -> Iterator[tuple[int, str, float, float]]:
        """Yield (step, name, value, seconds) of all metrics."""
        for payload in self.of("metric_msg"):
            metric = payload["metric"]
            yield metric["step"], metric["metricName"], float(metric["metricValue"]), payload["local_timestamp"] / 1000

    def parameters(self) -> dict[str, Any]:
        """{name: value}, the last one of each."""
        found = [payload.get("param") or payload["params"] for payload in self.of("parameter_msg")]
        return {parameter["paramName"]: parameter["paramValue"] for parameter in found}

    def others(self) -> dict[str, Any]:
        return {payload["key"]: payload["value"] for payload in self.of("log_other")}

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The messages of one kind."""
        return [message["payload"] for message in self.messages if message["type"] == kind]

    def assets(self) -> list[Asset]:
        found = []
        for payload in self.of("file_upload"):
            about = payload["additional_params"]
            name = about.get("fileName") or about.get("figName")
            found.append(Asset(payload["upload_type"], name, about["step"], payload["metadata"] or {}, self._files[payload["file_path"]]))
        return found

    def asset(self, name: str) -> Asset:
        """The last one of that name."""
        return [asset for asset in self.assets() if asset.name == name][-1]

    def text(self, name: str) -> str:
        """The asset of that name; empty when there is none."""
        return next((asset.data.decode() for asset in reversed(self.assets()) if asset.name == name), "")


def archives(directory: Path) -> list[Archive]:
    """All archives in *directory*, in the order in which they were made."""
    found = [Archive(path) for path in directory.glob("*.zip")]
    return sorted(found, key=lambda archive: archive.experiment["start_time"])
