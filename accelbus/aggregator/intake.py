"""Events of one run's producers: from their frames into the journal, then acked."""

from __future__ import annotations

from accelbus import frame
from accelbus.aggregator.attendance import Attendance
from accelbus.aggregator.ledger import Ledger
from accelbus.aggregator.lifetime import Lifetime
from accelbus.aggregator.peers import Peers
from accelbus.aggregator.roster import Roster


class Intake:
    """What one burst of messages brings is stored and acked together. Owned by one task.

    Args:
        ledger: the journal.
        roster: what is known of producers.
        peers: are acked.
        attendance: learns who was heard.
        lifetime: of the run: what is stored after its end opens it again.
    """

    def __init__(self, ledger: Ledger, roster: Roster, peers: Peers, attendance: Attendance, lifetime: Lifetime) -> None:
        self._ledger = ledger
        self._roster = roster
        self._peers = peers
        self._attendance = attendance
        self._lifetime = lifetime
        self._frames: list[bytes] = []
        self._events = 0
        self._through: dict[bytes, tuple[bytes, int]] = {}
        """{producer: (peer, last seq to ack)}"""

    def take(self, peer: bytes, raw: bytes, checked: frame.Frame) -> bool:
        """Take a frame for the next `store`; False when whoever sent it must say hello (again)."""
        producer = self._peers.producer_at(peer)
        if producer is None or producer != checked.producer:
            return False
        member = self._roster.members[producer]
        self._attendance.note_sign_of_life(member)
        known = self._through[producer][1] if producer in self._through else member.through_seq
        if checked.first_seq > known + 1:
            # Something in between was lost on the way; acking this one would free what never came.
            return False
        if checked.last_seq > known or not checked.count:
            self._frames.append(raw)
            self._events += max(0, checked.last_seq - known)
        self._through[producer] = (peer, max(known, checked.last_seq))
        return True

    async def store(self) -> None:
        """Append what was taken and ack it. While the disk refuses nothing is acked: producers still have it and send it again."""
        frames, events, through = self._frames, self._events, self._through
        if not through:
            return
        self._frames, self._events, self._through = [], 0, {}
        if not await self._ledger.append(frames, events):
            return
        if frames:
            self._lifetime.reopen()
        for producer, (peer, last) in through.items():
            member = self._roster.members[producer]
            member.through_seq = max(member.through_seq, last)
            member.last_seq = max(member.last_seq, last)
            self._peers.ack(peer, member)


__all__ = ["Intake"]
