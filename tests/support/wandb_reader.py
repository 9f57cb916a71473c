"""Read what W&B has written offline. W&B brings no reader for it: its file is a LevelDB log of its own protocol's records."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from accelbus_sinks._keys import read_keys

STEP = "accelbus/step"


def files(directory: Path) -> list[Path]:
    """Every file below *directory* that ``wandb sync`` would take, the oldest first."""
    return sorted(directory.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)


def records(path: Path) -> list[Any]:
    """Every complete record; each block and checksum is checked."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    assert data[:7] == b":W&B\xe1\xbe\x00"
    found, position, parts = [], 7, b""
    while position < len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
        if position + 7 > len(data):
            break
        crc, length, kind = struct.unpack_from("<IHB", data, position)
        chunk = data[position + 7 : position + 7 + length]
        if len(chunk) < length:
            break
        assert length <= 32768 - position % 32768 - 7, "a chunk leaves its block"
        assert zlib.crc32(bytes([kind]) + chunk) == crc, "a checksum is wrong"
        position += 7 + length
        parts = chunk if kind in (1, 2) else parts + chunk
        if kind in (1, 4):
            found.append(Record.FromString(parts))
    return found


def of_kind(path: Path, kind: str) -> list[Any]:
    """The records of one kind: history, config, exit, …"""
    return [getattr(record, kind) for record in records(path) if record.WhichOneof("record_type") == kind]


def rows(path: Path) -> list[dict[str, Any]]:
    """Every row as W&B has it, with what it adds itself."""
    return [_values(record.item) for record in of_kind(path, "history")]


def points(path: Path, keys: Path | None = None) -> list[tuple[int, str, Any, float]]:
    """(step, key, value, time) in stored order, under the keys that were logged, at the steps that were logged."""
    names = {name: key for key, name in read_keys(keys).items()} if keys else {}
    found = []
    for row in rows(path):
        step, seconds = row.pop(STEP), row.pop("_timestamp")
        found += [(step, names.get(name, name), value, seconds) for name, value in row.items() if name not in {"_step", "_runtime"}]
    return found


def config(path: Path) -> dict[str, Any]:
    """The configuration as W&B's server would have it in the end, nested."""
    found: dict[str, Any] = {}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind in {"run", "config"}:
            changes = record.run.config if kind == "run" else record.config
            found |= _values(changes.update)
    found.pop("_wandb", None)
    return found


def summary(path: Path) -> dict[str, Any]:
    """The summary in the end."""
    found: dict[str, Any] = {}
    for record in of_kind(path, "summary"):
        found |= _values(record.update)
    return found


def _values(items: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in items:
        *outer, last = list(item.nested_key) or [item.key]
        into = found
        for key in outer:
            into = into.setdefault(key, {})
        into[last] = json.loads(item.value_json)
    return found
