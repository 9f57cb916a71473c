"""Hyperparameters within W&B's limits, and the run record as the files that W&B knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from accelbus_sinks._config import shorten, spelled_out, text_of

CONFIG_BYTES: Final = 10 * 1024 * 1024
"""W&B's limit is 15 MB for everything, its own additions included."""
_LENGTHS: Final = (10_000, 1_000, 100, 10)
"""Characters left of a value that is too long, the first that makes the whole fit."""


class FittedConfig(NamedTuple):
    """A configuration as W&B takes it."""

    values: dict[str, Any]
    is_cut: bool


def fitted(config: Mapping[str, Any]) -> FittedConfig:
    """Return *config* nested as it is, with numbers that are not finite as text (W&B makes null of NaN), and within W&B's limit."""
    values = {f"logged/{key}" if key == "_wandb" else key: spelled_out(value) for key, value in config.items()}
    if _size(values) <= CONFIG_BYTES:
        return FittedConfig(values, is_cut=False)
    for length in _LENGTHS:
        values = {key: shorten(text_of(value), length) if _size(value) > length else value for key, value in values.items()}
        if _size(values) <= CONFIG_BYTES:
            break
    return FittedConfig(values, is_cut=True)


def record_files(facts: Mapping[str, Any]) -> dict[str, bytes]:
    """Return {file name: content} of a run record: W&B shows the first three in its overview, its files and its code."""
    known = {key: value for key, value in facts.items() if value is not None}
    files = {"wandb-metadata.json": as_json(_metadata(known)), "accelbus-run.json": as_json(facts)}
    if packages := known.get("packages"):
        files["requirements.txt"] = "".join(f"{name}=={version}\n" for name, version in sorted(packages.items())).encode()
    if patch := known.get("patch"):
        files["diff.patch"] = str(patch).encode("utf-8", "backslashreplace")
    return files


def as_json(content: Mapping[str, Any]) -> bytes:
    """Return *content* as a JSON file; numbers that are not finite are texts."""
    return json.dumps(spelled_out(content), indent=2, default=str).encode() + b"\n"


def _metadata(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what W&B itself writes of a process, said of the trainer."""
    argv, git = facts.get("argv") or [], facts.get("git") or {}
    gpus, cpu = facts.get("gpus") or [], facts.get("cpu") or {}
    metadata = {
        "os": facts.get("os"),
        "python": facts.get("python"),
        "program": argv[0] if argv else None,
        "args": argv[1:] or None,
        "root": facts.get("cwd"),
        "host": facts.get("host"),
        "executable": facts.get("executable"),
        "git": {key: git[key] for key in ("remote", "commit") if git.get(key)} or None,
        "cpu_count": cpu.get("count"),
        "gpu": gpus[0].get("name") if gpus else None,
        "gpu_count": len(gpus) or None,
        "memory": {"total": facts["memory_bytes"]} if "memory_bytes" in facts else None,
    }
    return {key: value for key, value in metadata.items() if value is not None}


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value, enc_hook=str))


__all__ = ["FittedConfig", "as_json", "fitted", "record_files"]
