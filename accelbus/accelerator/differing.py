"""What models and optimizers have in this process and others have not.

DDP keeps weights equal, but not always buffers (``broadcast_buffers=False``, or until the next step), and post_localSGD averages weights
now and then. One process writes the checkpoint of all; what differs from it is found by comparing digests, and kept for each process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from accelbus.accelerator.operations import broadcast_object_list, gather_object

Keys = tuple[str | int, ...]
Entries = list[list[Any]]
"""[[path, tensor], …]: plain, so that it can be read without running code."""
_PIECE = 2**18
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def differing(states: Mapping[str, Sequence[Any]], *, writer: int, all_write_for: bool) -> Entries:
    """Return the tensors in *states* that are not bit by bit those of the process that writes for this one. A collective.

    Args:
        states: {kind: states of the objects of that kind}.
        writer: rank of the process whose states are written.
        all_write_for: there are several of these, one on each node.
    """
    tensors = dict(_tensors(states, ()))
    mine = {path: digest(tensor) for path, tensor in tensors.items()}
    theirs = gather_object([mine])[writer] if all_write_for else broadcast_object_list([mine], from_process=writer)[0]
    return [[list(path), tensor] for path, tensor in tensors.items() if theirs.get(path) != mine[path]]


def put_back(state: Any, entries: Entries, kind: str, number: int) -> Any:
    """Return *state*, of object *number* of a *kind*, with the tensors that this process had instead."""
    for path, tensor in entries:
        if path[:2] != [kind, number]:
            continue
        container = state
        for key in path[2:-1]:
            container = container[key]
        container[path[-1]] = tensor
    return state


def digest(tensor: torch.Tensor) -> int:
    """Return a number that almost surely differs for tensors of other bits; computed where *tensor* is."""
    plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    words = plain.detach().contiguous().reshape(-1).view(_WORDS[plain.element_size()])
    # Random factors, the same everywhere, that leave the process's generators alone.
    chosen = torch.randint(-(2**62), 2**62, (min(_PIECE, len(words)),), generator=torch.Generator().manual_seed(0)) * 2 + 1
    factors = chosen.to(words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), _PIECE):
        piece = words[start : start + _PIECE].to(torch.int64)
        total = total * 31 + (piece * factors[: len(piece)]).sum()
    return int(total)


def _tensors(data: Any, path: Keys) -> Iterator[tuple[Keys, torch.Tensor]]:
    if isinstance(data, torch.Tensor):
        if data.layout is torch.strided and not data.is_quantized and not data.is_meta:
            yield path, data
    elif isinstance(data, Mapping):
        for key, item in data.items():
            yield from _tensors(item, (*path, key))
    elif isinstance(data, list):
        for number, item in enumerate(data):
            yield from _tensors(item, (*path, number))


__all__ = ["Entries", "differing", "digest", "put_back"]
