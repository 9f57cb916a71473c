"""Artifacts that grow: MLflow cannot append to one, so it is sent as a whole, from time to time."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from accelbus.durable import write_atomically
from accelbus_sinks._append_file import AppendFile, cut_back
from accelbus_sinks._config import spelled_out

logger = logging.getLogger(__name__)

_SHORTEST_PAUSE: Final = 10.0
"""Seconds between two sendings."""
_PAUSE_PER_SECOND: Final = 20.0
"""So many times as long as the last sending took: at most a twentieth of the worker's time goes into it."""


class GrowingArtifact:
    """Lines that are durable here after `flush`, and in MLflow some time later, at the latest after ``send(now=True)``.

    Args:
        path: where the lines are gathered.
        length: what `length` was at the cursor; lines behind it come again.
        send: called with a file that has all lines.
        render: makes the file's content of the lines; by default they are the content.
    """

    def __init__(self, path: Path, length: int, send: Callable[[Path], None], render: Callable[[bytes], bytes] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            cut_back(path, length)
        self._send = send
        self._render = render
        self._file = AppendFile(path)
        # What a process before has not sent is sent by this one.
        self._unsent = self._file.length > 0
        self._next = 0.0
        self._is_closed = False

    @property
    def length(self) -> int:
        """Bytes that are durable."""
        return self._file.length

    def append(self, lines: Iterable[bytes]) -> None:
        """Add *lines*, each with its end. Touches memory only."""
        for line in lines:
            self._file.append(line)
            self._unsent = True

    def make_room(self) -> None:
        """See `AppendFile.make_room`."""
        self._file.make_room()

    def flush(self) -> None:
        """Make the lines durable and send them if it is time. Trouble with sending waits for the next time."""
        self._file.flush()
        if self._unsent and time.monotonic() >= self._next:
            began = time.monotonic()
            try:
                self._send_now()
            except Exception as error:  # noqa: BLE001  the lines are safe here; what MLflow's stores raise is not known
                logger.warning("%s cannot be sent yet: %s", self._file.path.name, error)
            ended = time.monotonic()
            self._next = ended + max(_SHORTEST_PAUSE, _PAUSE_PER_SECOND * (ended - began))

    def close(self) -> None:
        """Send what is not sent yet. Raises whatever MLflow raises; the same call may be made again."""
        if not self._is_closed:
            self._file.flush()
            if self._unsent:
                self._send_now()
            self._file.close()
            self._is_closed = True

    def _send_now(self) -> None:
        path = self._file.path
        if self._render is not None:
            path = path.with_name(f"{path.stem}.json")
            write_atomically(path, self._render(self._file.path.read_bytes()))
        self._send(path)
        self._unsent = False


def text_line(step: int, time_ns: int, attempt: int, key: str, value: Any) -> bytes:
    """Return a line of the table of texts."""
    return json.dumps([step, time_ns, attempt, key, spelled_out(value)]).encode() + b"\n"


def text_table(lines: bytes) -> bytes:
    """Return *lines* as a table that MLflow shows and `MlflowClient.load_table` reads: each point once, with its newest value."""
    points: dict[tuple[int, str], list[Any]] = {}
    for line in lines.splitlines():
        step, time_ns, attempt, key, value = json.loads(line)
        points[step, key] = [step, time_ns / 1e9, attempt, key, value]
    return json.dumps({"columns": ["step", "time", "attempt", "key", "value"], "data": list(points.values())}).encode()
