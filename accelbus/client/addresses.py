"""Where trackers show a run."""

from __future__ import annotations

from typing import Any

import msgspec

from accelbus.client.session import Session
from accelbus.rundir import RunDir


def url_of(tracker: str, sink: str, *, session: Session | None, run_dir: RunDir) -> str | None:
    """Return where *tracker* shows the run, None while that is not known.

    Args:
        tracker: its name.
        sink: what it is called in the run's status.
        session: of the run, if it has one here.
        run_dir: of the run. Its status says it to those to whom the bus process does not.
    """
    if session is not None and session.inline is not None and (state := session.inline.states().get(tracker)) is not None:
        return state.url or None
    states = (session.pump.sink_states if session is not None else None) or _read_sink_states(run_dir)
    url = states.get(sink, {}).get("url")
    return str(url) if url else None


def _read_sink_states(run_dir: RunDir) -> dict[str, Any]:
    try:
        status = msgspec.json.decode(run_dir.status_path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    states = status.get("sinks", {})
    return states if isinstance(states, dict) else {}


__all__ = ["url_of"]
