"""Close a run whose bus process is gone: write down how it ended, so that its trackers can be finished."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from accelbus import host
from accelbus.aggregator.afterwards import has_ended, read_run, write_apart
from accelbus.aggregator.rescue import spools_of
from accelbus.config import Tuning
from accelbus.events import TRAINER, ProducerState, Record, RunClosed, worst_status
from accelbus.journal.producers import ProducerInfo
from accelbus.rundir import RunDir


class Closing(NamedTuple):
    """Whether a run could be closed."""

    status: str
    """finished, failed, …; empty when it could not."""
    text: str = ""
    """Why not."""


def close_run(run_dir: RunDir, *, tuning: Tuning) -> Closing:
    """Write down how the run ended, if all its producers have. To be called when no bus process of it runs.

    A rank that comes back all the same opens it again. Blocking: reads the journal.

    Raises:
        OSError: the journal cannot be written.
    """
    known = read_run(run_dir.journal, tuning)
    if known.closed_as is not None:
        return Closing(known.closed_as)
    if not known.producers:
        return Closing("", "no producer has written anything yet")
    running = _running(run_dir, tuning)
    ends: list[Record] = []
    for producer, info in known.producers.items():
        if has_ended(info):
            continue
        if reason := _why_not(info, holds_its_lock=producer in running):
            return Closing("", f"rank {info.rank} ({info.host or 'of an unknown host'}, pid {info.pid}) {reason}")
        info.status = info.status or "killed"
        ends.append(ProducerState(time.time_ns(), producer, "dead", info.last_seq, info.status, info.dropped))
    status = _status_of(known.producers.values())
    write_apart(run_dir.journal, [], [], [*ends, RunClosed(time.time_ns(), status)], tuning)
    return Closing(status)


def _why_not(info: ProducerInfo, *, holds_its_lock: bool) -> str:
    """Return why a producer may not be taken for dead; empty when it is."""
    if holds_its_lock or (info.host == host.name() and host.process_exists(info.pid)):
        return "still runs"
    return "" if info.host in ("", host.name()) else "was on another host, and nobody wrote down how it ended"


def _running(run_dir: RunDir, tuning: Tuning) -> set[bytes]:
    """Return the producers of the run that hold the locks of their spools."""
    found = spools_of(run_dir, tuning)
    for spool in found:
        os.close(spool.descriptor)
    return {spool.hello.producer for spool in found if not spool.gone}


def _status_of(producers: Iterable[ProducerInfo]) -> str:
    """Return the run's status: the worst of the trainers of the newest attempt."""
    trainers = [info for info in producers if info.role == TRAINER]
    newest = max((info.attempt for info in trainers), default=-1)
    return worst_status([info.status or "killed" for info in trainers if info.attempt == newest])


__all__ = ["Closing", "close_run"]
