"""Consecutive events of one producer, ready to become a frame."""

from __future__ import annotations

from typing import NamedTuple

from accelbus import frame


class Batch(NamedTuple):
    """Consecutive events, joined into the body of a frame."""

    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    body: bytes

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    def to_frame(self, producer: bytes, launch: bytes) -> bytes:
        """Return the frame that carries this batch."""
        return frame.pack(frame.EVENTS, self.body, producer=producer, launch=launch, first_seq=self.first_seq, count=self.count)
