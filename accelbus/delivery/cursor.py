"""How far a sink has come: what is durable in the tracker, and all a fresh worker needs to go on from there.

::

    cursor = magic ``ABC1``, CRC32C of the rest, msgpack array of `Cursor`
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec

from accelbus.delivery.selection import SelectionState
from accelbus.durable import write_atomically
from accelbus.errors import CursorError
from accelbus.journal.merge import ReaderState
from accelbus.view import ViewState

MAGIC: Final = b"ABC1"
_HEAD: Final = struct.Struct("<4sI")
_FILE: Final = "cursor.msgpack"


class Delivered(msgspec.Struct, array_like=True):
    """Values of one rank that left the view and are settled."""

    delivered: int = 0
    dead_lettered: int = 0
    filtered: int = 0
    """Left out by the sink's options."""


class OwedMedia(msgspec.Struct, array_like=True):
    """A media value that was read and not taken yet; the rest of its step does not wait for it."""

    attempt: int
    step: int
    key: str
    time_ns: int
    value: msgspec.msgpack.Ext
    contributions: dict[int, int]


class MergedConfig(msgspec.Struct, array_like=True):
    """Hyperparameters, or other statements of ranks, so far. A key belongs to the newest attempt that gave it and, in it, to the
    lowest rank.
    """

    values: dict[str, Any] = {}
    givers: dict[str, tuple[int, int]] = {}
    """{key: (attempt, rank)}; nested keys are joined with NUL."""

    def merge(self, attempt: int, rank: int, values: dict[str, Any], *, nested: bool = False) -> bool:
        """Take over an update; return whether anything changed.

        Args:
            attempt: who gives it.
            rank: who gives it.
            values: new values.
            nested: a mapping is merged into the one that is there, instead of replacing it.
        """
        return self._merge(self.values, "", (attempt, rank), values, nested=nested)

    def _merge(self, into: dict[str, Any], within: str, giver: tuple[int, int], values: dict[str, Any], *, nested: bool) -> bool:
        changed = False
        for key, value in values.items():
            place = f"{within}{key}"
            given_by = self.givers.get(place)
            if given_by is not None and (giver[0] < given_by[0] or (giver[0] == given_by[0] and giver[1] > given_by[1])):
                continue
            is_mapping = isinstance(into.get(key), dict)
            if nested and isinstance(value, dict) and (value or is_mapping):
                if not is_mapping:
                    self.givers.pop(place, None)
                    into[key] = {}
                changed = self._merge(into[key], f"{place}\0", giver, value, nested=True) or changed
                continue
            changed = changed or key not in into or into[key] != value
            into[key] = value
            self.givers[place] = giver
        return changed


class Cursor(msgspec.Struct, array_like=True):
    """Everything before ``reader`` that ``view`` has emitted is durable in the tracker or in the dead letters, or is in ``media``."""

    generation: int = 0
    """Of the owner that wrote it."""
    written_ns: int = 0
    reader: ReaderState | None = None
    view: ViewState | None = None
    ranks: dict[int, Delivered] = {}
    checkpoint: dict[str, Any] = {}
    """What the tracker's ``checkpoint`` returned."""
    config: MergedConfig = msgspec.field(default_factory=MergedConfig)
    config_is_stored: bool = True
    """Whether the tracker has been given ``config``."""
    closed_as: str | None = None
    """Status in the run's last RunClosed, if nobody joined after it."""
    joined_ns: int = 0
    """Receive time of the last word that somebody joined."""
    closed_ns: int = 0
    """Receive time of the last RunClosed."""
    finished_as: str | None = None
    """Status with which the tracker was finished, empty for none; nothing was fed since."""
    dead_letters: int = 0
    """Lines in the dead letter file."""
    dead_letter_bytes: int = 0
    url: str = ""
    """Where a person finds the run."""
    media: list[OwedMedia] = []
    selection: SelectionState = msgspec.field(default_factory=SelectionState)
    definitions: MergedConfig = msgspec.field(default_factory=MergedConfig)
    """{pattern: [axis, summary, goal]}"""
    summary: MergedConfig = msgspec.field(default_factory=MergedConfig)
    facts: MergedConfig = msgspec.field(default_factory=MergedConfig)
    """The run record."""
    console: list[str] = []
    """Lines that were read and not taken yet."""
    configured_ns: int = 0
    """When the newest part of the configuration was given, by the clock of who gave it."""


def cursor_path(directory: Path) -> Path:
    """Return where the cursor of the sink that keeps its things in *directory* is."""
    return directory / _FILE


def write_cursor(directory: Path, cursor: Cursor) -> None:
    """Replace the cursor in *directory*, durably.

    Raises:
        OSError: the old one stands.
    """
    body = _encode(cursor)
    write_atomically(cursor_path(directory), _HEAD.pack(MAGIC, google_crc32c.value(body)) + body)


def read_cursor(directory: Path) -> Cursor | None:
    """Return the cursor in *directory*, None when there is none yet.

    Raises:
        CursorError: it is damaged or of another version; its sink has to start from the beginning.
    """
    path = cursor_path(directory)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size or data[:4] != MAGIC:
        raise CursorError("magic", f"{path} does not start with {MAGIC!r}")
    _, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if google_crc32c.value(body) != crc:
        raise CursorError("crc", f"the checksum of {path} does not match")
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:
        raise CursorError("content", f"{path} is of another version ({error})") from error


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Cursor).decode

__all__ = ["Cursor", "Delivered", "MergedConfig", "OwedMedia", "cursor_path", "read_cursor", "write_cursor"]
