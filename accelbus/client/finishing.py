"""The end of a run in one process: its events become safe, then the main rank waits, visibly and bounded, for the trackers."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from accelbus import host
from accelbus.client.hooks import Ending
from accelbus.client.pump import Pump
from accelbus.config import Settings, Tuning

if TYPE_CHECKING:
    from accelbus.client.session import Session

_log = logging.getLogger("accelbus")
_BATCH_TIMEOUT = 60.0


class Turn:
    """One at a time. Who comes while another thread finishes waits for it; a signal handler that interrupted its own thread does not."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._thread: int | None = None

    @contextlib.contextmanager
    def taken(self) -> Iterator[bool]:
        """Yield whether it is this caller's turn; if not, somebody else is at it, or has been for too long."""
        is_own = self._thread == threading.get_ident()
        if not self._lock.acquire(timeout=0 if is_own else self._patience):
            yield False
            return
        self._thread = threading.get_ident()
        try:
            yield True
        finally:
            self._thread = None
            self._lock.release()


def end(session: Session, ending: Ending) -> None:
    """Say that nothing follows. Nothing that is logged from here on is kept."""
    # Who was told to end does not wait for the run record.
    session.stop_recording(0.0 if ending.status == "preempted" else session.tuning.facts_patience)
    session.end(ending.status, ending.reason)


def finish(session: Session, ending: Ending, timeout: float | None) -> bool:
    """Wait until everything is safe, then for the trackers, and close *session*. Returns whether everything is safe.

    Args:
        session: ended.
        ending: of this process or run.
        timeout: seconds for the trackers instead of ``finish_timeout``.
    """
    session.settle_files(in_a_hurry=ending.status == "preempted")
    safe = session.wait_until_safe()
    if not safe:
        session.say_what_is_at_risk()
    about, settings = session.introduction, session.settings
    if session.inline is not None:
        patience = how_long(ending, settings, session.tuning, timeout, alone=about.is_alone, inline=True)
        session.inline.finish(ending.status, patience)
    if about.is_main and settings.mode == "online" and set(about.trackers.sinks) != set(about.trackers.inline):
        patience = how_long(ending, settings, session.tuning, timeout, alone=about.is_alone)
        wait_for_sinks(session.pump, about.run_dir.path, patience)
    elif session.pump.attempt is None:
        _leave_settings(session)
    session.close(safe=safe)
    return safe


def _leave_settings(session: Session) -> None:
    """Say which trackers the run wants where neither rank 0 nor the bus process was ever there to hear it."""
    run_dir = session.introduction.run_dir
    with contextlib.suppress(OSError):
        if not run_dir.record_path.exists():
            run_dir.write_record(session.introduction.record())


class Patience(NamedTuple):
    """How long the main rank waits for the trackers, and for what."""

    seconds: float
    until_closed: bool
    """False: until they have everything there is now. The run stays open, for other ranks or for another attempt."""
    is_last_chance: bool
    """What this process leaves behind may be killed: say what is owed."""


def how_long(ending: Ending, settings: Settings, tuning: Tuning, timeout: float | None, *, alone: bool, inline: bool = False) -> Patience:
    """Return how long to wait at *ending*.

    A rank that fails among others must not wait until the run is closed: the launcher stops the others only when it is gone. One that
    was told to end, or that is to be started again, has little time.

    Args:
        ending: of this process or run.
        settings: ``finish_timeout``.
        tuning: ``exit_timeout`` bounds the wait of those who have little time.
        timeout: what the caller of ``finish`` wants instead.
        alone: there are no other ranks.
        inline: the trackers live in this process: nobody feeds them after it.
    """
    batch = host.in_batch_job_or_container(os.environ)
    limit = timeout if timeout is not None else settings.finish_timeout
    if limit is None:
        limit = _BATCH_TIMEOUT if batch or inline else 0.0
    is_normal = ending.status == "finished"
    in_a_hurry = ending.status == "preempted" or (not is_normal and may_restart(os.environ))
    if in_a_hurry and timeout is None:
        limit = min(limit, tuning.exit_timeout)
    return Patience(limit, until_closed=is_normal or (alone and not in_a_hurry), is_last_chance=batch or limit > 0)


def may_restart(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun starts the ranks once more if one of them fails."""
    restarts, limit = (environ.get(f"TORCHELASTIC_{name}", "") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return restarts.isdigit() and limit.isdigit() and int(restarts) < int(limit)


def wait_for_sinks(pump: Pump, run_dir: Path, patience: Patience) -> None:
    """Wait until every tracker has everything; print what is still owed and the command that delivers it."""
    deadline = time.monotonic() + patience.seconds
    books = _Books(until_closed=patience.until_closed)
    line = ProgressLine()
    while time.monotonic() < deadline and pump.may_be_served and (owed := books.owed(pump)):
        line.show({name: (state.get("state", "starting"), _pending(state)) for name, state in owed.items()})
        time.sleep(0.05)
    line.clear()
    owed = books.owed(pump)
    say_what_was_refused(pump.sink_states or {}, run_dir)
    if owed and patience.is_last_chance:
        _log.warning("not everything is in %s yet; this delivers the rest: accelbus sync %s", ", ".join(owed), shlex.quote(str(run_dir)))


def say_what_was_refused(states: Mapping[str, Any], run_dir: Path) -> None:
    """Print what is in the dead letters of each of the trackers, and where: a run that ends well may not have everything in them."""
    for name, state in states.items():
        if letters := state.get("dead_letters", 0):
            values = sum(counts.get("dead_lettered", 0) for counts in state.get("ranks", {}).values())
            path = run_dir / "sinks" / name / "dead_letters.jsonl"
            _log.warning("%s refused %s; kept in %s", name, f"{values} values" if values else f"{letters} statements about the run", path)


class _Books:
    """Which sinks still owe something, from their latest reports."""

    def __init__(self, *, until_closed: bool) -> None:
        self._until_closed = until_closed
        self._safe_ns: int | None = None
        """Wall clock when everything was known to be in the journal."""
        self._caught_up_ns: dict[str, int] = {}
        """{sink: when it first had caught up after that}"""

    def owed(self, pump: Pump) -> dict[str, Any]:
        """Return {sink: state}; before the first report nobody knows, so one nameless sink is owed."""
        if not pump.final.is_set() or pump.sink_states is None:
            return {"the trackers": {}}
        self._safe_ns = self._safe_ns or time.time_ns()
        return {name: state for name, state in pump.sink_states.items() if not self._is_done(name, state, self._safe_ns)}

    def _is_done(self, name: str, state: dict[str, Any], safe_ns: int) -> bool:
        if state.get("state") == "finished":
            return True
        caught_up_ns = state.get("caught_up_ns", 0)
        if self._until_closed or caught_up_ns <= safe_ns:
            return False
        # The first time proves nothing: it had looked into the journal before it delivered, perhaps too early. The next look was later.
        return bool(caught_up_ns > self._caught_up_ns.setdefault(name, caught_up_ns))


class ProgressLine:
    """One line on a terminal's stderr, from a moment after its making; nothing when stderr is a file.

    Args:
        after: seconds until the wait is worth a line.
    """

    def __init__(self, *, after: float = 0.5) -> None:
        self._shown = False
        self._next_at = time.monotonic() + after

    def show(self, waiting: Mapping[str, tuple[str, int]]) -> None:
        """Say who is waited for: {tracker: (state, values that it has not got)}."""
        if time.monotonic() < self._next_at or not _is_terminal():
            return
        self._next_at = time.monotonic() + 0.2
        parts = [f"{name} ({state}, {pending} values to go)" for name, (state, pending) in waiting.items()]
        # A signal handler may have interrupted a write to the same stream, or nobody may read it any more.
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            sys.stderr.write("\r\033[Kaccelbus: waiting for " + ", ".join(parts))
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                sys.stderr.write("\r\033[K")
                sys.stderr.flush()


def _is_terminal() -> bool:
    # A daemon may have closed it; a program without a console has none at all.
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def _pending(state: dict[str, Any]) -> int:
    return sum(counts.get("pending", 0) for counts in state.get("ranks", {}).values())
