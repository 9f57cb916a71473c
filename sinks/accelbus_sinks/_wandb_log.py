"""W&B's transaction log, the ``.wandb`` file: what it holds so far, and two of them as one.

A file is 7 bytes of header and then 32 KiB blocks of chunks, as in LevelDB's log: CRC-32, length, type (1 a whole record, 2 its first
part, 3 a middle one, 4 the last), data. A record is a `Record` of W&B's own protocol. W&B writes such a file for each session of a
run and cannot add to an old one; uploading the file of a second session replaces what the first one had uploaded.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from wandb.proto import wandb_internal_pb2 as protocol

from accelbus.durable import sync_directory

HEADER_BYTES: Final = 7
BLOCK_BYTES: Final = 32 * 1024
_CHUNK: Final = struct.Struct("<IHB")
_READ_BYTES: Final = 1024 * 1024
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SEEDS: Final = {kind: zlib.crc32(bytes((kind,))) for kind in (_WHOLE, _FIRST, _MIDDLE, _LAST)}
"""The checksum of a chunk is that of its type and its data."""
_KINDS: Final[dict[int, str]] = {field.number: field.name for field in protocol.Record.DESCRIPTOR.oneofs_by_name["record_type"].fields}
_NUMBER_KEY: Final = protocol.Record.DESCRIPTOR.fields_by_name["num"].number << 3
_ONCE: Final = frozenset({"header", "exit", "final", "footer"})
"""Kinds of records that a file has once, whatever it was made of."""
_RECORDS_AFTER_AN_EXIT: Final = 32
"""More than W&B ever writes."""


class Part(NamedTuple):
    """A session's file and how much of it counts."""

    path: Path
    size: int | None = None
    """Bytes; None: all that is complete, without the record that ends it."""


class LogFollower:
    """What W&B has written to a file of its own so far. Cheap to ask again: only new bytes are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = HEADER_BYTES
        """Bytes of complete records."""
        self._counts: dict[str, int] = {}

    def count(self, kind: str) -> int:
        """Return how many records of *kind* (history, metric, …) are complete in the file."""
        self._read_on()
        return self._counts.get(kind, 0)

    def _read_on(self) -> None:
        for end, record in _records(Part(self._path), self.size):
            kind = kind_of(record)
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self.size = end


def kind_of(record: bytes) -> str:
    """Return which kind of record the bytes are; empty when this W&B does not know it. Looks at the first fields only."""
    position = 0
    while position < len(record):
        key, position = _varint(record, position)
        if kind := _KINDS.get(key >> 3):
            return kind
        # Skip the field: a number, 8 bytes, a length and as many bytes, 4 bytes.
        wire_type = key & 7
        if wire_type == 0:
            _, position = _varint(record, position)
        elif wire_type == 2:
            length, position = _varint(record, position)
            position += length
        else:
            position += 8 if wire_type == 1 else 4
    return ""


def history(part: Part) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield W&B's own step and {key: value} of each row in *part*, without the keys W&B fills in. Media are mappings."""
    for _, data in _records(part):
        record = protocol.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            values: dict[str, Any] = {}
            for item in record.history.item:
                *outer, last = list(item.nested_key) or [item.key]
                into = values
                for key in outer:
                    into = into.setdefault(key, {})
                into[last] = json.loads(item.value_json)
            yield record.history.step.num, {key: value for key, value in values.items() if key not in {"_step", "_runtime"}}


def join(parts: Sequence[Part]) -> None:
    """Make one file of *parts*, in place of the first one's: what a single session would have written.

    The first part's bytes stay as they are, so whoever knows how many of them count still does afterwards. Either everything is
    joined and durable, or nothing has changed. The later files are left for the caller to remove.

    Raises:
        OSError: the joined file cannot be written.
    """
    first, *later = parts
    size, number = _end(first)
    joined = first.path.with_name(first.path.name + ".joined")
    with first.path.open("rb") as source, joined.open("wb") as target:
        _copy(source, target, size)
        writer = _Writer(target, size)
        ending = b""
        for part in later:
            for _, data in _records(part):
                kind = kind_of(data)
                if kind == "exit":
                    ending = data
                elif record := _within_a_run(kind, data):
                    number += 1
                    writer.write(_numbered(record, number))
        if ending:
            writer.write(_numbered(ending, number + 1))
        target.flush()
        os.fsync(target.fileno())
    os.replace(joined, first.path)
    sync_directory(first.path.parent)


def _within_a_run(kind: str, record: bytes) -> bytes:
    """Return what *record* becomes behind other sessions' records, nothing for some: only its configuration is left of a start."""
    if kind in _ONCE:
        return b""
    if kind != "run":
        return record
    changes = [item for item in protocol.Record.FromString(record).run.config.update if item.key != "_wandb"]
    if not changes:
        return b""
    configuration = protocol.Record()
    configuration.config.update.extend(changes)
    return bytes(configuration.SerializeToString())


def _numbered(record: bytes, number: int) -> bytes:
    """Return *record* as the *number*-th of its file. Not parsed for it: there may be millions of them."""
    start = 0
    if record[0] == _NUMBER_KEY:
        _, start = _varint(record, 1)
    return bytes(protocol.Record(num=number).SerializeToString()) + record[start:]


def _end(part: Part) -> tuple[int, int]:
    """Return where *part* ends, without the record that says so, and the number of its last record."""
    newest: deque[tuple[int, bytes]] = deque([(HEADER_BYTES, b"")], maxlen=_RECORDS_AFTER_AN_EXIT)
    newest.extend(_records(part))
    end, number = newest[0][0], 0
    for next_end, data in newest:
        record = protocol.Record.FromString(data)
        if record.WhichOneof("record_type") == "exit":
            break
        end, number = next_end, record.num
    return end, number


def _records(part: Part, start: int = HEADER_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield (offset of its end, bytes) of each complete record of *part* from *start* on.

    Ends at the first bytes that are not, or not yet, right.
    """
    stop = float("inf") if part.size is None else part.size
    try:
        file = part.path.open("rb", buffering=0)
    except FileNotFoundError:
        return
    with file:
        file.seek(start)
        # Bytes that were read, where in them the next chunk begins, and (in start) where in the file they begin.
        data, position = b"", 0
        parts: list[bytes] = []
        while True:
            if len(data) - position < BLOCK_BYTES:
                # No chunk is longer than a block.
                start, data, position = start + position, data[position:] + file.read(_READ_BYTES), 0
            room = BLOCK_BYTES - (start + position) % BLOCK_BYTES
            if room < _CHUNK.size:
                position += room
            if position + _CHUNK.size > len(data):
                return
            crc, length, kind = _CHUNK.unpack_from(data, position)
            chunk = data[position + _CHUNK.size : position + _CHUNK.size + length]
            position += _CHUNK.size + length
            if position > len(data) or start + position > stop or kind not in _SEEDS or zlib.crc32(chunk, _SEEDS[kind]) != crc:
                return
            if kind in (_WHOLE, _FIRST):
                parts.clear()
            parts.append(chunk)
            if kind in (_WHOLE, _LAST):
                yield start + position, b"".join(parts)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number that begins at *position*, and where it ends."""
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return number, position


class _Writer:
    """Records at the end of an open file that has *offset* bytes."""

    def __init__(self, file: IO[bytes], offset: int) -> None:
        self._file = file
        self._offset = offset

    def write(self, record: bytes) -> None:
        view = memoryview(record)
        is_first = True
        while is_first or view:
            room = BLOCK_BYTES - self._offset % BLOCK_BYTES
            if room < _CHUNK.size:
                self._put(bytes(room))
                room = BLOCK_BYTES
            chunk, view = view[: room - _CHUNK.size], view[room - _CHUNK.size :]
            kind = (_FIRST if view else _WHOLE) if is_first else (_MIDDLE if view else _LAST)
            is_first = False
            self._put(_CHUNK.pack(zlib.crc32(chunk, _SEEDS[kind]), len(chunk), kind) + chunk)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._offset += len(data)


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    while size and (data := source.read(min(size, _READ_BYTES))):
        target.write(data)
        size -= len(data)


__all__ = ["LogFollower", "Part", "history", "join", "kind_of"]
