"""Data loaders that rank 0 reads for all: for data that the ranks would read in different order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.utils.data import DataLoader

from accelbus.accelerator.data import Iteration, PreparedDataLoader
from accelbus.accelerator.nested import concatenate, rows_between, rows_of


class Part(NamedTuple):
    """What rank 0 sends to one rank."""

    batch: Any = None
    is_last: bool = False
    real: int = 0
    padded: int = 0
    is_end: bool = False
    """There is nothing any more."""
    trouble: str = ""
    """Rank 0 could not read; the others must not wait for it."""


class DispatchedDataLoader(PreparedDataLoader):
    """Rank 0 reads, and sends each rank its part through the process group."""

    def batches(self, iteration: Iteration, ready: Callable[[], None]) -> Generator[Any]:
        processes = self.around.processes
        parts = self._parts(iteration, ready) if processes.is_main_process else None
        if parts is None:
            ready()
        while True:
            part, error = self._receive(parts)
            if error is not None:
                raise error
            if part.is_end:
                return
            iteration.is_last, iteration.real, iteration.padded = part.is_last, part.real, part.padded
            iteration.batches += 1
            yield self.placed(part.batch)

    def _receive(self, parts: Iterator[list[Part]] | None) -> tuple[Part, Exception | None]:
        ranks, received, error, sent = self.around.processes.num_processes, [Part()], None, None
        if parts is not None:
            try:
                sent = next(parts, [Part(is_end=True)] * ranks)
            except Exception as raised:  # noqa: BLE001  raised again, when the others know that they need not wait
                error = raised
                sent = [Part(trouble=f"{type(raised).__name__}: {raised}")] * ranks
        dist.scatter_object_list(received, sent, src=0)
        part = received[0]
        if part.trouble and error is None:
            error = RuntimeError(f"rank 0 could not read the next batch: {part.trouble}")
        return part, error

    def _parts(self, iteration: Iteration, ready: Callable[[], None]) -> Iterator[list[Part]]:
        """Yield what the ranks get in each step."""
        first: Any = None
        for batch, is_last in self.read_ahead(self._steps(DataLoader.__iter__(self)), iteration, ready):
            first = batch if first is None else first
            yield self._shared(batch, first, is_last=is_last)

    def _steps(self, source: Iterator[Any]) -> Iterator[Any]:
        """Yield global batches; the last one may be smaller."""
        size = 1 if self.around.config.split_batches else self.around.processes.num_processes
        while group := list(itertools.islice(source, size)):
            if len(group) == size or not self._original.drop_last:
                yield group[0] if len(group) == 1 else concatenate(group)

    def _shared(self, batch: Any, first: Any, *, is_last: bool) -> list[Part]:
        ranks = self.around.processes.num_processes
        rows = rows_of(batch)
        if rows is None:
            raise ValueError("a batch without tensors or sequences cannot be shared between ranks; pass dispatch_batches=False")
        real = padded = 0
        if missing := -rows % ranks:
            real, padded = rows, rows + missing
            repeats = itertools.repeat(first, -(-missing // (rows_of(first) or 1)))
            batch = rows_between(concatenate([batch, *repeats]), 0, padded)
        size = (rows + missing) // ranks
        return [Part(rows_between(batch, size * rank, size * (rank + 1)), is_last, real, padded) for rank in range(ranks)]

    def __len__(self) -> int:
        batches = len(self._original)
        if self.around.config.split_batches:
            return batches
        ranks = self.around.processes.num_processes
        return batches // ranks if self._original.drop_last else -(-batches // ranks)


__all__ = ["DispatchedDataLoader", "Part"]
