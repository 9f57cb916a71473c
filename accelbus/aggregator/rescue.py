"""Bring what killed producers left in their spools into their runs, without a bus process."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from accelbus import host
from accelbus.aggregator.afterwards import KnownRun, has_ended, read_run, write_apart
from accelbus.aggregator.remains import Found, look_into
from accelbus.config import Tuning
from accelbus.errors import ConfigurationError, SpoolError
from accelbus.events import ProducerJoined, ProducerState, Record
from accelbus.journal.intervals import Intervals
from accelbus.journal.producers import ProducerInfo
from accelbus.journal.salvage import Remains, salvage
from accelbus.journal.spool_places import is_of_run, spool_files
from accelbus.rundir import RunDir

_log = logging.getLogger(__name__)
_STRANGERS_AGE = 60.0
"""Seconds from the making of a spool on in which its own bus process may still be starting. It must find the spool: it would not know of
its ranks otherwise, and never close the run."""

Outcome: TypeAlias = Literal["rescued", "alive", "busy", "failed"]
"""rescued: everything in the spool is in the run. alive: its producer runs and sends it itself. busy: another process is at it.
failed: see ``text``."""


class Rescued(NamedTuple):
    """What became of one spool."""

    path: Path
    outcome: Outcome
    run_path: Path | None = None
    rank: int = -1
    role: str = ""
    pid: int = 0
    events: int = 0
    """That were in no other place of the run."""
    removed: bool = False
    """Originals go once everything is safe; copies stay."""
    text: str = ""


def rescue_run(run_dir: RunDir, *, tuning: Tuning, min_age: float = 0.0) -> list[Rescued]:
    """Bring in the spools on this node that belong to *run_dir* and whose producers are gone. Safe to repeat, and beside a bus process.

    Blocking: reads the rings, and the journal when there is something to bring in.

    Args:
        run_dir: of the run.
        tuning: sizes of frames and segments.
        min_age: seconds; younger spools are left alone.

    Raises:
        OSError: the journal cannot be written; the spools stay as they are.
    """
    found = spools_of(run_dir, tuning, min_age)
    return _rescue(found, run_dir, tuning) if found else []


def rescue_strangers(run_paths: Iterable[Path], *, tuning: Tuning) -> None:
    """`rescue_run` for runs that nobody asked about, because they may have no process left that would. Never raises for their trouble.

    Their own bus process may be at it too: then events are in the journal twice, which readers expect.
    """
    for path in run_paths:
        # A run that somebody has deleted is not made again.
        if not (path / "journal").is_dir():
            continue
        try:
            rescued = rescue_run(RunDir(path), tuning=tuning, min_age=_STRANGERS_AGE)
        except (OSError, SpoolError) as error:
            _log.warning("the spools of run %s cannot be brought in: %s", path.name, error)
        else:
            if events := sum(one.events for one in rescued):
                _log.info("brought in %d events that killed ranks of run %s had left on this node", events, path.name)


def rescue_paths(paths: Iterable[Path], *, state_dir: Path, tuning: Tuning) -> list[Rescued]:
    """Bring the spool files *paths*, and those in directories among them, into the runs that they name.

    A run's directory is where its producers saw it, or else the one of its id in *state_dir*; it is made when there is neither. What
    cannot be brought in is said, and stays as it is.
    """
    results: list[Rescued] = []
    of_run: dict[Path, list[Found]] = {}
    for path in _files(paths):
        try:
            found = look_into(path, tuning)
            of_run.setdefault(_home_of(found, state_dir), []).append(found)
        except (OSError, SpoolError, ConfigurationError) as error:
            results.append(Rescued(path, "failed", text=_reason(error)))
    for run_path, spools in of_run.items():
        try:
            results += _rescue(spools, RunDir(run_path), tuning)
        except OSError as error:
            results += [Rescued(spool.path, "failed", run_path, text=_reason(error)) for spool in spools]
    return results


def _rescue(found: Sequence[Found], run_dir: RunDir, tuning: Tuning) -> list[Rescued]:
    try:
        gone = [spool for spool in found if spool.gone]
        results = [_left_alone(spool, run_dir) for spool in found if not spool.gone]
        if not gone:
            return results
        known = read_run(run_dir.journal, tuning)
        plans = [_plan(spool, known, tuning) for spool in gone]
        joins: list[Record] = [join for plan in plans for join in plan.joins]
        states: list[Record] = [state for plan in plans for state in plan.states]
        write_apart(run_dir.journal, joins, [raw for plan in plans for raw in plan.frames], states, tuning)
        return results + [_put_away(plan, run_dir) for plan in plans]
    finally:
        for spool in found:
            os.close(spool.descriptor)


class _Plan(NamedTuple):
    """What one spool adds to the journal."""

    spool: Found
    joins: list[Record]
    frames: list[bytes]
    events: int
    states: list[Record]


def _plan(spool: Found, known: KnownRun, tuning: Tuning) -> _Plan:
    hello = spool.hello
    remains = salvage(spool.descriptor, max_events=tuning.overload_frame_events, max_bytes=tuning.frame_bytes)
    info = known.producers.get(hello.producer)
    there = Intervals(info.read if info is not None else ())
    batches = [(batch, there.missing(batch.first_seq, batch.last_seq)) for batch in remains.batches]
    # What can be read in the journal need not be on the disk: an original is removed, so all of it is written and synced again.
    frames = [batch.to_frame(hello.producer, hello.launch) for batch, new in batches if new or _is_original(spool)]
    events = sum(last - first + 1 for _, new in batches for first, last in new)
    return _Plan(spool, _joins(spool, info, known), frames, events, _states(remains, info))


def _joins(spool: Found, info: ProducerInfo | None, known: KnownRun) -> list[Record]:
    """A producer that the journal has never heard of gets its attempt, so that all readers agree on it."""
    if info is not None:
        return []
    hello = spool.hello
    attempts = known.attempts
    attempt = attempts.assign(hello.producer, launch=hello.launch, rank=hello.rank, role=hello.role, explicit=hello.attempt)
    joined = ProducerJoined(
        time.time_ns(), hello.producer, hello.rank, hello.world_size, attempt, hello.role, hello.host, hello.pid, hello.launch
    )
    return [joined]


def _states(remains: Remains, info: ProducerInfo | None) -> list[Record]:
    if info is not None and has_ended(info) and info.state and info.last_seq >= remains.last_seq and info.dropped == remains.dropped:
        return []
    state = "finished" if remains.status else "dead"
    status = remains.status or (info.status if info is not None else "") or "killed"
    return [ProducerState(time.time_ns(), remains.description.producer, state, remains.last_seq, status, remains.dropped)]


def _put_away(plan: _Plan, run_dir: RunDir) -> Rescued:
    """Everything is synced: an original is needed no more."""
    path, hello = plan.spool.path, plan.spool.hello
    removed = _is_original(plan.spool)
    if removed:
        path.unlink(missing_ok=True)
    return Rescued(path, "rescued", run_dir.path, hello.rank, hello.role, hello.pid, plan.events, removed)


def _is_original(spool: Found) -> bool:
    """Whether the file lies where its producer made it."""
    with contextlib.suppress(OSError):
        return spool.hello.spool is not None and os.path.samefile(spool.path, spool.hello.spool)
    return False


def _left_alone(spool: Found, run_dir: RunDir) -> Rescued:
    hello = spool.hello
    runs = hello.host != host.name() or host.process_exists(hello.pid)
    text = f"its process {hello.pid} runs and sends it itself" if runs else "another process is salvaging it"
    return Rescued(spool.path, "alive" if runs else "busy", run_dir.path, hello.rank, hello.role, hello.pid, text=text)


def _files(paths: Iterable[Path]) -> list[Path]:
    return [file for path in paths for file in (sorted(path.rglob("*.spool")) if path.is_dir() else [path])]


def _home_of(found: Found, state_dir: Path) -> Path:
    hello = found.hello
    original, by_id = Path(hello.run_dir), state_dir / hello.run_id
    for candidate in (original, by_id):
        if (candidate / "journal").is_dir():
            return candidate
    home = original if original.parent.is_dir() else by_id
    try:
        RunDir(home).create()
    except ConfigurationError:
        os.close(found.descriptor)
        raise
    return home


def spools_of(run_dir: RunDir, tuning: Tuning, min_age: float = 0.0) -> list[Found]:
    """Return the spools on this node that belong to *run_dir*; the caller closes their descriptors."""
    found = []
    for path in spool_files(run_dir.path, tuning):
        try:
            spool = look_into(path, tuning)
        except (SpoolError, OSError) as error:
            _log.debug("%s is not a spool yet, or no more: %s", path, error)
            continue
        if is_of_run(spool.hello, run_dir.path) and time.time() - os.fstat(spool.descriptor).st_mtime >= min_age:
            found.append(spool)
        else:
            os.close(spool.descriptor)
    return found


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


__all__ = ["Outcome", "Rescued", "rescue_paths", "rescue_run", "rescue_strangers", "spools_of"]
