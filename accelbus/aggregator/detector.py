"""Producers that say nothing: found by their spools, told dead from alive by their locks, and what they left brought in."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from accelbus import control, host
from accelbus.aggregator.attendance import Attendance
from accelbus.aggregator.faults import Faults
from accelbus.aggregator.history import recall
from accelbus.aggregator.ledger import Ledger
from accelbus.aggregator.lifetime import Lifetime
from accelbus.aggregator.remains import SpoolWatch, find_spools
from accelbus.aggregator.roster import LIVE, Member, Roster
from accelbus.config import Tuning
from accelbus.journal.salvage import Remains
from accelbus.journal.spool_places import spool_directories
from accelbus.rundir import RunDir

_log = logging.getLogger(__name__)


class FailureDetector:
    """Looks after the producers of one run at the probe interval.

    Args:
        run_dir: of the run.
        ledger: gets what killed producers left, and the records of their end.
        roster: the list.
        watch: the spools on this node.
        attendance: takes in who was found.
        lifetime: of the run, which is over when nobody is left.
        faults: what one producer's remains can cause stays with it.
        tuning: intervals.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        ledger: Ledger,
        roster: Roster,
        watch: SpoolWatch,
        attendance: Attendance,
        lifetime: Lifetime,
        faults: Faults,
        tuning: Tuning,
    ) -> None:
        self._run_dir = run_dir
        self._ledger = ledger
        self._roster = roster
        self._watch = watch
        self._attendance = attendance
        self._lifetime = lifetime
        self._faults = faults
        self._tuning = tuning

    async def adopt(self) -> set[Path]:
        """Take in the producers whose spools lie on this node: earlier incarnations of this process knew them.

        Returns the other runs that dead producers on this node have left something of.
        """
        if self._roster.is_new:
            known = await anyio.to_thread.run_sync(partial(recall, self._run_dir.journal, tuning=self._tuning))
            self._roster.recall(known.members)
            has_ended = known.was_closed
        else:
            has_ended = bool(self._roster.members)
        if has_ended:
            self._lifetime.note_earlier_end()
        found = await anyio.to_thread.run_sync(lambda: list(find_spools(spool_directories(self._tuning), self._tuning)))
        for spool in found:
            spool.hello.spool = str(spool.path)
            if self._is_ours(spool.hello):
                # Whatever became of its producer: a spool goes when its process is gone and all of it is in the journal.
                self._attendance.take_in(spool.hello)
        for spool in found:
            os.close(spool.descriptor)
        # Before anybody hears of them: who comes after this process may find their spools by the list only.
        await self._attendance.save()
        await self._ledger.append([])
        return {Path(spool.hello.run_dir) for spool in found if spool.gone} - {self._run_dir.path}

    async def run(self) -> None:
        """Look until cancelled, and at once when somebody has left: it may have been the last."""
        while True:
            await self._attendance.wait_for_departure(self._tuning.probe_interval)
            await self._find_producers()
            for producer in self._watch.gone():
                member = self._roster.members[producer]
                if not await self._faults.survive(f"what rank {member.rank} left in its spool", self._bury(member)):
                    self._give_up(member)
            self._note_silence()
            await self._attendance.confirm_goodbyes()
            await self._lifetime.close_when_over()
            await self._ledger.append([])
            await self._lifetime.resume_delivery()
            await self._attendance.save()

    def has_missed_somebody(self) -> bool:
        """Whether there is a spool of the run whose producer came while this process was leaving, is about to end, or is gone."""
        for spool in find_spools(spool_directories(self._tuning), self._tuning):
            os.close(spool.descriptor)
            is_missed = spool.gone or spool.is_ending or spool.hello.producer not in self._roster.members
            if is_missed and self._is_ours(spool.hello):
                return True
        return False

    async def _find_producers(self) -> None:
        """Take in who has a spool on this node and said nothing yet: it may be killed before it gets a word out."""
        for hello in await anyio.to_thread.run_sync(self._watch.find_new, spool_directories(self._tuning)):
            if hello.producer not in self._roster.members and self._is_ours(hello):
                self._attendance.reopen(self._attendance.take_in(hello))
                await self._attendance.save()

    def _note_silence(self) -> None:
        """Tell from signs of life what no lock says."""
        tuning = self._tuning
        for member in self._roster.live():
            if not self._watch.proves_life(member.producer) and member.host == host.name() and not host.process_exists(member.pid):
                self._ledger.record(self._roster.end(member, state="dead", status="killed"))
        for member in self._roster.silent_for(tuning.lost_after):
            if not self._watch.proves_life(member.producer):
                self._ledger.record(self._roster.end(member, state="lost", status="lost"))
        for member in self._roster.newly_silent(tuning.silent_after):
            _log.warning("rank %d (%s, pid %d) has been silent for %.0f s", member.rank, member.host, member.pid, tuning.silent_after)
            self._ledger.record(self._roster.state_record(member))

    def _is_ours(self, hello: control.Hello) -> bool:
        """Whether a spool is of this run. A run of the same name that was deleted elsewhere is another one."""
        try:
            return os.path.samefile(hello.run_dir, self._run_dir.path)
        except OSError:
            return False

    async def _bury(self, member: Member) -> None:
        """The producer's lock could be taken: bring what it left into the journal."""
        remains = await anyio.to_thread.run_sync(self._watch.remains, member.producer)
        if remains is None:
            self._give_up(member)
            return
        batches = [batch for batch in remains.batches if batch.last_seq > member.through_seq]
        frames = [batch.to_frame(member.producer, member.launch) for batch in batches]
        if not await self._ledger.append(frames, sum(batch.count for batch in batches)):
            return  # the next round tries again
        if remains.last_seq > member.through_seq:
            # Now or by the producer itself, it came into the journal without our word: the end of the run may have been written before.
            self._lifetime.reopen()
        # What is before the ring's oldest event was acked or is in the run directory.
        member.through_seq = max(member.through_seq, remains.released_seq, batches[-1].last_seq if batches else 0)
        self._note_end(member, remains)
        if await self._ledger.append([]) and await self._ledger.sync():
            self._watch.drop(member.producer, unlink=True)
        if batches:
            _log.warning("rank %d is gone; %d events salvaged from its spool", member.rank, sum(batch.count for batch in batches))

    def _give_up(self, member: Member) -> None:
        """A dead producer's spool cannot be read: it stays where it is."""
        if member.state in LIVE:
            self._ledger.record(self._roster.end(member, state="dead", status="killed"))
        self._watch.drop(member.producer, unlink=False)

    def _note_end(self, member: Member, remains: Remains) -> None:
        # One that was replaced or thought lost has gone on, and may have come to an end of its own.
        is_news = member.state in LIVE or remains.last_seq > member.last_seq or remains.dropped != member.dropped
        member.last_seq = max(member.last_seq, remains.last_seq)
        member.dropped = remains.dropped
        if is_news:
            said_so = bool(remains.status)
            record = self._roster.end(member, state="finished" if said_so else "dead", status=remains.status or "killed")
            self._ledger.record(record)


__all__ = ["FailureDetector"]
