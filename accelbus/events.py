"""What travels: a tagged union of msgspec structs.

Events are encoded as msgpack arrays whose first element is an integer tag. Rules that keep old journals readable for ever: a tag
is never reused, fields are appended at the end with a default and never reordered, a field's type never widens into one that old
readers refuse. Tags 1-31 come from producers, 32-63 are records of a bus process. ``tests/unit/golden`` keeps the bytes of every
released shape.

To add an event: a struct here with the next free tag, its place in `Event` or `Record`, a golden file.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

Scalar: TypeAlias = float | int | str | bool | None
"""A value as it travels. Sequences travel as lists of scalars."""

METRICS_TAG: Final = 1


class Metrics(msgspec.Struct, array_like=True, tag=METRICS_TAG, gc=False):
    """One ``log`` call. The hot path writes these bytes from a tuple; a test keeps the two equal."""

    time_ns: int
    """Wall clock of the producer."""
    step: int | None
    """None: the producer never gave a step; ``auto_step`` counts its calls."""
    values: dict[Any, Any]
    auto_step: int = 0
    sinks: tuple[str, ...] = ()
    """Whom it is for; nobody named: everybody. So in all events that have this field."""
    log_kwargs: dict[str, dict[str, Any]] | None = None
    """{sink: keyword arguments for its ``log``}"""


class ConfigUpdate(msgspec.Struct, array_like=True, tag=2):
    """Hyperparameters: the initial configuration or a later update, merged key by key."""

    time_ns: int
    values: dict[str, Any]
    sinks: tuple[str, ...] = ()


class RunStart(msgspec.Struct, array_like=True, tag=3):
    """First event of every producer: who it is. Readers learn rank and attempt from it, whatever path it took."""

    time_ns: int
    run_id: str
    rank: int
    world_size: int
    local_rank: int
    host: str
    pid: int
    role: str = "trainer"
    """Producers with another role (evaluator, worker, …) never hold the trainer's steps."""
    launch: bytes = bytes(16)
    """Launch token: the same for all ranks that one launcher started together."""
    attempt: int | None = None
    """Explicit attempt given to ``init``; normally None: the bus process assigns it."""
    launcher: str = ""


class RunEnd(msgspec.Struct, array_like=True, tag=4):
    """Last event of a producer that ended on its own terms."""

    time_ns: int
    status: str
    """finished, failed, preempted"""
    reason: str = ""


class MetricDefinition(msgspec.Struct, array_like=True, tag=5):
    """How keys like ``pattern`` are to be shown; see `accelbus.tracking.GeneralTracker.define_metric`."""

    time_ns: int
    pattern: str
    axis: str = ""
    summary: str = ""
    goal: str = ""
    sinks: tuple[str, ...] = ()


class Summary(msgspec.Struct, array_like=True, tag=6):
    """Single values of the whole run, merged key by key."""

    time_ns: int
    values: dict[str, Any]
    sinks: tuple[str, ...] = ()


class RunFacts(msgspec.Struct, array_like=True, tag=7):
    """The run record: command, git, packages, hosts, launcher, … Merged key by key."""

    time_ns: int
    facts: dict[str, Any]


class ConsoleLines(msgspec.Struct, array_like=True, tag=8):
    """What a producer printed, without the line ends."""

    time_ns: int
    lines: list[str]
    stream: str = "stdout"


class Fill(msgspec.Struct, array_like=True, tag=9):
    """Values that were on their way from a device when their events were written; see `accelbus.pending`."""

    time_ns: int
    values: dict[int, Any]
    """{token of the mark: number, or list of numbers; None: it did not arrive, and is counted as ``device_lost``}"""


Event: TypeAlias = Metrics | ConfigUpdate | RunStart | RunEnd | MetricDefinition | Summary | RunFacts | ConsoleLines | Fill


class ProducerJoined(msgspec.Struct, array_like=True, tag=32):
    """A bus process (or a salvager) assigned this producer to an attempt."""

    time_ns: int
    producer: bytes
    rank: int
    world_size: int
    attempt: int
    role: str
    host: str
    pid: int
    launch: bytes


class ProducerState(msgspec.Struct, array_like=True, tag=33):
    """What a bus process learned about a producer."""

    time_ns: int
    producer: bytes
    state: str
    """alive, silent (no heartbeat), finished (said goodbye), dead (its process is gone), lost (its host is)"""
    last_seq: int
    """Highest sequence number the producer is known to have written."""
    status: str = ""
    """For finished and dead: finished, failed, preempted, killed."""
    dropped: dict[str, int] = {}
    """{reason: events the producer counted as not kept}"""


class Tick(msgspec.Struct, array_like=True, tag=34, gc=False):
    """Time passed with nothing else to write. Views know time only from the journal, so a replay sees what live reading saw."""

    time_ns: int


class RunClosed(msgspec.Struct, array_like=True, tag=35):
    """All producers are gone and their events are in the journal; written again when the run is resumed and closed again."""

    time_ns: int
    status: str


Record: TypeAlias = ProducerJoined | ProducerState | Tick | RunClosed
AnyEvent: TypeAlias = Event | Record

TRAINER: Final = "trainer"

STATUSES: Final = ("finished", "preempted", "lost", "killed", "failed")
"""How a producer or run ended, from best to worst; a run has the worst status of its ranks."""


def worst_status(statuses: list[str]) -> str:
    """Return the worst of *statuses*, ``finished`` for none."""
    return max(statuses, key=STATUSES.index, default="finished")


DROP_REASONS: Final = (
    "full",
    "spill_full",
    "closed",
    "bad_step",
    "bad_values",
    "unsupported_value",
    "too_large",
    "blob_full",
    "device_lost",
    "blocked",
    "disk_error",
    "forked",
)
"""Why a producer did not keep an event or value. The order is the spool header's: append only."""

FAULTS: Final = frozenset({"bad_step", "bad_values", "unsupported_value", "too_large"})
"""The reasons that are mistakes in what was passed to ``log``; all others are losses."""
