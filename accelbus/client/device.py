"""Values that still lie on a device when they are logged: copied without waiting, told to the run when they have arrived.

The event of a ``log`` call enters the queue at once, with a mark (`accelbus.pending`) in the place of each value that is on its way.
`Arrivals` remembers the marks; the pump asks it now and then what has arrived and sends that as a `accelbus.events.Fill`. Nothing
here synchronises, and nothing outside the training thread calls the device: that a copy is done is read from host memory, where the
device writes a flag behind the value.

`Copier` is what a kind of device has to offer; `CudaCopier` is the one there is. Tensors of other devices are copied at once.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from accelbus import pending
from accelbus.client.faults import Faults
from accelbus.values import UnsupportedValueError, copy_now

_log = logging.getLogger("accelbus")
ARENA_BYTES: Final = 1 << 20
"""Page-locked memory of one device: some 65,000 numbers on their way."""
MOST_ITEMS: Final = 4096
"""Elements of a tensor that is copied without waiting; a larger one is waited for, as in host memory."""
_WORD: Final = 8

Format: TypeAlias = Literal["f", "d", "q"]
"""float32, float64, int64 in a memoryview."""
_BYTES: Final[dict[Format, int]] = {"f": 4, "d": 8, "q": 8}


class Copy(Protocol):
    """One copy on its way."""

    def is_done(self) -> bool:
        """Whether the value has arrived. A look at host memory: any thread may ask."""

    def value(self) -> Any:
        """Return the number, or the elements as a list, and give the room back. To be called once, when it is done."""

    def forget(self) -> None:
        """Nobody will ask for the value: give the room back when the device has stopped writing to it."""


class Copier(Protocol):
    """Copies tensors of one device to host memory without waiting."""

    def begin(self, tensor: Any) -> Copy | None:
        """Start a copy on the tensor's current stream; None when there is no room. Called in the thread that logs.

        Raises:
            CapturingError: the stream records a graph; a copy would become part of it and happen at each replay.
        """


class CapturingError(RuntimeError):
    """The current stream is being captured."""


class _Waiting(NamedTuple):
    copy: Copy
    since: float


class Arrivals:
    """What is on its way for one producer. `begin` runs in the threads that log, `collect` in the pump's.

    Args:
        faults: counts what does not arrive, as ``device_lost``.
        patience: seconds after which a copy counts as lost.
        copier_of: returns the copier of a tensor's device, None if there is none.
    """

    def __init__(self, faults: Faults, *, patience: float, copier_of: Callable[[Any], Copier | None] | None = None) -> None:
        self._faults = faults
        self._patience = patience
        self._copier_of = copier_of or CudaCopier.of
        self._tokens = count(1)
        self._waiting: dict[int, _Waiting] = {}

    def begin(self, tensor: Any) -> Any:
        """Return what stands for *tensor* in its event: a mark, or the value when there is no way without waiting.

        Raises:
            UnsupportedValueError: there is no room for the copy, the stream is being captured, or the tensor is too large even to be
                waited for.
        """
        copier = self._copier_of(tensor)
        if copier is None:
            return copy_now(tensor)
        if tensor.numel() > MOST_ITEMS:
            return copy_now(tensor)
        try:
            copy = copier.begin(tensor)
        except CapturingError as error:
            raise UnsupportedValueError(str(error), "device_lost") from None
        if copy is None:
            raise UnsupportedValueError("too many values are on their way from the device; log less often", "device_lost")
        token = next(self._tokens)
        self._waiting[token] = _Waiting(copy, time.monotonic())
        return pending.mark(token)

    def collect(self) -> dict[int, Any]:
        """Return {token: value} of what has arrived since the last time; None for a value that is given up."""
        arrived: dict[int, Any] = {}
        late = time.monotonic() - self._patience
        # A copy: other threads log meanwhile. In one C call, so nothing gets in between.
        for token, waiting in list(self._waiting.items()):
            is_done = waiting.copy.is_done()
            # Who takes it out has it: the thread that finishes asks as well.
            if (is_done or waiting.since < late) and self._waiting.pop(token, None) is not None:
                arrived[token] = waiting.copy.value() if is_done else self._lost(waiting, f"has not arrived within {self._patience:g} s")
        return arrived

    def give_up(self) -> dict[int, Any]:
        """Return `collect`, with None for all that has not arrived by now."""
        arrived = self.collect()
        for token, waiting in list(self._waiting.items()):
            if self._waiting.pop(token, None) is not None:
                arrived[token] = self._lost(waiting, "had not arrived when the run ended")
        return arrived

    def __len__(self) -> int:
        """How many values are on their way."""
        return len(self._waiting)

    def _lost(self, waiting: _Waiting, why: str) -> object:
        waiting.copy.forget()
        self._faults.count("device_lost", f"a value on a device {why}; it is counted as device_lost")
        return None


class Ring:
    """Who uses which bytes of a buffer. Places are given out in a circle and come back in any order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used: deque[tuple[Place, int]] = deque()
        """In the order in which they were given out, each with where it ends."""
        self._head = self._tail = 0

    def take(self, place: Place, size: int) -> int | None:
        """Return where *place* may have *size* bytes, None when it may not. They are its own until it ``is_free``."""
        while self._used and self._used[0][0].is_free():
            self._tail = self._used.popleft()[1]
        if not self._used:
            self._head = self._tail = 0
        at, end = self._head, self._size
        if self._used and self._head <= self._tail:
            end = self._tail
        elif at + size > end:
            at, end = 0, self._tail
        if at + size > end:
            return None
        self._head = at + size
        self._used.append((place, self._head))
        return at


class Place(Protocol):
    """Who uses bytes of a `Ring`."""

    def is_free(self) -> bool:
        """Whether nobody writes or reads its bytes any more."""


class _CudaCopy:
    """The elements of a tensor, and behind them a word that becomes 1."""

    def __init__(self, memory: memoryview[int], code: Format, shape: tuple[int, ...], items: int) -> None:
        self._memory = memory
        self._words = memory.cast("q")
        self._format: Format = code
        self._shape = shape
        self.size = items * _BYTES[code]
        self._at = self._flag = 0
        self._is_over = False

    def start(self, at: int) -> None:
        """Its place begins at *at*."""
        self._at = at
        self._flag = at // _WORD + -(-self.size // _WORD)
        self._words[self._flag] = 0

    @property
    def elements(self) -> slice:
        """Bytes of the elements."""
        return slice(self._at, self._at + self.size)

    @property
    def flag(self) -> slice:
        """Bytes of the word."""
        return slice(self._flag * _WORD, (self._flag + 1) * _WORD)

    def is_done(self) -> bool:
        return self._words[self._flag] == 1

    def is_free(self) -> bool:
        return self._is_over and self.is_done()

    def value(self) -> Any:
        numbers: memoryview[Any] = self._memory[self.elements].cast(self._format)
        value = _nested(numbers.tolist(), self._shape) if len(numbers) != 1 else numbers[0]
        self._is_over = True
        return value

    def forget(self) -> None:
        self._is_over = True


def _nested(numbers: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Return *numbers* as lists of lists of this *shape*."""
    for width in reversed(shape[1:]):
        numbers = [numbers[at : at + width] for at in range(0, len(numbers), width)] if width else [[] for _ in range(shape[0])]
    return numbers


class CudaCopier:
    """Page-locked memory for the values of one CUDA (or ROCm) device.

    A copy is two transfers on the stream that is current when ``log`` is called: the elements, as float32, float64 or int64, and
    behind them a flag. Transfers of one stream happen in order, so a flag that can be read has its elements before it.
    """

    _all: Final[dict[int, CudaCopier]] = {}

    @classmethod
    def of(cls, tensor: Any) -> CudaCopier | None:
        """Return the copier of the tensor's device, made at its first use; None for devices without one."""
        device = tensor.device
        if device.type != "cuda":
            return None
        copier = cls._all.get(device.index)
        if copier is None:
            copier = cls._all[device.index] = cls(device)
        return copier

    def __init__(self, device: Any, size: int = ARENA_BYTES) -> None:
        """Raises `CapturingError` while a graph is captured: page-locked memory cannot be had then."""
        import ctypes  # most ranks have no need of its megabyte

        self._torch = torch = sys.modules["torch"]
        self._refuse_capture()
        self._arena = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        memory = (ctypes.c_ubyte * size).from_address(self._arena.data_ptr())
        memory.owner = self._arena  # type: ignore[attr-defined]  # a copy outlives its copier when the interpreter ends
        self._memory = memoryview(memory).cast("B")
        self._one = torch.ones(1, dtype=torch.int64, device=device)
        self._ring = Ring(size)
        self._lock = threading.Lock()

    def begin(self, tensor: Any) -> Copy | None:
        self._refuse_capture()
        source = tensor.detach()
        kind, code = self._host_type(source)
        copy = _CudaCopy(self._memory, code, tuple(source.shape), source.numel())
        # A signal handler that logs may have interrupted the call that has the lock: then there is no room for its value.
        if not self._lock.acquire(timeout=0.01):
            return None
        try:
            at = self._ring.take(copy, (-(-copy.size // _WORD) + 1) * _WORD)
            if at is None:
                return None
            copy.start(at)
        finally:
            self._lock.release()
        self._arena[copy.elements].view(kind).copy_(source.to(kind).reshape(-1), non_blocking=True)
        self._arena[copy.flag].view(self._torch.int64).copy_(self._one, non_blocking=True)
        return copy

    def _host_type(self, tensor: Any) -> tuple[Any, Format]:
        torch = self._torch
        if tensor.dtype == torch.float64:
            return torch.float64, "d"
        if tensor.dtype.is_floating_point:
            return torch.float32, "f"
        if tensor.dtype.is_complex:
            raise UnsupportedValueError(f"expected a tensor of real numbers, got {tensor.dtype}")
        return torch.int64, "q"

    def _refuse_capture(self) -> None:
        if self._torch.cuda.is_available() and self._torch.cuda.is_current_stream_capturing():
            raise CapturingError(
                "a CUDA graph is being captured: a value logged now would be copied at every replay; log it after the replay"
            )


__all__ = ["ARENA_BYTES", "MOST_ITEMS", "Arrivals", "CapturingError", "Copier", "Copy", "CudaCopier", "Place", "Ring"]
