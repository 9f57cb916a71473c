"""Control messages between a producer and its bus process; they live on the wire only and are never stored.

::

    producer                      bus process
    Hello          ──▶
                   ◀──  Welcome            (or Refused)
    events frames  ──▶
                   ◀──  Ack                cumulative
    Handover       ──▶                       what the main rank's trackers need and nobody stores
    Heartbeat      ──▶
                   ◀──  WhoAreYou          a frame came from a peer that never said hello: the bus process is new
                   ◀──  Notice, SinkStates to the main rank
                   ◀──  Verdict            when the run requires trackers, or has its configuration from one
    Bye            ──▶
                   ◀──  Ack with ``final``: everything is synced
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from accelbus import frame
from accelbus.errors import FrameError
from accelbus.events import STATUSES

# What a peer says is checked when it is decoded: a number that nobody could count to must not get into books and files.
Uuid: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
Seq: TypeAlias = Annotated[int, Meta(ge=0, le=frame.LAST_SEQ)]
Number: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
Ranks: TypeAlias = Annotated[int, Meta(ge=1, le=2**20)]
Text: TypeAlias = Annotated[str, Meta(max_length=4096, pattern=r"^[^\0]*\Z")]
"""Some are paths: with a NUL in one, system calls raise what nobody expects of a path."""
Dropped: TypeAlias = Annotated[dict[Text, Seq], Meta(max_length=256)]
Ending: TypeAlias = Annotated[str, Meta(pattern=f"^({'|'.join(STATUSES)})$")]


class Hello(msgspec.Struct, tag="hello", omit_defaults=True):
    """Open or reopen the conversation. The receiver answers `Welcome` or `Refused`."""

    producer: Uuid
    run_id: Text
    run_dir: Text
    rank: Number
    world_size: Ranks
    local_rank: Number
    local_world_size: Ranks
    host: Text
    pid: Number
    role: Text
    launch: Uuid
    launcher: Text
    base_seq: Seq
    """First sequence number that is not yet acked; everything before it is safe elsewhere."""
    last_seq: Seq
    spool: Text | None = None
    """Path of the spool on this host, to be opened and salvaged."""
    attempt: Number | None = None
    main: bool = False
    """Whether this producer wants notices and sink states."""
    record: dict[str, Any] | None = None
    """The run record as this rank would write it; used when rank 0's does not come. Not kept in the spool."""
    may_restart: bool = False
    """Its launcher will start the ranks again if one fails."""
    started_by: tuple[Number, Seq] | None = None
    """Process id and start time of its launcher."""
    spool_kind: Text = ""
    """What its events lie on until they are acked: tmpfs, disk, memory. Empty: it does not say."""

    def __post_init__(self) -> None:
        if not 1 <= self.base_seq <= self.last_seq + 1:
            raise ValueError(f"expected base_seq from 1 to last_seq + 1, got {self.base_seq} and {self.last_seq}")
        if self.rank >= self.world_size:
            raise ValueError(f"expected a rank below the world size of {self.world_size}, got {self.rank}")


class Welcome(msgspec.Struct, tag="welcome", omit_defaults=True):
    """The bus process took the producer in."""

    server: bytes
    """Incarnation of the bus process."""
    attempt: int
    resume_from: int
    """First sequence number to send."""
    credit_bytes: int
    flush_interval: float


class Handover(msgspec.Struct, tag="handover", omit_defaults=True):
    """What the main rank hands over to its trackers, after each `Welcome`. It may hold credentials: it goes over a socket file of the
    user's own, stays in memory, and is in no event, file, log or process argument.
    """

    environ: Annotated[dict[str, str], Meta(max_length=65536)] = {}
    """Environment of the main rank at ``init``: what trackers read there is the trainer's, whichever rank started the bus process."""
    trackers: Annotated[dict[Text, bytes], Meta(max_length=256)] = {}
    """{sink: tracker class or instance by value}, of those that no other process could import."""

    def __repr__(self) -> str:
        return f"<Handover of {len(self.environ)} variables, {len(self.trackers)} trackers>"


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

    last_seq: Seq
    dropped: Dropped = {}


class Bye(msgspec.Struct, tag="bye", omit_defaults=True):
    """Nothing comes after ``final_seq``."""

    final_seq: Seq
    status: Ending
    dropped: Dropped = {}


class Notice(msgspec.Struct, tag="notice", omit_defaults=True):
    """A line for the user, printed once by the main rank: a run's URL, a tracker's trouble."""

    level: str
    text: str
    sink: str = ""


class SinkStates(msgspec.Struct, tag="sinks", omit_defaults=True):
    """{sink: state} for the main rank's progress line; see `accelbus.delivery.status.SinkStatus`."""

    sinks: dict[str, Any]


class Verdict(msgspec.Struct, tag="verdict", omit_defaults=True):
    """Whether the required trackers have started: the same answer for every rank, given once."""

    ok: bool
    reason: str = ""
    config: dict[str, Any] | None = None
    """What the tracker in ``config_from`` made of the configuration."""


Message: TypeAlias = Hello | Welcome | Handover | Refused | Ack | WhoAreYou | Heartbeat | Bye | Notice | SinkStates | Verdict

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
