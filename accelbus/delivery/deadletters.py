"""Rows that a tracker refuses alone, with the reason: ``sinks/<sink>/dead_letters.jsonl``, one JSON object per line.

What was said about the run and refused (configuration, summary, …) is a line with its ``kind`` instead of a step.
The values are Python's JSON: NaN and infinities are written as ``NaN``, ``Infinity`` and ``-Infinity``. A media value is an object with
its kind, format and meta, and its bytes in base64 or the name of its file in the run's ``blobs``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from accelbus.errors import CorruptDataError
from accelbus.media import spelled_out
from accelbus.tracking import Row

FILE = "dead_letters.jsonl"


class DeadLetters:
    """Append to the file in *directory*, cut back to the *size* that the cursor knows: what follows will be judged again."""

    def __init__(self, directory: Path, size: int, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._path = directory / FILE
        self._clock = clock
        self._dirty = False
        self.size = size
        if self._path.exists() and self._path.stat().st_size > size:
            os.truncate(self._path, size)

    def append(self, row: Row, reason: str) -> None:
        """Add *row*.

        Raises:
            OSError: it is not added.
        """
        self._append({"reason": reason, "attempt": row.attempt, "step": row.step, "row_time_ns": row.time_ns, "values": dict(row.values)})

    def append_statement(self, kind: str, said: Mapping[str, Any] | Sequence[str], reason: str) -> None:
        """Add what was *said* about the run; `append` in all else."""
        self._append({"reason": reason, "kind": kind, "values": said})

    def _append(self, content: Mapping[str, Any]) -> None:
        letter = {"time_ns": self._clock(), **content}
        line = json.dumps(letter, default=_spelled_out).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            written = os.pwrite(descriptor, line, self.size)
            if written != len(line):
                os.ftruncate(descriptor, self.size)
                raise OSError(f"{self._path}: {written} of {len(line)} bytes could be written")
        finally:
            os.close(descriptor)
        self.size += len(line)
        self._dirty = True

    def sync(self) -> None:
        """Make everything appended durable."""
        if self._dirty:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._dirty = False


def _spelled_out(value: object) -> object:
    """Return packed media, with its bytes or the name of its file, and everything else as it prints."""
    if not isinstance(value, msgspec.msgpack.Ext):
        return repr(value)
    try:
        return spelled_out(value)
    except CorruptDataError as error:
        return str(error)


__all__ = ["DeadLetters"]
