"""The spool's interface without a ring: events live in the process and die with it (``durability="memory"``)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from accelbus import frame
from accelbus.journal.batch import Batch
from accelbus.journal.spool_file import MAX_PAYLOAD, SpoolFile


class MemoryQueue:
    """The same interface without a ring: events live in the process and die with it (``durability="memory"``).

    The file, when there is one, has no ring: it proves life and keeps the counters.
    """

    __slots__ = (
        "_average", "_bytes", "_first_seq", "_incoming", "_is_sealed", "_largest", "_limit", "_moving", "_offset", "_taken", "_wake", "_window", "file",
    )  # fmt: skip

    def __init__(
        self, file: SpoolFile | None, *, max_bytes: int, largest: int = MAX_PAYLOAD, wake: Callable[[], None] = lambda: None
    ) -> None:
        """Hold at most about *max_bytes* of events of up to *largest*; their number is bounded by their average size so far."""
        self.file = file
        self._wake = wake
        self._bytes = max_bytes
        self._largest = largest
        self._average = 256.0
        self._limit = int(max_bytes / self._average)
        self._is_sealed = False
        self._incoming: deque[bytes] = deque()
        self._window: list[bytes] = []
        self._first_seq = 1
        self._offset = 0  # events of the window that were taken
        self._taken: deque[int] = deque()
        # Between the two queues an event would be counted by nobody. Reentrant: a signal handler may ask for the count.
        self._moving = threading.RLock()

    def append(self, payload: bytes) -> bool:
        """Queue *payload*; False when the queue is full, or *payload* too large. Safe from any thread and signal handler: one atomic operation."""
        incoming = self._incoming
        count, size = len(incoming), len(payload)
        # Between this comparison and the append is no call: a signal handler that seals comes before or after.
        if count >= self._limit or size > self._largest:
            self._wake()
            return False
        incoming.append(payload)
        return True

    def append_reserved(self, payload: bytes) -> bool:
        """Queue a lifecycle or configuration event whatever the limit; False when sealed."""
        if self._is_sealed:
            return False
        self._incoming.append(payload)
        return True

    def seal(self, last: bytes) -> None:
        """Queue *last*, and refuse everything from here on."""
        self._is_sealed = True
        self._limit = 0
        self._incoming.append(last)

    def take(self, max_events: int, max_bytes: int) -> Batch | None:
        """Return the next events that were not taken yet, None when there are none."""
        with self._moving:
            while self._incoming and len(self._window) - self._offset < max_events:
                self._window.append(self._incoming.popleft())
        payloads: list[bytes] = []
        size = frame.ARRAY_HEADER_BYTES
        for payload in self._window[self._offset : self._offset + max_events]:
            size += len(payload)
            if payloads and size > max_bytes:
                break
            payloads.append(payload)
        if not payloads:
            return None
        self._average += (size / len(payloads) + 64 - self._average) / 8
        self._set_limit()
        first = self._first_seq + self._offset
        self._offset += len(payloads)
        batch = Batch(first, len(payloads), frame.join_events(payloads, len(payloads)))
        self._taken.append(batch.last_seq)
        if self.file is not None:
            self.file.set_last(batch.last_seq)
        return batch

    def release(self, through_seq: int) -> int:
        """Free every taken batch up to *through_seq*; return the last sequence number that is free now."""
        last = self.released_seq
        while self._taken and self._taken[0] <= through_seq:
            last = self._taken.popleft()
        freed = last - self.released_seq
        if freed:
            with self._moving:
                del self._window[:freed]
                self._offset -= freed
                self._first_seq += freed
            self._set_limit()
        return last

    def rewind(self) -> None:
        """Take again from the oldest event that was not released."""
        self._taken.clear()
        self._offset = 0

    @property
    def last_seq(self) -> int:
        with self._moving:
            return self.released_seq + len(self._window) + len(self._incoming)

    @property
    def released_seq(self) -> int:
        return self._first_seq - 1

    @property
    def taken_seq(self) -> int:
        return self.released_seq + self._offset

    @property
    def fill(self) -> float:
        return len(self._incoming) / max(1, self._limit)

    @property
    def kind(self) -> str:
        return "memory"

    def _set_limit(self) -> None:
        limit = max(1, int(self._bytes / self._average) - len(self._window))
        if not self._is_sealed:
            self._limit = limit

    def close(self, *, unlink: bool) -> None:
        if self.file is not None:
            self.file.close(unlink=unlink)
