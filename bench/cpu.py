"""CPU seconds of a process and of everything that it has started."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def seconds() -> float:
    """Return the CPU seconds of this process and of all its descendants, living and reaped.

    A descendant whose parent has died belongs to nobody; wait for those that matter. Those that live count in ticks of 10 ms, and on
    Linux only.
    """
    mine = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in mine) + sum(_living(os.getpid()))


def _living(ancestor: int) -> list[float]:
    """Return the seconds of each living descendant, its reaped children included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of the program is in parentheses and may contain anything.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15])) / _TICKS
    return [used[pid] for pid in used if pid != ancestor and ancestor in _line(pid, parents)]


def _line(pid: int, parents: dict[int, int]) -> set[int]:
    """Return the ancestors of *pid*."""
    found: set[int] = set()
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found
