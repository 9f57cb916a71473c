"""What trackers that write files keep beside their own: documents, media, alerts, console output."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accelbus.media import Media
from accelbus.tracking import RunInfo
from accelbus_sinks._append_file import AppendFile, cut_back, set_aside
from accelbus_sinks._config import spelled_out, write_config
from accelbus_sinks._keys import KeyMap

FILES: Final = "files"
ARTIFACTS: Final = "artifacts"
ALERTS: Final = "alerts.jsonl"
CONSOLE: Final = "console.log"

_LONGEST_NAME: Final = 60


class SideFiles:
    """Files in *directory*: ``summary.json``, ``run_record.json``, ``definitions.json``, ``files/``, ``artifacts/``, ``alerts.jsonl``, ``console.log``.

    Documents replace what was there, media have names of their own, and the two files that grow are cut back to a checkpoint: what is
    delivered again is not there twice.
    """

    def __init__(self, directory: Path, info: RunInfo) -> None:
        self.directory = directory
        state_dir = None if info.state_dir == Path() else info.state_dir
        self._names = KeyMap(state_dir / "files.json" if state_dir else None, _file_name, longest=_LONGEST_NAME)
        self._growing: dict[str, AppendFile] = {}
        self._offsets: dict[str, int] = {}
        self._definitions: dict[str, dict[str, str]] = {}

    def restore(self, offsets: Mapping[str, int]) -> None:
        """Cut back the files that grow; without offsets everything comes again."""
        for name in (ALERTS, CONSOLE):
            path, offset = self.directory / name, offsets.get(name, 0)
            if not offsets and path.exists():
                set_aside(path, f"{path.stem}.superseded{path.suffix}")
            elif offset or path.exists():
                cut_back(path, offset)
        self._offsets = dict(offsets)

    def summary(self, values: Mapping[str, Any]) -> None:
        self.document("summary", values)

    def run_record(self, facts: Mapping[str, Any]) -> None:
        self.document("run_record", facts)

    def define(self, pattern: str, *, axis: str, summary: str, goal: str) -> None:
        self._definitions[pattern] = {"axis": axis, "summary": summary, "goal": goal}
        self.document("definitions", self._definitions)

    def document(self, name: str, values: Mapping[str, Any]) -> Path:
        """Write *values* to ``<name>.json``."""
        return write_config(self.directory / f"{name}.json", values)

    def media(self, key: str, media: Media, step: int) -> str:
        """Write *media* to a file of its own and return its path, relative to the directory."""
        name = self._names[key if media.kind != "artifact" else str(media.meta["name"])]
        if media.kind == "artifact":
            path = media.save(self.directory / ARTIFACTS / name / f"step-{step}", "")
        elif media.kind == "table":
            columns, rows = media.table()
            path = write_config(self.directory / FILES / f"{name}-{step}.json", {"columns": columns, "rows": rows})
        else:
            path = media.save(self.directory / FILES, f"{name}-{step}")
        return path.relative_to(self.directory).as_posix()

    def alert(self, title: str, text: str, level: str, step: int) -> None:
        line = {"time": time.time(), "step": step, "level": level, "title": title, "text": text}
        self._append(ALERTS, json.dumps(spelled_out(line)).encode() + b"\n")

    def console(self, lines: Sequence[str]) -> None:
        text = "".join(line if line.endswith("\n") else line + "\n" for line in lines)
        self._append(CONSOLE, text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        for name, file in self._growing.items():
            file.flush()
            self._offsets[name] = file.length

    def checkpoint(self) -> dict[str, int]:
        """Return what `restore` takes; never empty."""
        return {ALERTS: 0, **self._offsets}

    def close(self) -> None:
        self.flush()
        for file in self._growing.values():
            file.close()
        self._growing.clear()

    def _append(self, name: str, data: bytes) -> None:
        if name not in self._growing:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._growing[name] = AppendFile(self.directory / name)
        self._growing[name].make_room()
        self._growing[name].append(data)


def about(media: Media, file: str) -> dict[str, Any]:
    """Return what a reference to *media* in *file* says."""
    said: dict[str, Any] = {"kind": media.kind, "file": file}
    if media.caption:
        said["caption"] = media.caption
    if media.kind == "artifact":
        said |= {name: media.meta[name] for name in ("name", "type", "aliases", "metadata") if media.meta.get(name)}
    return said


def _file_name(key: str) -> str:
    """Return what a file can be called for *key*; `KeyMap` keeps different keys apart."""
    return re.sub(r"[^\w.-]+", "_", key).strip("._-") or "unnamed"


__all__ = ["ALERTS", "CONSOLE", "FILES", "SideFiles", "about"]
