"""File descriptors of the bus process and its workers: as many as it may have, or a word on why that is not enough."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

NEEDED: Final = 64
"""The socket's own, the journal, one for each rank's connection and spool, three for each worker. ZeroMQ aborts the process that has none
left while it opens a socket, so fewer are refused before."""
_WANTED: Final = 65_536
"""More than any run needs; a limit of a billion makes programs slow that close whatever may be open."""


def raise_limit() -> int:
    """Allow this process and those that it starts as many descriptors as the hard limit does, and return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with contextlib.suppress(OSError, ValueError):  # some systems allow fewer than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            return allowed
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def why_too_few(allowed: int) -> str:
    """Return what is wrong when *allowed* descriptors do not do; empty when they do."""
    if allowed >= NEEDED:
        return ""
    return (
        f"this process may have {allowed} open files (hard limit, `ulimit -Hn`) and needs {NEEDED} or more: it cannot serve the run. "
        f"Everything is kept in the run directory; where more are allowed, `accelbus sync` delivers it"
    )


__all__ = ["NEEDED", "raise_limit", "why_too_few"]
