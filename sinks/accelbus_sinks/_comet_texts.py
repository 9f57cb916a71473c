"""Texts for Comet, which keeps the newest value of an Other and 500 text samples, and has no text metric."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from accelbus_sinks._append_file import AppendFile, cut_back

SAMPLES: Final = 400
"""Texts that also go to the Text tab; an experiment takes 500 in all (Comet's page "Rate limits and performance")."""


class Texts:
    """All texts of a run, as lines of one file.

    Args:
        state_dir: where the file is; None: in memory.
        checkpoint: what `checkpoint` returned; empty for a run of which everything will come again.
    """

    def __init__(self, state_dir: Path | None, checkpoint: Mapping[str, int]) -> None:
        self._path = state_dir / "texts.jsonl" if state_dir else None
        self._samples = checkpoint.get("samples", 0)
        self._file: AppendFile | None = None
        self._lines: list[bytes] = []
        self._newest: dict[str, str] = {}
        if self._path and self._path.exists():
            cut_back(self._path, checkpoint.get("offset", 0))

    def add(self, key: str, text: str, step: int, time_ns: int) -> bool:
        """Keep *text*; return whether it is one of those for the Text tab."""
        line: dict[str, Any] = {"step": step, "time": time_ns / 1e9, "key": key, "value": text}
        self._append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._newest[key] = text
        self._samples += 1
        return self._samples <= SAMPLES

    def make_room(self) -> None:
        """Called before a batch is taken; see `AppendFile.make_room`."""
        if self._file:
            self._file.make_room()

    def newest(self) -> list[tuple[str, str]]:
        """Return (key, text) of those that have changed since the last call."""
        changed = list(self._newest.items())
        self._newest.clear()
        return changed

    def content(self) -> str:
        """Return all lines."""
        data = self._path.read_bytes() if self._path and self._path.exists() else b"".join(self._lines)
        return data.decode()

    def flush(self) -> None:
        if self._file:
            self._file.flush()

    def checkpoint(self) -> dict[str, int]:
        size = self._path.stat().st_size if self._path and self._path.exists() else 0
        return {"samples": self._samples, "offset": size}

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._path is None:
            self._lines.append(line)
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = AppendFile(self._path)
        self._file.append(line)
