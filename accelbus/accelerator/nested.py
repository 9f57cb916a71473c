"""Nested data: tensors in lists, tuples, named tuples, dicts and other mappings, as data loaders and models return them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

TensorFunction = Callable[[torch.Tensor], Any]


def map_tensors(function: TensorFunction, data: Any, *, strict: bool = False) -> Any:
    """Return *data* with each tensor replaced by what *function* makes of it; containers keep their types, all else stays.

    Raises:
        TypeError: *strict*, and something in *data* is no tensor.
    """
    if isinstance(data, torch.Tensor):
        return function(data)
    if isinstance(data, tuple | list):
        return like(data, [map_tensors(function, item, strict=strict) for item in data])
    if isinstance(data, Mapping):
        return like(data, {key: map_tensors(function, item, strict=strict) for key, item in data.items()})
    if strict:
        raise TypeError(f"expected tensors, or lists, tuples and mappings of tensors, got {type(data).__name__}")
    return data


def like(container: Any, items: Any) -> Any:
    """Return *items* in a container of the same type as *container*."""
    kind = type(container)
    if isinstance(container, tuple) and hasattr(container, "_fields"):
        return kind(*items)
    return items if kind in {list, dict} else kind(items)


def tensors_in(data: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in *data*."""
    if isinstance(data, torch.Tensor):
        yield data
    elif isinstance(data, Mapping):
        for item in data.values():
            yield from tensors_in(item)
    elif isinstance(data, tuple | list):
        for item in data:
            yield from tensors_in(item)


def has_only_tensors(data: Any) -> bool:
    """Whether there is nothing else in it."""
    if isinstance(data, torch.Tensor):
        return True
    items = data.values() if isinstance(data, Mapping) else data if isinstance(data, tuple | list) else None
    return items is not None and all(map(has_only_tensors, items))


def send_to_device(data: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Return *data* with everything on *device* that can go there: tensors, and objects with a method ``to``."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=non_blocking)
    if isinstance(data, tuple | list):
        return like(data, [send_to_device(item, device, non_blocking=non_blocking) for item in data])
    if isinstance(data, Mapping) and not hasattr(data, "to"):
        return like(data, {key: send_to_device(item, device, non_blocking=non_blocking) for key, item in data.items()})
    return data.to(device) if callable(getattr(data, "to", None)) else data


def rows_of(batch: Any) -> int | None:
    """Return how many samples there are in *batch*: the length of its first tensor or sequence; None where nothing says so."""
    for tensor in tensors_in(batch):
        if tensor.ndim:
            return len(tensor)
    while isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    if isinstance(batch, tuple | list):
        return rows_of(batch[0]) if batch and isinstance(batch[0], tuple | list | Mapping) else len(batch)
    return None


def rows_between(batch: Any, start: int, stop: int) -> Any:
    """Return samples *start* to *stop* of *batch*."""
    if isinstance(batch, torch.Tensor):
        return batch[start:stop] if batch.ndim else batch
    if isinstance(batch, Mapping):
        return like(batch, {key: rows_between(item, start, stop) for key, item in batch.items()})
    if isinstance(batch, tuple | list):
        if any(isinstance(item, torch.Tensor | tuple | list | Mapping) for item in batch):
            return like(batch, [rows_between(item, start, stop) for item in batch])
        return batch[start:stop]
    return batch


def concatenate(batches: Sequence[Any]) -> Any:
    """Return the samples of several batches of one structure as one batch."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(batches)) if first.ndim else torch.stack(list(batches))
    if isinstance(first, Mapping):
        return like(first, {key: concatenate([batch[key] for batch in batches]) for key in first})
    if isinstance(first, tuple | list):
        if any(isinstance(item, torch.Tensor | tuple | list | Mapping) for item in first):
            return like(first, [concatenate(items) for items in zip(*batches, strict=True)])
        return like(first, [item for batch in batches for item in batch])
    return first


__all__ = ["concatenate", "has_only_tensors", "like", "map_tensors", "rows_between", "rows_of", "send_to_device", "tensors_in"]
