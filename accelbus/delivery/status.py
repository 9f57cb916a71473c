"""The state of one sink, as its worker reports it and as everybody shows it.

A worker writes one JSON line of `SinkStatus` at least every second; the supervisor adds what only it knows, hands it to the bus
process for the main rank, and leaves the last one in ``sinks/<sink>/status.json`` for who comes after the worker.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["waiting", "starting", "retrying", "running", "up_to_date", "blocked", "finished", "stopped", "fenced"]
"""waiting: somebody else delivers. starting: not yet there. retrying: a call fails and is repeated, or the worker is started again.
running: delivering. up_to_date: nothing in the journal is owed but what a view holds open. blocked: the breaker is open, rows
fail one after the other and wait. finished: the run is closed, everything delivered. stopped: told to leave, owing what the counts say.
fenced: a newer owner delivers."""

Phase: TypeAlias = Literal["idle", "start", "read", "log", "media", "flush", "finish", "exit"]
"""What a worker is doing; each phase but ``idle`` and ``read`` has a deadline."""

DONE: Final = frozenset({"finished", "stopped", "fenced"})


class RankCounts(msgspec.Struct, omit_defaults=True):
    """Values of one rank. ``read = delivered + pending + filtered + superseded + dead_lettered``, at every moment."""

    read: int = 0
    """Read from the journal."""
    delivered: int = 0
    """In points that are durable in the tracker; repeats do not count."""
    pending: int = 0
    """Waiting for other ranks, for the tracker, or for its flush."""
    filtered: int = 0
    superseded: int = 0
    dead_lettered: int = 0
    late: int = 0
    """Came after their point was emitted; counted beside the others."""


class SinkStatus(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Snapshot of one sink."""

    sink: str
    state: State = "starting"
    phase: Phase = "idle"
    phase_seconds: float = 0.0
    """How long the phase has lasted."""
    generation: int = 0
    pid: int = 0
    ranks: dict[int, RankCounts] = {}
    rows: int = 0
    """Rows the tracker has taken, repeats included, by this worker."""
    media: int = 0
    """Media the tracker has taken, the same way."""
    media_waiting: int = 0
    """Media that the tracker has not taken yet."""
    retries: int = 0
    """Failed calls that were or will be repeated."""
    dead_letters: int = 0
    """Lines in the dead letter file: rows, and what was said about the run."""
    failing_rows: int = 0
    """Different rows that failed one after the other; the breaker opens at ``breaker_failures``."""
    restarts: int = 0
    """Workers that ended before their work was done."""
    last_error: str = ""
    url: str = ""
    """Where a person finds the run: the tracker's URL or path."""
    notices: list[str] = []
    """What a person should know once each, in order; the first few."""
    caught_up_ns: int = 0
    """Wall clock when the journal was last read to its end, with everything delivered and durable."""
    lag_seconds: float = 0.0
    """Age of the oldest thing that was read and is not durable; 0 when up to date."""
    reported_ns: int = 0
    """Wall clock when the worker last said so; it reports at least every second while it runs."""
    drained: int = 0
    """Number of the last drain command that is fulfilled."""
    run_status: str = ""
    """Status with which the tracker was finished."""
    row: str = ""
    """Row that is being tried alone, after a crash or hang."""
    journal: dict[str, int] = {}
    """What the journal reader counted: duplicates, gaps, corrupt rows by reason, …"""
    leaving: int | None = None
    """Exit code, once the worker has decided to leave. A process that ends without it has died, whatever its exit code says."""
    cursor_resets: int = 0
    """Cursors that could not be read; everything was delivered again from the beginning."""
    resolved: bytes | None = None
    """`Resolved`, in the one report that brings it."""

    @property
    def values(self) -> RankCounts:
        """The sum over all ranks."""
        total = RankCounts()
        for counts in self.ranks.values():
            for field in RankCounts.__struct_fields__:
                setattr(total, field, getattr(total, field) + getattr(counts, field))
        return total


class Resolved(msgspec.Struct, array_like=True):
    """What the tracker in ``config_from`` made of the configuration. Travels as msgpack: JSON has no nan."""

    config: dict[str, Any] | None
    refusal: str = ""
    """Why there is none."""


encode_line = msgspec.json.Encoder().encode
decode_line = msgspec.json.Decoder(SinkStatus).decode


def write_status(directory: Path, status: SinkStatus) -> None:
    """Leave *status* in *directory*. Not synced: it is for people, the cursor is the truth."""
    temporary = directory / f".status.{os.getpid()}.tmp"
    temporary.write_bytes(encode_line(status) + b"\n")
    temporary.replace(directory / "status.json")


def read_status(directory: Path) -> SinkStatus | None:
    """Return what the last supervisor left in *directory*; None when there is nothing that can be read."""
    try:
        return decode_line((directory / "status.json").read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


__all__ = ["DONE", "Phase", "RankCounts", "Resolved", "SinkStatus", "State", "decode_line", "encode_line", "read_status", "write_status"]
