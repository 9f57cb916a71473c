"""The ring in a spool file: what `Run.log` appends to and the pump takes from.

The format is described in `accelbus.journal.spool_file` and, of the records, in `accelbus.journal.ring`;
`accelbus.journal.memory_queue` is the same interface without a file.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Final

from accelbus import frame
from accelbus.journal import ring
from accelbus.journal.batch import Batch
from accelbus.journal.ring import WRITES
from accelbus.journal.spool_file import HEADER_BYTES, MAX_CAPACITY, MAX_PAYLOAD, SpoolFile

_RESERVED_WORDS: Final = 8 * 1024
"""64 KiB that only lifecycle and configuration events may use."""
_WAKES_PER_LAP: Final = 8
_NOTHING_FITS: Final = HEADER_BYTES + MAX_CAPACITY
"""Limit with which every event takes the slow path."""


class _Waiting:
    """An event on its way around somebody else's append."""

    __slots__ = ("is_left", "kept", "payload", "reserved")

    def __init__(self, payload: bytes, reserved: int) -> None:
        self.payload = payload
        self.reserved = reserved
        self.kept: bool | None = None
        self.is_left = False
        """Its append has returned: if it does not fit, nobody but us can count it."""


class Spool:
    """Ring of events in a `SpoolFile`. Many threads append, one thread takes, releases and rewinds."""

    __slots__ = (
        "_capacity", "_head", "_is_sealed", "_lap", "_largest", "_limit", "_map", "_next_seq", "_read", "_read_seq", "_tail", "_tail_seq", "_taken", "_token",
        "_waiting", "_wake", "_words", "file",
    )  # fmt: skip

    def __init__(self, file: SpoolFile, *, largest: int = MAX_PAYLOAD, wake: Callable[[], None] = lambda: None) -> None:
        """Use the ring in *file* for events of up to *largest* bytes; call *wake* whenever another eighth of it has been filled."""
        if not 0 < file.capacity <= MAX_CAPACITY or file.capacity % 4096:
            raise ValueError(f"expected a ring of whole 4 KiB pages up to {MAX_CAPACITY} bytes, got {file.capacity}")
        self.file = file
        self._map = file.map
        self._words = memoryview(file.map)[HEADER_BYTES:].cast("Q")
        self._capacity = file.capacity // 8
        self._largest = largest
        self._wake = wake
        # One element: who deletes it may write. Cheaper than a lock (40 ns instead of 130) and safe to find taken in a signal
        # handler, where waiting for the interrupted holder would deadlock.
        self._token: list[None] = [None]
        self._waiting: deque[_Waiting] = deque()
        self._is_sealed = False
        # Positions count words since the spool was created. `_head` and `_limit` are offsets in the file, for the hot path: of the next
        # record's commit word, and of the lowest place where the word below it may lie.
        self._lap = self._tail = self._read = 0
        self._head = ring.place_of(0, self._capacity)
        self._limit = _NOTHING_FITS
        self._next_seq = 1
        self._tail_seq = self._read_seq = 1
        self._taken: deque[tuple[int, int]] = deque()  # (last seq, position after it) of batches not yet released

    def append(self, payload: bytes) -> bool:
        """Commit *payload* as the next event; False when the ring is full.

        Safe from any thread, and from a signal handler or finaliser that interrupted another `append` in the same thread: then
        the interrupted call commits both before it returns. The cost is one call that copies and commits.
        """
        size = len(payload)
        token = self._token
        try:
            del token[0]
        except IndexError:
            return self._append_contended(payload)
        kept = True
        try:
            at = self._head - (size + 23 & -8)
            if at < self._limit:
                kept = self._append_at_limit(payload, _RESERVED_WORDS)
            else:
                try:
                    write = WRITES[size]
                except IndexError:
                    write = ring.make_write(size)
                seq = self._next_seq
                try:
                    # The room is taken first: a signal handler that raises runs after the call, and finds all of it done.
                    self._next_seq, self._head = seq + 1, at
                    write(self._map, at, payload, size, seq)
                except BaseException:
                    self._complete(at, payload, seq)
                    raise
        finally:
            token.append(None)
        if self._waiting:
            self._append_waiting(None)
        return kept

    def append_reserved(self, payload: bytes) -> bool:
        """Like `append`, for lifecycle and configuration events: they may use the reserved room too."""
        return self._append_waiting(_Waiting(payload, 0))

    def seal(self) -> bool:
        """Refuse everything from here on, also from threads that are just about to append: no event follows the last one.

        False: a call further down this very stack is in the middle of an append, and will still write when it goes on.
        """
        deadline = time.monotonic() + _TOKEN_LOST_AFTER
        while True:
            try:
                del self._token[0]
            except IndexError:
                if _is_interrupted_below(self):
                    return False
                if time.monotonic() > deadline and not _is_held(self):
                    self._token.append(None)
                time.sleep(0)
                continue
            self._is_sealed = True
            self._limit = _NOTHING_FITS
            self._token.append(None)
            return True

    def take(self, max_events: int, max_bytes: int) -> Batch | None:
        """Return the next events that were not taken yet, None when there are none."""
        count = min(self._next_seq - self._read_seq, max_events)
        if count <= 0:
            return None
        read, words, file, capacity = ring.read, self._words, self._map, self._capacity
        payloads: list[bytes] = []
        position, size = self._read, frame.ARRAY_HEADER_BYTES
        for seq in range(self._read_seq, self._read_seq + count):
            found = read(words, file, position % capacity, seq)
            if found is None:
                break  # a debugger has stopped its append
            payload, step = found
            size += len(payload)
            if payloads and size > max_bytes:
                break
            payloads.append(payload)
            position += step
        if not payloads:
            return None
        batch = Batch(self._read_seq, len(payloads), frame.join_events(payloads, len(payloads)))
        self._read, self._read_seq = position, self._read_seq + len(payloads)
        self._taken.append((batch.last_seq, position))
        return batch

    def release(self, through_seq: int) -> int:
        """Free every taken batch up to *through_seq*; return the last sequence number that is free now."""
        moved = False
        while self._taken and self._taken[0][0] <= through_seq:
            last, self._tail = self._taken.popleft()
            self._tail_seq = last + 1
            moved = True
        if moved:
            self.file.set_tail(self._tail_seq, self._tail % self._capacity)
        return self._tail_seq - 1

    def rewind(self) -> None:
        """Take again from the oldest event that was not released."""
        self._taken.clear()
        self._read, self._read_seq = self._tail, self._tail_seq

    @property
    def last_seq(self) -> int:
        """Sequence number of the last committed event, 0 for none."""
        return self._next_seq - 1

    @property
    def released_seq(self) -> int:
        """Everything up to here is safe elsewhere."""
        return self._tail_seq - 1

    @property
    def taken_seq(self) -> int:
        """Everything up to here was taken."""
        return self._read_seq - 1

    @property
    def fill(self) -> float:
        """Used share of the ring, 0 to 1."""
        return (self._lap + self._index - self._tail) / self._capacity

    @property
    def kind(self) -> str:
        return "ring"

    def close(self, *, unlink: bool) -> None:
        """Unmap the file; *unlink* removes it, to be used only when nothing in it is owed."""
        self._words.release()
        self.file.close(unlink=unlink)

    @property
    def _index(self) -> int:
        """Words between the top of the ring and the next record."""
        return self._capacity - 1 - (self._head - HEADER_BYTES >> 3)

    def _append_at_limit(self, payload: bytes, reserved: int) -> bool:
        """Append with the token held when the hot path's limit was reached: wrap around, find more room, or say full."""
        if self._is_sealed:
            return False
        needed = ring.words_of(len(payload))
        capacity = self._capacity
        reserved = min(reserved, capacity // 4)
        lap, index = self._lap, self._index
        # An exception from a signal handler may end this call anywhere: the hot path must then come back here.
        self._limit = _NOTHING_FITS
        # The word below a record is the next commit word, and must be free as well.
        wraps = index + needed >= capacity
        if wraps:
            lap, index = lap + capacity, 0
        free = self._tail + capacity - lap - index
        if len(payload) > self._largest or needed + 1 + reserved > free:
            self._wake()
            return False
        if wraps:
            self._wrap(lap)
        head = index + needed
        self._commit(payload, ring.place_of(head, capacity))
        # The hot path may go on until the end of the ring, the reserve, or the next eighth, where the pump is woken. It does not
        # look at sizes: whatever ends before the limit must be small enough.
        step = min(capacity // _WAKES_PER_LAP, self._largest >> 3)
        last = min(capacity - 1, index + free - 1 - min(_RESERVED_WORDS, capacity // 4), head + step)
        self._wake()
        self._limit = ring.place_of(last, capacity)
        return True

    def _wrap(self, lap: int) -> None:
        """Go on at the top of the ring. What is there from the last lap is cleared before a reader is sent there."""
        self._words[self._capacity - 1] = 0
        self._words[self._head - HEADER_BYTES >> 3] = self._next_seq | ring.WRAP
        self._lap, self._head = lap, ring.place_of(0, self._capacity)

    def _commit(self, payload: bytes, at: int) -> None:
        """Do what `append` does itself."""
        seq, write = self._next_seq, ring.make_write(len(payload))
        try:
            self._next_seq, self._head = seq + 1, at
            write(self._map, at, payload, len(payload), seq)
        except BaseException:
            self._complete(at, payload, seq)
            raise

    def _complete(self, at: int, payload: bytes, seq: int) -> None:
        """An exception came between taking the room for a record and its end, out of a trace function: leave no hole in the ring."""
        if self._head == at and self._words[(at - HEADER_BYTES >> 3) + ring.words_of(len(payload))] != seq:
            ring.make_write(len(payload))(self._map, at, payload, len(payload), seq)

    def _append_contended(self, payload: bytes) -> bool:
        return self._append_waiting(_Waiting(payload, _RESERVED_WORDS))

    def _append_waiting(self, own: _Waiting | None) -> bool:
        """Commit what waits, *own* included, as soon as whoever holds the token lets go of it; False when *own* did not fit.

        Returns at once when the holder is a call further down this very stack: it commits the waiting events when it goes on.
        """
        if own is not None:
            self._waiting.append(own)
        deadline = time.monotonic() + _TOKEN_LOST_AFTER
        while self._waiting if own is None else own.kept is None:
            try:
                del self._token[0]
            except IndexError:
                if _is_interrupted_below(self):
                    if own is not None:
                        own.is_left = True
                    return True
                if time.monotonic() > deadline and not _is_held(self):
                    # The exception of a signal handler hit between taking the token and the try block.
                    self._token.append(None)
                time.sleep(0)
                continue
            try:
                self._commit_waiting()
            finally:
                self._token.append(None)
        return own is None or bool(own.kept)

    def _commit_waiting(self) -> None:
        while self._waiting:
            one = self._waiting[0]
            one.kept = self._append_at_limit(one.payload, one.reserved)
            if not one.kept and one.is_left:
                self.file.count_dropped("full")
            self._waiting.popleft()


_TOKEN_LOST_AFTER: Final = 0.1
_APPEND = Spool.append.__code__
_COMMIT = Spool._commit_waiting.__code__  # noqa: SLF001
_CONTENDED = Spool._append_contended.__code__  # noqa: SLF001
_WAITING = Spool._append_waiting.__code__  # noqa: SLF001
_ENTRIES = frozenset({_APPEND, _CONTENDED, _WAITING, Spool.append_reserved.__code__})


def _is_interrupted_below(spool: Spool) -> bool:
    """Whether a call on *spool* further down this thread's stack was interrupted by the code that led here."""
    stack: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while stack is not None and stack.f_code in _ENTRIES:
        stack = stack.f_back
    while stack is not None:
        if stack.f_code in _ENTRIES and stack.f_locals.get("self") is spool:
            return True
        stack = stack.f_back
    return False


def _is_held(spool: Spool) -> bool:
    """Whether some thread is between taking and returning the token of *spool*."""
    for stack in sys._current_frames().values():  # noqa: SLF001
        inner, outer = None, stack
        while outer is not None:
            code = outer.f_code
            holds = code is _COMMIT or (code is _APPEND and inner not in (_CONTENDED, _WAITING))
            if holds and outer.f_locals.get("self") is spool:
                return True
            inner, outer = code, outer.f_back  # type: ignore[assignment]  # the end of the stack
    return False
