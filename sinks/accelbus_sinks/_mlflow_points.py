"""Timestamps that make MLflow keep each point once and its newest value last.

MLflow keeps every (key, timestamp, step, value) once, changes and deletes none, and takes the value with the highest timestamp for the
newest. So a value that comes again must come with the timestamp it had, and a changed one with a higher one, also after a crash, when
rows come again, perhaps grouped otherwise and thereby with other times.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from accelbus.durable import write_atomically

logger = logging.getLogger(__name__)

VALUES_KEPT: Final = 32_768
"""How far back points are known, in values: a view changes fewer, and fewer are delivered between two cursors."""
_FILE_BYTES: Final = 8 * 1024 * 1024
"""A file that has grown by so much is replaced by what is still known."""

_LENGTH_BYTES: Final = 4
_Given: TypeAlias = tuple[int, float, int]
"""Timestamp in ms, value, number of the message that says so."""
_Message: TypeAlias = tuple[int, int, dict[str, tuple[int, float]]]
"""Number, step, {key: (timestamp in ms, value)}."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, dict[str, tuple[int, float]]]).decode


class _Point:
    """What one key was given at one step, by ascending timestamp."""

    __slots__ = ("given", "now", "settled")

    def __init__(self, given: _Given) -> None:
        self.given = [given]
        self.now = 0
        """Index of what this process has given last. What follows was given by the process before, or in a call that failed."""
        self.settled = 0
        """The same when the last call succeeded."""


class RecentPoints:
    """The newest points with their timestamps, in a file that is written before they are logged.

    Args:
        path: of the file; None: they are known as long as the process lives.
        position: what `position` was at the cursor. Points behind it come again, those before it do not.
        values_kept: how many points are known.
    """

    def __init__(self, path: Path | None, position: int = 0, *, values_kept: int = VALUES_KEPT) -> None:
        self._path = path
        self._values_kept = values_kept
        self._steps: dict[int, dict[str, _Point]] = {}
        self._count = 0
        self._touched: list[_Point] = []
        self._unwritten: list[_Message] = []
        self.position = 0
        """Number of the newest message."""
        self._length = 0
        self._rewrite_at = _FILE_BYTES
        if path is not None:
            self._read(path, position)

    def timestamps(self, rows: Iterable[tuple[int, int, Mapping[str, float]]]) -> list[dict[str, int]]:
        """Return {key: timestamp} for each of *rows*: step, time in ms, values.

        Call `settle` when they have been logged; without it the next call gives the same values the same timestamps again.

        Raises:
            OSError: the file cannot be written.
        """
        for point in self._touched:
            point.now = point.settled
        self._touched.clear()
        stamps = [self._stamp(*row) for row in rows]
        if self._unwritten and self._path is not None:
            self._write(self._path)
        # Not before: what could not be written is written by the next call.
        self._unwritten.clear()
        self._trim()
        return stamps

    def settle(self) -> None:
        """The rows of the last call are logged."""
        for point in self._touched:
            point.settled = point.now
        self._touched.clear()

    def _stamp(self, step: int, time_ms: int, values: Mapping[str, float]) -> dict[str, int]:
        points = self._steps.get(step)
        if points is None:
            points = self._steps[step] = {}
        new: dict[str, tuple[int, float]] = {}
        stamps: dict[str, int] = {}
        for key, value in values.items():
            point = points.get(key)
            if point is None:
                stamp = time_ms
                points[key] = _Point((stamp, value, self.position + 1))
                new[key] = (stamp, value)
            else:
                at = _index(point, value)
                if at == len(point.given):
                    stamp = max(time_ms, point.given[-1][0] + 1)
                    point.given.append((stamp, value, self.position + 1))
                    new[key] = (stamp, value)
                else:
                    stamp = point.given[at][0]
                point.now = at
                self._touched.append(point)
            stamps[key] = stamp
        if new:
            self.position += 1
            self._count += len(new)
            self._unwritten.append((self.position, step, new))
        return stamps

    def _trim(self) -> None:
        # All steps at once: asking a dictionary for its first key again walks over everything that was taken from its front.
        for step in list(self._steps)[:-1] if self._count > self._values_kept else ():
            if self._count <= self._values_kept:
                break
            self._count -= sum(len(point.given) for point in self._steps.pop(step).values())

    # The file: messages, one after the other, each with its length in four bytes

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = b"".join(map(_framed, self._unwritten))
        if self._length + len(data) > self._rewrite_at:
            self._trim()
            data = b"".join(map(_framed, self._messages()))
            write_atomically(path, data)
            self._rewrite_at = len(data) + _FILE_BYTES
            self._length = len(data)
        else:
            _write_at(path, self._length, data)
            self._length += len(data)

    def _messages(self) -> list[_Message]:
        messages: dict[int, _Message] = {}
        for step, points in self._steps.items():
            for key, point in points.items():
                for stamp, value, number in point.given:
                    messages.setdefault(number, (number, step, {}))[2][key] = (stamp, value)
        return [messages[number] for number in sorted(messages)]

    def _read(self, path: Path, position: int) -> None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        while (message := _next(data, self._length)) is not None:
            self._length += _LENGTH_BYTES + len(message)
            try:
                self._remember(*_decode(message), position)
            except msgspec.MsgspecError:
                logger.warning("%s is damaged: points that come again may be stored twice", path)
        self._rewrite_at = self._length + _FILE_BYTES
        self._trim()

    def _remember(self, number: int, step: int, values: dict[str, tuple[int, float]], position: int) -> None:
        points = self._steps.setdefault(step, {})
        for key, (stamp, value) in values.items():
            if (point := points.get(key)) is None:
                points[key] = _Point((stamp, value, number))
            else:
                point.given.append((stamp, value, number))
                if number <= position:
                    point.now = point.settled = len(point.given) - 1
        self._count += len(values)
        self.position = max(self.position, number)


def _index(point: _Point, value: float) -> int:
    """Return which of what *point* was given is *value*, from the current one on, or where it is to be added."""
    given = point.given
    for at in range(point.now, len(given)):
        known = given[at][1]
        if known == value or (known != known and value != value):  # noqa: PLR0124  NaN
            return at
    return len(given)


def _framed(message: _Message) -> bytes:
    data = _encode(message)
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def _next(data: bytes, at: int) -> bytes | None:
    """Return the message at *at*, None for one that is not whole: what it speaks of was not logged."""
    begin = at + _LENGTH_BYTES
    end = begin + int.from_bytes(data[at:begin], "little")
    return data[begin:end] if begin < end <= len(data) else None


def _write_at(path: Path, position: int, data: bytes) -> None:
    """Write *data* behind what is whole: over what a failed write has left."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, position)
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, position)
            position += written
            view = view[written:]
    finally:
        os.close(descriptor)
