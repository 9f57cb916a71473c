"""Checkpoints: what is in one, which are complete, which is the newest.

::

    <checkpoint>/
        pytorch_model.bin, pytorch_model_1.bin, …    models, without the wrapper of DDP
        optimizer.bin, scheduler.bin, scaler.pt, custom_checkpoint_0.pkl, …
        rank_<rank>.bin                              what differs between ranks: random numbers, positions of loaders, open gradients,
                                                     buffers and weights that are not those of the process that writes
        accelbus.json                                written last: the checkpoint is complete

Everything is read without running code (``weights_only``), unless ``load_kwargs`` says otherwise.
"""

from __future__ import annotations

import itertools
import os
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from accelbus.durable import write_atomically
from accelbus.errors import ConfigurationError

MARKER: Final = "accelbus.json"
CHECKPOINTS: Final = "checkpoints"
_NUMBERED: Final = re.compile(r"checkpoint_(\d+)")


class Marker(msgspec.Struct, kw_only=True):
    """``accelbus.json``: whose checkpoint it is."""

    run_id: str | None = None
    project: str | None = None
    step: int | None = None
    """Last step that was logged."""
    num_processes: int = 1
    accumulated: int = 0
    """Batches since the last one that a loader's end completed."""
    sync_gradients: bool = True
    orders: list[list[int]] = []
    """Of each model: see `accelbus.accelerator.buckets`."""
    created_ns: int = 0
    accelbus: str = ""


def numbered(name: str, number: int) -> str:
    """Return the name of the file of object *number*: the first one's has no number."""
    stem, dot, ending = name.rpartition(".")
    return name if number == 0 else f"{stem}_{number}{dot}{ending}"


def write(directory: Path, name: str, states: Sequence[Any]) -> None:
    """Write a file for each of *states*; one that was there is replaced as a whole."""
    for number, state in enumerate(states):
        path = directory / numbered(name, number)
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with hidden.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(path)
        finally:
            hidden.unlink(missing_ok=True)


def remove_from(directory: Path, name: str, number: int) -> None:
    """Remove the files of objects *number* and above: a former checkpoint in the same place had more."""
    for surplus in range(number, count(directory, name)):
        (directory / numbered(name, surplus)).unlink()


def count(directory: Path, name: str) -> int:
    """Return of how many objects there are files that `write` has called *name*."""
    return next(number for number in itertools.count() if not (directory / numbered(name, number)).exists())


def needs_trust(path: Path) -> list[str]:
    """Return the types in a file for which `read` would have to run code: a file with any is not read; from torch 2.6 on."""
    types_in = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    if types_in is None:
        return []
    with _numpy_is_plain():
        return sorted(types_in(path))


def read(path: Path, **arguments: Any) -> Any:
    """Return what is in a file that `write` has written.

    Raises:
        ConfigurationError: it is not there, or it holds something that cannot be read without running code.
    """
    try:
        with _numpy_is_plain():
            return torch.load(path, **{"map_location": "cpu", "weights_only": True, **arguments})
    except FileNotFoundError as error:
        raise ConfigurationError(f"{str(path)!r} is missing: the checkpoint was made without it, or it was removed") from error
    except pickle.UnpicklingError as error:
        raise ConfigurationError(
            f"{str(path)!r} holds more than plain data and tensors{_named(needs_trust(path))}: reading it can run code. If you trust whoever "
            f"has made it, use load_state(..., load_kwargs={{'weights_only': False}})"
        ) from error


def _named(types: Sequence[str]) -> str:
    return f" ({', '.join(types)})" if types else ""


def _numpy_is_plain() -> AbstractContextManager[object]:
    """Let numpy's numbers and arrays be read, which are as plain as tensors."""
    numpy = sys.modules.get("numpy")
    safe_globals = getattr(torch.serialization, "safe_globals", None)
    if numpy is None or safe_globals is None:
        return nullcontext()
    makers = [numpy.float64(0).__reduce__()[0], numpy.zeros(1).__reduce__()[0], numpy.ndarray, numpy.dtype]
    dtypes = {type(numpy.dtype(code)) for code in numpy.typecodes["All"] if code != "O"}
    context: AbstractContextManager[object] = safe_globals([*makers, *dtypes])
    return context


def mark(directory: Path, marker: Marker) -> None:
    """Say that the checkpoint is complete."""
    write_atomically(directory / MARKER, msgspec.json.format(msgspec.json.encode(marker)))


def unmark(directory: Path) -> None:
    """Say that it is not: it is about to be written."""
    (directory / MARKER).unlink(missing_ok=True)


def marker_of(directory: Path) -> Marker | None:
    """Return the marker of a complete checkpoint, None for anything else."""
    try:
        return msgspec.json.decode((directory / MARKER).read_bytes(), type=Marker)
    except (OSError, msgspec.MsgspecError):
        return None


def is_of_accelerate(directory: Path) -> bool:
    """Whether Accelerate has made it: its files are named alike, and others are beside them."""
    return any(directory.glob("random_states_*.pkl"))


def newest(project_dir: Path) -> Path | None:
    """Return the newest complete checkpoint in a project's directory: the directory itself, one in it, or one in ``checkpoints``."""
    found = [(marker.created_ns, path) for path in _candidates(project_dir) if (marker := marker_of(path)) is not None]
    return max(found)[1] if found else None


def named_automatically(project_dir: Path) -> list[Path]:
    """Return the checkpoints that ``automatic_checkpoint_naming`` has made: incomplete ones, then the others, the oldest first."""
    found = [(marker.created_ns if (marker := marker_of(path)) else -1, number, path) for number, path in _numbered_in(project_dir)]
    return [path for _, _, path in sorted(found)]


def next_number(project_dir: Path) -> int:
    """Return the number behind that of every complete checkpoint that ``automatic_checkpoint_naming`` has made."""
    return max((number + 1 for number, path in _numbered_in(project_dir) if marker_of(path) is not None), default=0)


def _numbered_in(project_dir: Path) -> list[tuple[int, Path]]:
    entries = _entries(project_dir / CHECKPOINTS)
    return [(int(match[1]), entry) for entry in entries if (match := _NUMBERED.fullmatch(entry.name)) is not None]


def _candidates(project_dir: Path) -> Iterator[Path]:
    yield project_dir
    yield from _entries(project_dir)
    yield from _entries(project_dir / CHECKPOINTS)


def _entries(directory: Path) -> list[Path]:
    try:
        return [entry for entry in directory.iterdir() if entry.is_dir()]
    except OSError:
        return []


__all__ = [
    "CHECKPOINTS",
    "MARKER",
    "Marker",
    "count",
    "is_of_accelerate",
    "mark",
    "marker_of",
    "named_automatically",
    "needs_trust",
    "newest",
    "next_number",
    "numbered",
    "read",
    "remove_from",
    "unmark",
    "write",
]
