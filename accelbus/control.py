"""Control messages between a producer and its bus process; they live on the wire only and are never stored.

::

    producer                      bus process
    Hello          ──▶
                   ◀──  Welcome            (or Refused)
    events frames  ──▶
                   ◀──  Ack                cumulative
    Heartbeat      ──▶
                   ◀──  WhoAreYou          a frame came from a peer that never said hello: the bus process is new
                   ◀──  Notice, SinkStates to the main rank
    Bye            ──▶
                   ◀──  Ack with ``final``: everything is synced
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from accelbus import frame
from accelbus.errors import FrameError


class Hello(msgspec.Struct, tag="hello", omit_defaults=True):
    """Open or reopen the conversation. The receiver answers `Welcome` or `Refused`."""

    producer: bytes
    run_id: str
    run_dir: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host: str
    pid: int
    role: str
    launch: bytes
    launcher: str
    base_seq: int
    """First sequence number that is not yet acked; everything before it is safe elsewhere."""
    last_seq: int
    spool: str | None = None
    """Path of the spool on this host, to be opened and salvaged."""
    attempt: int | None = None
    main: bool = False
    """Whether this producer wants notices and sink states."""
    record: dict[str, Any] | None = None
    """The run record as this rank would write it; used when rank 0's does not come. Not kept in the spool."""


class Welcome(msgspec.Struct, tag="welcome", omit_defaults=True):
    """The bus process took the producer in."""

    server: bytes
    """Incarnation of the bus process."""
    attempt: int
    resume_from: int
    """First sequence number to send."""
    credit_bytes: int
    flush_interval: float


class Refused(msgspec.Struct, tag="refused", omit_defaults=True):
    """The bus process does not serve this producer: another run, a newer live producer of its rank, a limit."""

    reason: str


class Ack(msgspec.Struct, tag="ack", omit_defaults=True):
    """Everything up to ``through_seq`` is in the journal."""

    through_seq: int
    credit_bytes: int
    flush_interval: float
    final: bool = False


class WhoAreYou(msgspec.Struct, tag="who", omit_defaults=True):
    """Say hello again."""


class Heartbeat(msgspec.Struct, tag="heartbeat", omit_defaults=True):
    """Sent at least every second, so that the audit can name what was wiped."""

    last_seq: int
    dropped: dict[str, int] = {}


class Bye(msgspec.Struct, tag="bye", omit_defaults=True):
    """Nothing comes after ``final_seq``."""

    final_seq: int
    status: str
    dropped: dict[str, int] = {}


class Notice(msgspec.Struct, tag="notice", omit_defaults=True):
    """A line for the user, printed once by the main rank: a run's URL, a tracker's trouble."""

    level: str
    text: str
    sink: str = ""


class SinkStates(msgspec.Struct, tag="sinks", omit_defaults=True):
    """{sink: state} for the main rank's progress line; see `accelbus.delivery.status.SinkStatus`."""

    sinks: dict[str, Any]


Message: TypeAlias = Hello | Welcome | Refused | Ack | WhoAreYou | Heartbeat | Bye | Notice | SinkStates

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def pack(message: Message, *, producer: bytes = frame.NOBODY) -> bytes:
    """Return *message* as a control frame."""
    return frame.pack(frame.CONTROL, _encode(message), producer=producer)


def unpack(checked: frame.Frame) -> Message:
    """Decode the message in a control frame.

    Raises:
        FrameError: ``control`` when the body is no message this version knows.
    """
    try:
        return _decode(checked.body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError("control", f"expected a control message, got {bytes(checked.body[:32])!r}… ({error})") from error
