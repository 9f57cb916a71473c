"""Whether a run is open or closed, and when its bus process may leave.

A worker that has seen the end of its run reads the journal once more, finishes its tracker and looks no further. So whatever gets into the
journal after the end was written, a producer or events, opens the run: it is closed again behind that, and every sink is started again
before it counts as finished.
"""

from __future__ import annotations

import time
from typing import Protocol

import anyio

from accelbus import host
from accelbus.aggregator.ledger import Ledger
from accelbus.aggregator.remains import SpoolWatch
from accelbus.aggregator.roster import Member, Roster
from accelbus.config import Tuning
from accelbus.events import RunClosed

_NOBODY_CAME = 60.0
"""Seconds after which a bus process that no producer ever reached leaves."""
_SHORT_GRACE = 0.5
"""Seconds for which a run without every rank's goodbye stays open when nobody will start them again."""
_LOOK_INTERVAL = 0.1


class Delivery(Protocol):
    """What a lifetime needs of the run's trackers."""

    @property
    def is_finished(self) -> bool:
        """Every tracker was finished, and none was told to start again since."""

    def resume(self) -> None:
        """Let trackers that were finished look into the journal again."""


class Lifetime:
    """Closes the run when every rank has ended, opens it again when something follows, and says when all is over.

    Args:
        ledger: takes the record of the end.
        roster: who is there.
        watch: producers that are still there, although nothing of theirs is waited for: something of theirs may follow.
        delivery: to the run's trackers.
        tuning: graces.
    """

    def __init__(self, ledger: Ledger, roster: Roster, watch: SpoolWatch, delivery: Delivery, *, tuning: Tuning) -> None:
        self._ledger = ledger
        self._roster = roster
        self._watch = watch
        self._delivery = delivery
        self._tuning = tuning
        self._started = self._alone_since = time.monotonic()
        """Alone: no producer lives."""
        self._closed_at: float | None = None
        self._closing_as = ""
        """Status in a RunClosed that is recorded and perhaps not written yet."""
        self._may_have_been_closed = False
        """The journal has a RunClosed, or perhaps."""
        self._owes_resumption = False
        """Sinks that were finished are to be started again."""
        self._terminating_at: float | None = None
        self._launchers: dict[bytes, tuple[int, int]] = {}
        """{producer: pid and start time of its launcher}"""
        self._over = anyio.Event()

    # Open or closed

    @property
    def is_closed(self) -> bool:
        """The end of the run is written and durable, and nothing came since."""
        return self._closed_at is not None

    def note_launcher(self, producer: bytes, launcher: tuple[int, int]) -> None:
        """*producer* was started by the process *launcher* (pid, start time), which may start it again."""
        self._launchers[producer] = launcher

    def note_earlier_end(self) -> None:
        """An earlier incarnation may have closed the run: its sinks may be finished, or be about to."""
        self._may_have_been_closed = True

    def reopen(self) -> None:
        """A producer is here, or something of one got into the journal: what was said of the end does not hold any more."""
        if self._closing_as:
            self._closing_as, self._closed_at = "", None
            self._owes_resumption = True

    @property
    def owes_resumption(self) -> bool:
        """The run was opened again, and its sinks do not know."""
        return self._owes_resumption

    async def resume_delivery(self) -> None:
        """Start sinks that were finished again, once the journal says why: they look into it only once."""
        if self._owes_resumption and await self._ledger.append([]):
            self._resume()

    def _resume(self) -> None:
        self._owes_resumption = False
        self._delivery.resume()

    async def close_when_over(self) -> None:
        """Close the run when every rank has ended and its launcher will not bring one back."""
        trainers = self._roster.trainers()
        if self._closed_at is not None or self._roster.live() or not self._roster.members:
            return
        complete = len(trainers) == max((member.world_size for member in trainers), default=0)
        orderly = complete and all(member.state == "finished" and not _is_to_come_back(member) for member in trainers)
        # Not by the times at which ranks ended: the clock of this host may have been set back since.
        if not orderly and time.monotonic() - self._alone_since < self._grace(trainers):
            return
        status = self._roster.status()
        if self._closing_as != status:
            # Once: while the disk refuses, this is tried again and again.
            self._closing_as = status
            self._ledger.record(RunClosed(time.time_ns(), status))
        # Something may have come while the disk was at it.
        if await self._ledger.append([]) and await self._ledger.sync() and self._closing_as == status:
            self._closed_at = time.monotonic()
            if self._may_have_been_closed:
                # Sinks may have seen an earlier end, and have looked for the last time.
                self._resume()
            self._may_have_been_closed = True

    def _grace(self, trainers: list[Member]) -> float:
        """How long a run without every rank's goodbye stays open: only while somebody may restart the ranks."""
        launchers = {self._launchers[member.producer] for member in trainers if member.producer in self._launchers}
        alive = any(host.process_start_time(pid) == started for pid, started in launchers)
        return self._tuning.restart_grace if alive and not self.is_terminating else _SHORT_GRACE

    # Leaving

    @property
    def is_terminating(self) -> bool:
        """This process was told to end."""
        return self._terminating_at is not None

    @property
    def is_over(self) -> bool:
        """This process is leaving: whoever comes now is the next one's."""
        return self._over.is_set()

    def terminate(self) -> bool:
        """Leave once the ranks are gone and the sinks are up to date, within the grace; False when that was asked before."""
        if self._terminating_at is not None:
            self._over.set()
            return False
        self._terminating_at = time.monotonic()
        return True

    async def wait_until_over(self) -> None:
        """Return when everything is delivered, nobody needs this process any more, or it was told to end and had its grace."""
        while not self._over.is_set():
            now = time.monotonic()
            if self._roster.live():
                self._alone_since = now
            if self._is_over(now):
                self._over.set()
            with anyio.move_on_after(_LOOK_INTERVAL):
                await self._over.wait()

    def _is_over(self, now: float) -> bool:
        if self._closed_at is not None and (self._is_delivered or now - self._closed_at > self._tuning.linger):
            return True
        if self._terminating_at is not None and now - max(self._terminating_at, self._alone_since) > self._tuning.drain_grace:
            return True
        return not self._roster.members and now - self._started > _NOBODY_CAME

    @property
    def _is_delivered(self) -> bool:
        return self._delivery.is_finished and self._watch.is_empty


def _is_to_come_back(member: Member) -> bool:
    """Whether the launcher starts this rank's next attempt: then trackers need not close the run in between."""
    return member.may_restart and member.status != "finished"


__all__ = ["Delivery", "Lifetime"]
