"""What is said of one run: notices and sink states to its main rank, ``status.json`` to everybody."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from accelbus import control, host
from accelbus.aggregator.deliverer import Deliverer
from accelbus.aggregator.faults import Faults
from accelbus.aggregator.ledger import Ledger
from accelbus.aggregator.lifetime import Lifetime
from accelbus.aggregator.peers import Peers
from accelbus.aggregator.roster import Roster
from accelbus.config import Tuning
from accelbus.durable import write_atomically
from accelbus.rundir import RunDir

_log = logging.getLogger(__name__)
_NOTICES_KEPT = 100
_HURRY = 0.1
"""Seconds between two reports of sink states while a rank may be waiting for them at its end."""


class Notices:
    """Lines for the user, kept for a main rank that comes later."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._kept: list[control.Notice] = []

    def add(self, level: str, text: str, sink: str) -> None:
        notice = control.Notice(level, text, sink)
        self._kept = [*self._kept, notice][-_NOTICES_KEPT:]
        self._peers.tell_main(notice)

    def repeat(self, peer: bytes) -> None:
        """Tell *peer* all of them."""
        for notice in self._kept:
            self._peers.tell(peer, notice)


class Reporter:
    """Reports at the status interval, and when asked."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        ledger: Ledger,
        roster: Roster,
        peers: Peers,
        deliverer: Deliverer,
        lifetime: Lifetime,
        faults: Faults,
        tuning: Tuning,
    ) -> None:
        self._run_dir = run_dir
        self._ledger = ledger
        self._roster = roster
        self._peers = peers
        self._deliverer = deliverer
        self._lifetime = lifetime
        self._faults = faults
        self._tuning = tuning

    async def run(self) -> None:
        """Report until cancelled."""
        next_status = 0.0
        while True:
            ending = any(member.state == "finished" for member in self._roster.members.values())
            await anyio.sleep(_HURRY if ending else self._tuning.status_interval)
            self.tell_sink_states()
            if time.monotonic() >= next_status:
                next_status = time.monotonic() + self._tuning.status_interval
                await self.write_status("closed" if self._lifetime.is_closed else "open")

    def tell_sink_states(self) -> None:
        states = self._deliverer.states()
        if states is not None:
            self._peers.tell_main(control.SinkStates({name: msgspec.to_builtins(state) for name, state in states.items()}))

    async def write_status(self, state: str) -> None:
        """Write ``status.json``; it is a convenience, so a disk that refuses it is no trouble."""
        status = self._status(state)
        try:
            await anyio.to_thread.run_sync(write_atomically, self._run_dir.status_path, msgspec.json.encode(status))
        except OSError as error:
            _log.debug("status.json: %s", error)

    def _status(self, state: str) -> dict[str, Any]:
        return {
            "run_id": self._run_dir.run_id,
            "state": state,
            "status": self._roster.status() if self._lifetime.is_closed else "running",
            "updated_ns": time.time_ns(),
            "bus": {
                "pid": os.getpid(),
                "host": host.name(),
                "disk_failing": self._ledger.is_failing,
                "bad_frames": self._faults.bad_frames,
                "errors": self._faults.errors,
                **self._ledger.statistics(),
            },
            "ranks": self._roster.snapshot(),
            "sinks": {name: msgspec.to_builtins(status) for name, status in (self._deliverer.states() or {}).items()},
        }


__all__ = ["Notices", "Reporter"]
