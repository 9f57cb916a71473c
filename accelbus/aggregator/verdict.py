"""Whether a run may start, decided once and for all its ranks."""

from __future__ import annotations

import anyio

from accelbus import control
from accelbus.delivery.status import SinkStatus
from accelbus.delivery.supervisor import Supervisor
from accelbus.rundir import RunRecord

_STARTED = frozenset({"running", "up_to_date", "finished"})


async def judge(supervisor: Supervisor, record: RunRecord, *, timeout: float) -> control.Verdict:
    """Wait until the required trackers have started and the configuration is resolved, at most *timeout* seconds, and say so."""
    with anyio.move_on_after(timeout):
        while _obstacles(supervisor, record) and not _refusal(supervisor, record):
            await anyio.sleep(0.05)
    obstacles = _obstacles(supervisor, record)
    resolved = supervisor.resolved(record.config_from) if record.config_from else None
    return control.Verdict(not obstacles, "; ".join(obstacles), resolved.config if resolved is not None else None)


def _obstacles(supervisor: Supervisor, record: RunRecord) -> list[str]:
    states = {sink: supervisor.states().get(sink, SinkStatus(sink=sink)) for sink in (*record.require, record.config_from or "")}
    obstacles = [
        f"{sink} has not started: {states[sink].last_error or states[sink].state}"
        for sink in record.require
        if states[sink].state not in _STARTED
    ]
    if record.config_from and supervisor.resolved(record.config_from) is None:
        state = states[record.config_from]
        obstacles.append(f"{state.sink} has not said what the configuration is: {state.last_error or state.state}")
    return obstacles + _refusal(supervisor, record)


def _refusal(supervisor: Supervisor, record: RunRecord) -> list[str]:
    resolved = supervisor.resolved(record.config_from) if record.config_from else None
    return [f"{record.config_from}: {resolved.refusal}"] if resolved is not None and resolved.refusal else []


__all__ = ["judge"]
