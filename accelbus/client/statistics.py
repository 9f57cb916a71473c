"""A producer's counters, as `Run.statistics` returns them."""

from __future__ import annotations

import msgspec


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of one producer; counts are events unless they say otherwise."""

    logged: int = 0
    acked: int = 0
    """Safe outside this process: in the journal, or spilled into it."""
    pending: int = 0
    on_device: int = 0
    """Values of logged events that are still on their way from a device."""
    dropped: dict[str, int] = {}
    """{reason: events or values not kept}"""
    spool: str = "none"
    """tmpfs, disk, memory, none"""
    fill: float = 0.0
    """Used share of the queue, 0 to 1."""
    connected: bool = False
    attempt: int | None = None
    frames: int = 0
    resent: int = 0
    hellos: int = 0
    reconnects: int = 0
    spilled: int = 0
    spill_errors: int = 0
    bad_frames: int = 0
    errors: int = 0
    """Turns of the thread that moves events which ended in an exception."""
    console_left_out: int = 0
    """Printed lines that are not recorded."""
