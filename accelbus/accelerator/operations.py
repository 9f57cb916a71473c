"""Collectives on nested data. Every rank has to call them; with one process they return what they were given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from accelbus.accelerator.nested import map_tensors

REDUCTIONS = ("sum", "mean", "max", "none")


def ranks() -> int:
    """Return how many processes take part: 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(data: Any) -> Any:
    """Return *data* with each tensor replaced by those of all ranks, concatenated along the first dimension in order of ranks.

    Tensors must have the same shape in all ranks; see `pad_across_processes`.

    Raises:
        TypeError: there is something else than tensors in *data*.
    """
    return map_tensors(_gather_tensor if ranks() > 1 else _unchanged, data, strict=True)


def gather_object(data: Any) -> Any:
    """Return the objects of all ranks in one list, in order of ranks; each rank gives a list."""
    if ranks() == 1:
        return data
    gathered: list[Any] = [None] * ranks()
    dist.all_gather_object(gathered, data)
    return [item for items in gathered for item in items]


def broadcast(data: Any, from_process: int = 0) -> Any:
    """Return *data* with each tensor replaced by that of one rank."""
    return map_tensors(lambda tensor: _broadcast_tensor(tensor, from_process), data) if ranks() > 1 else data


def broadcast_object_list(objects: list[Any], from_process: int = 0) -> list[Any]:
    """Replace the items of *objects* by those of one rank, in place, and return it."""
    if ranks() > 1:
        dist.broadcast_object_list(objects, src=from_process)
    return objects


def reduce(data: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Return *data* with each tensor reduced over the ranks; every rank gets the result.

    Args:
        data: tensors of the same shape in all ranks, nested.
        reduction: ``sum``, ``mean``, ``max`` or ``none``. Not given, it is the mean, as in ``accelerate.utils``; the method of
            `Accelerator` adds up, as Accelerate's does.
        scale: the result is multiplied by it.

    Raises:
        ValueError: for another reduction.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: expected one of {', '.join(REDUCTIONS)}")
    if reduction == "none":
        return data
    return map_tensors(lambda tensor: _reduce_tensor(tensor, reduction, scale), data)


def pad_across_processes(data: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
    """Return *data* with each tensor padded along *dim* to the size of the largest among the ranks.

    Args:
        data: tensors, nested; one with fewer dimensions than *dim* stays as it is.
        dim: dimension to pad.
        pad_index: value to pad with.
        pad_first: pad at the beginning.
    """
    if ranks() == 1:
        return data
    return map_tensors(lambda tensor: _pad_tensor(tensor, dim, pad_index, pad_first=pad_first), data)


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _gather_tensor(tensor: torch.Tensor) -> torch.Tensor:
    mine = _sendable(tensor[None] if tensor.ndim == 0 else tensor)
    parts = [torch.empty_like(mine) for _ in range(ranks())]
    dist.all_gather(parts, mine)
    return torch.cat(parts).to(tensor.device)


def _broadcast_tensor(tensor: torch.Tensor, source: int) -> torch.Tensor:
    sent = _sendable(tensor)
    if sent is tensor or sent.data_ptr() == tensor.data_ptr():
        sent = sent.clone()
    dist.broadcast(sent, src=source)
    return sent.to(tensor.device)


def _reduce_tensor(tensor: torch.Tensor, reduction: str, scale: float) -> torch.Tensor:
    reduced = (_sendable(tensor) if ranks() > 1 else tensor.detach()).clone()
    if ranks() > 1:
        dist.all_reduce(reduced, op=dist.ReduceOp.MAX if reduction == "max" else dist.ReduceOp.SUM)
    if reduction == "mean":
        reduced = reduced / ranks()
    if scale != 1.0:
        reduced = reduced * scale
    return reduced.to(tensor.device)


def _pad_tensor(tensor: torch.Tensor, dim: int, value: int, *, pad_first: bool) -> torch.Tensor:
    if not -tensor.ndim <= dim < tensor.ndim:
        return tensor
    dim %= tensor.ndim
    sizes = _gather_tensor(torch.tensor(tensor.shape[dim], device=tensor.device))
    missing = int(sizes.max()) - tensor.shape[dim]
    if missing == 0:
        return tensor
    # `pad` counts dimensions from the last one, two numbers each.
    widths: Sequence[int] = [0, 0] * (tensor.ndim - 1 - dim) + ([missing, 0] if pad_first else [0, missing])
    return torch.nn.functional.pad(tensor, widths, value=value)


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor* where the backend can take it: NCCL knows no host memory."""
    tensor = tensor.detach().contiguous()
    if tensor.device.type == "cpu" and dist.get_backend() == "nccl":
        return tensor.to(torch.device("cuda", torch.cuda.current_device()))
    return tensor


__all__ = ["broadcast", "broadcast_object_list", "gather", "gather_object", "pad_across_processes", "ranks", "reduce"]
