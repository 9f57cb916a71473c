"""The ring in a spool file: what `Run.log` appends to and the pump takes from.

The format is described in `accelbus.journal.spool_file` and, of the records, in `accelbus.journal.ring`;
`accelbus.journal.memory_queue` is the same interface without a file.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import CodeType
from typing import Final

from accelbus import frame
from accelbus.journal import ring, stacks
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
        if not file.capacity:
            raise ValueError("expected a file with a ring, got one without")
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
            try:
                write = WRITES[size]
            except IndexError:
                write = ring.make_write(size)
            at = self._head - (size + 23 & -8)
            if at < self._limit:
                kept = self._append_at_limit(payload, _RESERVED_WORDS)
            else:
                seq = self._next_seq
                try:
                    # Between the comparison and the write is no call, so no signal handler: one that seals comes before or after.
                    # The room is taken first: if the handler raises, all of it is done.
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
        """Like `append`, for lifecycle and configuration events: they may use the reserved room too. False also when sealed."""
        return self._append_waiting(_Waiting(payload, 0))

    def seal(self, last: bytes) -> None:
        """Commit what waits and *last*, and refuse everything from here on, also from threads that are just about to append.

        An append further down this very stack has committed its event already, or will find that it is refused. So the spool may be
        closed, whoever calls this.
        """
        deadline = time.monotonic() + _TOKEN_LOST_AFTER
        while True:
            try:
                del self._token[0]
            except IndexError:
                if stacks.is_below(self, _ENTRIES):
                    self._seal(last)  # in its place: it does not go on before we return
                    return
                self._wait_for_token(deadline)
                continue
            try:
                self._seal(last)
            finally:
                self._token.append(None)
            return

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

    def _append_at_limit(self, payload: bytes, reserved: int, one: _Waiting | None = None, *, sealing: bool = False) -> bool:
        """Append with the token held when the hot path's limit was reached: wrap around, find more room, or say full."""
        needed = ring.words_of(len(payload))
        capacity = self._capacity
        reserved = min(reserved, capacity // 4)
        lap, index = self._lap, self._index
        # An exception from a signal handler may end this call anywhere: the hot path must then come back here.
        self._limit = _NOTHING_FITS
        # The word below a record is the next commit word, and must be free as well.
        if index + needed >= capacity:
            lap, index = lap + capacity, 0
        free = self._tail + capacity - lap - index
        if len(payload) > self._largest or needed + 1 + reserved > free:
            self._wake()
            return False
        head = index + needed
        # The hot path may go on until the end of the ring, the reserve, or the next eighth, where the pump is woken. It does not
        # look at sizes: whatever ends before the limit must be small enough.
        step = min(capacity // _WAKES_PER_LAP, self._largest >> 3)
        last = min(capacity - 1, index + free - 1 - min(_RESERVED_WORDS, capacity // 4), head + step)
        limit = ring.place_of(last, capacity)
        if not self._commit(payload, lap, ring.place_of(head, capacity), ring.make_write(len(payload)), one, sealing):
            return False
        self._wake()
        if not self._is_sealed:
            self._limit = limit
        return True

    def _commit(self, payload: bytes, lap: int, at: int, write: ring.Write, one: _Waiting | None, sealing: bool) -> bool:
        """Write a record, and whatever sends the reader to it; False when the spool has been sealed."""
        size, seq = len(payload), self._next_seq
        # From here to the write is no call, so no signal handler that seals, and nobody but us has moved the head before.
        if self._is_sealed and not sealing:
            return False
        if one is not None:
            one.kept = True
        if lap != self._lap:
            # What is at the top from the last lap is cleared before a reader is sent there.
            self._words[self._capacity - 1] = 0
            self._words[self._head - HEADER_BYTES >> 3] = seq | ring.WRAP
        try:
            self._next_seq, self._lap, self._head = seq + 1, lap, at
            write(self._map, at, payload, size, seq)
        except BaseException:
            self._complete(at, payload, seq)
            raise
        return True

    def _complete(self, at: int, payload: bytes, seq: int) -> None:
        """An exception came between taking the room for a record and its end, out of a trace function: leave no hole in the ring."""
        if not self._is_sealed and self._head == at and self._words[(at - HEADER_BYTES >> 3) + ring.words_of(len(payload))] != seq:
            ring.make_write(len(payload))(self._map, at, payload, len(payload), seq)

    def _seal(self, last: bytes) -> None:
        self._is_sealed = True
        self._limit = _NOTHING_FITS
        self._waiting.append(_Waiting(last, 0))
        self._commit_waiting(sealing=True)

    def _append_contended(self, payload: bytes) -> bool:
        return self._append_waiting(_Waiting(payload, _RESERVED_WORDS))

    def _append_waiting(self, own: _Waiting | None) -> bool:
        """Commit what waits, *own* included, as soon as whoever holds the token lets go of it; False when *own* did not fit.

        Returns at once when the holder is a call further down this very stack: it commits the waiting events when it goes on.
        """
        if own is not None:
            if self._is_sealed:
                return False
            self._waiting.append(own)
        deadline = time.monotonic() + _TOKEN_LOST_AFTER
        while self._waiting if own is None else own.kept is None:
            try:
                del self._token[0]
            except IndexError:
                if stacks.is_below(self, _ENTRIES):
                    if own is not None:
                        own.is_left = True
                    return True
                self._wait_for_token(deadline)
                continue
            try:
                self._commit_waiting()
            finally:
                self._token.append(None)
        return own is None or bool(own.kept)

    def _wait_for_token(self, deadline: float) -> None:
        if time.monotonic() > deadline and not stacks.is_anywhere(self, _holds_token):
            # The exception of a signal handler hit between taking the token and the try block.
            self._token.append(None)
        time.sleep(0)

    def _commit_waiting(self, *, sealing: bool = False) -> None:
        """With the token held. A handler that seals in the middle of it commits the rest itself, also what we have begun with."""
        while self._waiting:
            one = self._waiting[0]
            if one.kept is None and not self._append_at_limit(one.payload, one.reserved, one, sealing=sealing) and one.kept is None:
                one.kept = False
                if one.is_left:
                    self.file.count_dropped("full")
            if self._waiting and self._waiting[0] is one:
                self._waiting.popleft()


_TOKEN_LOST_AFTER: Final = 0.1
_APPEND = Spool.append.__code__
_COMMIT = Spool._commit_waiting.__code__  # noqa: SLF001
_SEAL = Spool._seal.__code__  # noqa: SLF001
_CONTENDED = Spool._append_contended.__code__  # noqa: SLF001
_WAITING = Spool._append_waiting.__code__  # noqa: SLF001
_ENTRIES = frozenset({_APPEND, _CONTENDED, _WAITING, Spool.append_reserved.__code__})


def _holds_token(code: CodeType, called: CodeType | None) -> bool:
    """Whether a call that is in *called* is between taking and returning the token."""
    return code in (_COMMIT, _SEAL) or (code is _APPEND and called not in (_CONTENDED, _WAITING))
