"""After the events are safe: the main rank waits, visibly and bounded, for the trackers."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from accelbus import host
from accelbus.client.pump import Pump
from accelbus.config import Settings

_log = logging.getLogger("accelbus")
_BATCH_TIMEOUT = 60.0


def wait_for_sinks(pump: Pump, run_dir: Path, settings: Settings, timeout: float | None) -> None:
    """Wait until every tracker has everything; print what is still owed and the command that delivers it."""
    limit = timeout if timeout is not None else settings.finish_timeout
    batch = host.in_batch_job_or_container(os.environ)
    if limit is None:
        limit = _BATCH_TIMEOUT if batch else 0.0
    deadline = time.monotonic() + limit
    line = _ProgressLine()
    while time.monotonic() < deadline and pump.final.is_set() and _owed(pump.sink_states):
        line.show(_owed(pump.sink_states))
        time.sleep(0.05)
    line.clear()
    owed = _owed(pump.sink_states)
    if owed and (batch or limit > 0):
        _log.warning("not everything is in %s yet; this delivers the rest: accelbus sync %s", ", ".join(owed), shlex.quote(str(run_dir)))


def _owed(states: dict[str, Any] | None) -> dict[str, Any]:
    """Return the sinks that are not finished; before the first report: nobody knows, so one nameless sink is owed."""
    if states is None:
        return {"the trackers": {}}
    return {name: state for name, state in states.items() if state.get("state") != "finished"}


class _ProgressLine:
    """One line on a terminal's stderr; nothing when stderr is a file."""

    def __init__(self) -> None:
        self._shown = False
        self._next_at = time.monotonic() + 0.5

    def show(self, owed: dict[str, Any]) -> None:
        if not sys.stderr.isatty() or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + 0.2
        parts = [f"{name}: {state.get('pending', '?')} to go" for name, state in owed.items()]
        sys.stderr.write("\r\033[Kaccelbus: waiting for " + ", ".join(parts))
        sys.stderr.flush()
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
