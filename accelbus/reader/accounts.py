"""The account of one producer: where its events are."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from accelbus.journal.intervals import Intervals, Range
from accelbus.journal.producers import ProducerInfo
from accelbus.reader.evidence import ENDED, Witness, most_dropped

_RANGES_SHOWN = 5


class ProducerAudit(msgspec.Struct, kw_only=True):
    """One producer: a rank in one attempt, or a process that attached to the run."""

    producer: str
    rank: int
    attempt: int
    role: str
    host: str
    pid: int
    state: str
    """alive; finished, dead or lost as a bus process saw it; gone: its process is not there any more; unknown: it was on another
    host and nobody reports."""
    status: str
    """How it ended; empty when nobody said."""
    logged: int
    """Highest sequence number it is known to have used."""
    acked: int
    """Up to here everything is in the run's directory, or was said to be."""
    journal: int
    """Events in the journal."""
    pending: int
    """On their way: in a spool on this node, or with a producer that lives."""
    lost: int
    """In neither."""
    missing: list[Range]
    """Sequence numbers that are not in the journal, pending ones included."""
    values: int
    """Values in its events in the journal."""
    dropped: dict[str, int]
    """{reason: what it did not keep}: events, for ``unsupported_value`` and the like values."""


def account_for(
    producer: bytes, info: ProducerInfo, witness: Witness, *, bus_is_running: bool, values: int
) -> tuple[ProducerAudit, list[str]]:
    """Return the account, and a sentence about what is lost if something is.

    Args:
        producer: uuid.
        info: what the journal says.
        witness: what others say.
        bus_is_running: whether the bus process's word is of now.
        values: in its events in the journal.
    """
    alive = witness.is_alive(info, bus_is_running=bus_is_running)
    seen = Intervals(info.read)
    logged = max(info.last_seq, witness.last_seq, seen.highest or 0)
    missing = seen.missing(1, logged)
    pending = _size(seen.missing(witness.safe_seq + 1, logged)) if alive else witness.in_spool(missing)
    found = ProducerAudit(
        producer=producer.hex(),
        rank=info.rank,
        attempt=info.attempt,
        role=info.role,
        host=info.host,
        pid=info.pid,
        state=_state(info, alive=alive),
        status=info.status or (witness.spool.status if witness.spool is not None else ""),
        logged=logged,
        acked=max(witness.safe_seq, missing[0][0] - 1 if missing else logged),
        journal=len(seen),
        pending=pending,
        lost=_size(missing) - pending,
        missing=missing,
        values=values,
        dropped=most_dropped(info.dropped, witness.dropped),
    )
    return found, [_loss(found, alive=alive)] if found.lost else []


def _size(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _loss(found: ProducerAudit, *, alive: bool | None) -> str:
    listed = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in found.missing[:_RANGES_SHOWN])
    if len(found.missing) > _RANGES_SHOWN:
        listed += f" and {len(found.missing) - _RANGES_SHOWN} more ranges"
    who = f"rank {found.rank}, attempt {found.attempt}" + (f" ({found.role})" if found.role not in ("", "trainer") else "")
    if alive is None:
        return (
            f"{who}: {found.lost} events are not in the journal (numbers {listed}); they may be in a spool on "
            f"{found.host or 'its host'}: run accelbus salvage there"
        )
    why = "they were acked, and are not in the journal" if alive else "its process is gone and no spool holds them"
    return f"{who}: {found.lost} of {found.logged} events are lost (numbers {listed}); {why}"


def _state(info: ProducerInfo, *, alive: bool | None) -> str:
    if alive:
        return "alive"
    if info.state in ENDED:
        return info.state
    if alive is None:
        return "unknown"
    return "finished" if info.status == "finished" else "gone"


__all__ = ["ProducerAudit", "account_for"]
