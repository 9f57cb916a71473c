"""What `Accelerator` offers to scripts of several processes: who does what, and when."""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, overload

import torch
import torch.distributed as dist

from accelbus.accelerator import operations
from accelbus.accelerator.nested import like
from accelbus.accelerator.parts import Parts
from accelbus.accelerator.state import DistributedType

_Function = TypeVar("_Function", bound=Callable[..., Any])


class ProcessMethods(Parts):
    """Mixed into `Accelerator`."""

    @property
    def device(self) -> torch.device:
        return self.state.device

    @property
    def distributed_type(self) -> DistributedType:
        return self.state.distributed_type

    @property
    def use_distributed(self) -> bool:
        return self.state.use_distributed

    @property
    def num_processes(self) -> int:
        return self.state.num_processes

    @property
    def process_index(self) -> int:
        return self.state.process_index

    @property
    def local_process_index(self) -> int:
        return self.state.local_process_index

    @property
    def is_main_process(self) -> bool:
        return self.state.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        return self.state.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        return self.state.is_last_process

    def wait_for_everyone(self) -> None:
        """Wait until every process has come here."""
        if not self.state.use_distributed:
            return
        if self.state.backend == "nccl":
            dist.barrier(device_ids=[self.device.index])
        else:
            dist.barrier()

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the main process run the block before the others do; they follow also when it raises."""
        with self._first(self.is_main_process):
            yield

    @contextlib.contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let the first process of each node run the block before the others do."""
        with self._first(self.is_local_main_process):
            yield

    @contextlib.contextmanager
    def _first(self, is_first: bool) -> Iterator[None]:
        if not is_first:
            self.wait_for_everyone()
        try:
            yield
        finally:
            if is_first:
                self.wait_for_everyone()

    def print(self, *values: Any, **named: Any) -> None:
        """Print in the first process of each node."""
        if self.is_local_main_process:
            builtins.print(*values, **named)  # noqa: T201  the user's

    @overload
    def on_main_process(self, function: _Function) -> _Function: ...

    @overload
    def on_main_process(self, function: None = None) -> Callable[[_Function], _Function]: ...

    def on_main_process(self, function: Any = None) -> Any:
        """Decorate *function*: only the main process runs it, the others get None."""
        return _only_where(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Any = None) -> Any:
        """Decorate *function*: only the first process of each node runs it."""
        return _only_where(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Any = None) -> Any:
        """Decorate *function*: only the last process runs it."""
        return _only_where(lambda: self.is_last_process, function)

    def on_process(self, function: Any = None, process_index: int | None = None) -> Any:
        """Decorate *function*: only process *process_index* runs it."""
        return _only_where(lambda: self.process_index == process_index, function)

    def on_local_process(self, function: Any = None, local_process_index: int | None = None) -> Any:
        """Decorate *function*: only process *local_process_index* of each node runs it."""
        return _only_where(lambda: self.local_process_index == local_process_index, function)

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all processes, concatenated along the first dimension; see `accelbus.accelerator.operations.gather`."""
        return operations.gather(tensor)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return tensors reduced over all processes, added up when not told otherwise; see `accelbus.accelerator.operations.reduce`."""
        return operations.reduce(tensor, reduction, scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return tensors padded to the size of the largest; see `accelbus.accelerator.operations.pad_across_processes`."""
        return operations.pad_across_processes(tensor, dim, pad_index, pad_first)

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Yield this process's share of *inputs*: consecutive items, the first processes one more where it does not come out even.

        Args:
            inputs: a list, tuple or tensor, or a mapping of such, all of one length.
            apply_padding: the last item is repeated so that all shares are equally long.
        """
        yield self._share(inputs, repeat=apply_padding)

    def _share(self, inputs: Any, *, repeat: bool) -> Any:
        if isinstance(inputs, Mapping):
            if len({len(items) for items in inputs.values()}) > 1:
                raise ValueError("split_between_processes: expected values of one length")
            return like(inputs, {key: self._share(items, repeat=repeat) for key, items in inputs.items()})
        each, more = divmod(len(inputs), self.num_processes)
        start = each * self.process_index + min(self.process_index, more)
        share = inputs[start : start + each + (self.process_index < more)]
        missing = each + bool(more) - len(share)
        if not (repeat and missing and len(inputs)):
            return share
        last = inputs[-1:]
        return torch.cat([share, *[last] * missing]) if isinstance(inputs, torch.Tensor) else share + last * missing


def _only_where(is_here: Callable[[], bool], function: Any) -> Any:
    """Decorate *function*, now or when it is given; who runs it is decided at each call."""
    if function is None:
        return functools.partial(_only_where, is_here)

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named) if is_here() else None

    return run


__all__ = ["ProcessMethods"]
