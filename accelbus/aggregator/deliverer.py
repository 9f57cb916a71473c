"""The trackers of one run, while its bus process serves it: started when the settings are known, fed by workers, stopped."""

from __future__ import annotations

import anyio

from accelbus import control
from accelbus.aggregator.peers import Peers
from accelbus.aggregator.roster import LIVE, Roster
from accelbus.aggregator.settings import Notify
from accelbus.aggregator.verdict import judge
from accelbus.config import Tuning
from accelbus.delivery.status import SinkStatus
from accelbus.delivery.supervisor import Supervisor
from accelbus.events import TRAINER
from accelbus.rundir import RunDir, RunRecord

_POLL_INTERVAL = 0.02


class Deliverer:
    """Delivers to the sinks that are delivered to here; the main rank looks after those that run inline itself.

    Args:
        run_dir: of the run.
        roster: whether the main rank is still there to hand over.
        peers: get the verdict.
        tuning: for the supervisor and the waits.
        notify: gets lines for the user.
    """

    def __init__(self, run_dir: RunDir, roster: Roster, peers: Peers, *, tuning: Tuning, notify: Notify) -> None:
        self._run_dir = run_dir
        self._roster = roster
        self._peers = peers
        self._tuning = tuning
        self._notify = notify
        self._supervisor: Supervisor | None = None
        self._has_no_sinks = False
        self._handover: control.Handover | None = None
        """The newest; never written anywhere."""
        self.verdict: control.Verdict | None = None
        """Whether the required trackers have started, once that is known."""

    async def run(self, record: RunRecord) -> None:
        """Deliver as *record* wants it, until `stop`."""
        sinks = tuple(sink for sink in record.sinks if sink not in record.inline)
        if record.mode != "online" or not sinks:
            self._has_no_sinks = True
            return
        await self._wait_for_handover()
        supervisor = Supervisor(self._run_dir, record, sinks=sinks, tuning=self._tuning, on_notice=self._notify)
        if self._handover is not None:
            supervisor.take_over_from(self._handover)
        self._supervisor = supervisor
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.run)
            if record.require or record.config_from:
                self.verdict = await judge(supervisor, record, timeout=self._tuning.require_timeout)
                self._peers.tell_all(self.verdict)

    async def stop(self) -> None:
        """Let the workers flush, move their cursors and leave."""
        if self._supervisor is not None:
            await self._supervisor.stop()

    def resume(self) -> None:
        """The run goes on: start the sinks that were finished again."""
        if self._supervisor is not None:
            self._supervisor.resume()

    def take_over_from(self, handover: control.Handover) -> None:
        """Give workers that are started from now on what the main rank has handed over."""
        self._handover = handover
        if self._supervisor is not None:
            self._supervisor.take_over_from(handover)

    def states(self) -> dict[str, SinkStatus] | None:
        """Return {sink: latest status}; None while nobody knows which sinks there are."""
        if self._supervisor is not None:
            return self._supervisor.states()
        return {} if self._has_no_sinks else None

    @property
    def is_finished(self) -> bool:
        """Whether every tracker was finished."""
        if self._supervisor is None:
            return self._has_no_sinks
        return all(state.state == "finished" for state in self._supervisor.states().values())

    async def _wait_for_handover(self) -> None:
        """Wait for the main rank's word on its trackers, as long as it may come."""
        with anyio.move_on_after(self._tuning.handover_grace):
            while self._handover is None and not self._is_main_gone():
                await anyio.sleep(_POLL_INTERVAL)

    def _is_main_gone(self) -> bool:
        mains = [member for member in self._roster.members.values() if member.role == TRAINER and member.rank == 0]
        return bool(mains) and not any(member.state in LIVE for member in mains)


__all__ = ["Deliverer"]
