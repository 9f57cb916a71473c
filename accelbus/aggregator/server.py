"""Frames and control messages in, acks out; and the life of one run's bus process on this node."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from accelbus import control, frame, host
from accelbus.aggregator.history import recall
from accelbus.aggregator.ledger import Ledger
from accelbus.aggregator.remains import SpoolWatch, find_spools
from accelbus.aggregator.rescue import rescue_strangers
from accelbus.aggregator.roster import LIVE, Member, Roster
from accelbus.aggregator.socket import RouterSocket
from accelbus.aggregator.verdict import judge
from accelbus.config import Tuning
from accelbus.delivery.supervisor import Supervisor
from accelbus.durable import write_atomically
from accelbus.errors import CorruptDataError, FrameError
from accelbus.events import TRAINER, RunClosed
from accelbus.journal.salvage import Remains
from accelbus.journal.spool_places import is_of_run, spool_directories
from accelbus.rundir import RunDir, RunRecord

_log = logging.getLogger(__name__)
_NOTICES_KEPT = 100
_OWN_TO_A_RANK = frozenset({"created_ns", "has_config", "search_path", "settings_of_rank", "world_size"})
_NOBODY_CAME = 60.0
"""Seconds after which a bus process that no producer ever reached leaves."""


class BusProcess:
    """Serves one run on one node until it is finished and delivered."""

    def __init__(self, run_dir: RunDir, socket: RouterSocket, *, tuning: Tuning) -> None:
        self._run_dir = run_dir
        self._tuning = tuning
        self._socket = socket
        self._ledger = Ledger(run_dir.journal, tuning=tuning)
        self._roster = Roster(run_dir.path / f"producers-{host.name()}.json")
        self._watch = SpoolWatch(tuning)
        self._record: RunRecord | None = None
        self._offered: dict[tuple[bool, int], RunRecord] = {}
        """{(is no trainer, rank): settings}; the lowest rules where rank 0's are missing."""
        self._supervisor: Supervisor | None = None
        self._notices: list[control.Notice] = []
        self._started = time.monotonic()
        self._closed_at: float | None = None
        self._closing_as = ""
        """Status in a RunClosed that is recorded and perhaps not written yet."""
        self._alone_since = time.monotonic()
        """Since when no producer lives."""
        self._complained_of_record = ""
        self._terminating_at: float | None = None
        self._bad_frames: Counter[str] = Counter()
        self._errors = 0
        self._unconfirmed: dict[bytes, bytes] = {}
        """{producer that said goodbye: routing id}, until what it logged is known to be safe"""
        self._verdict: control.Verdict | None = None
        self._handover: control.Handover | None = None
        """The newest; never written anywhere."""
        self._differing: set[str] = set()
        """Settings in which some rank differs from those that rule, and was told."""
        self._done = anyio.Event()
        self._turned_away = False
        self._somebody_left = anyio.Event()
        self._asked_again: dict[bytes, float] = {}
        self._launchers: dict[bytes, tuple[int, int]] = {}
        """{producer: pid and start time of its launcher}"""

    # --- life

    async def serve(self) -> None:
        """Run until everything is delivered, nobody needs this process any more, or it was told to end and had its grace."""
        strangers = await self._adopt()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive)
            tasks.start_soon(self._ledger.keep_synced)
            tasks.start_soon(self._ledger.keep_time)
            tasks.start_soon(self._watch_producers)
            tasks.start_soon(self._start_delivery, tasks)
            tasks.start_soon(self._report)
            tasks.start_soon(self._decide_when_to_leave)
            tasks.start_soon(anyio.to_thread.run_sync, partial(rescue_strangers, strangers, tuning=self._tuning))
            await self._done.wait()
            await self._stop_delivery()
            tasks.cancel_scope.cancel()
        await self._ledger.sync()
        await self._write_status("left")
        self._ledger.close()

    def terminate(self) -> bool:
        """Leave once the ranks are gone and the sinks are up to date, within the grace; False when that was asked before."""
        if self._terminating_at is not None:
            self._done.set()
            return False
        self._terminating_at = time.monotonic()
        return True

    def has_missed_somebody(self) -> bool:
        """Whether a producer came while this process was leaving. To be asked after `serve`, with the bus lock held.

        It has seen the lock held, so it starts no bus process itself; it may even have ended by now.
        """
        if self._terminating_at is not None:
            return False
        for spool in find_spools(spool_directories(self._tuning), self._tuning):
            os.close(spool.descriptor)
            is_new = spool.gone or spool.hello.producer not in self._roster.members
            if is_new and is_of_run(spool.hello, self._run_dir.path):
                return True
        return self._turned_away

    async def _stop_delivery(self) -> None:
        with anyio.move_on_after(self._tuning.exit_timeout):
            if self._supervisor is not None:
                self._tell_sink_states()
                await self._supervisor.stop()

    async def _decide_when_to_leave(self) -> None:
        tuning = self._tuning
        while True:
            await anyio.sleep(0.1)
            now = time.monotonic()
            if self._roster.live():
                self._alone_since = now
            delivered = self._closed_at is not None and (self._is_delivered() or now - self._closed_at > tuning.linger)
            terminated = self._terminating_at is not None and now - max(self._terminating_at, self._alone_since) > tuning.drain_grace
            if delivered or terminated or (not self._roster.members and now - self._started > _NOBODY_CAME):
                self._done.set()

    def _is_delivered(self) -> bool:
        if self._record is not None and (self._record.mode != "online" or not _own_sinks(self._record)):
            return True
        if self._supervisor is None:
            return False
        states = self._supervisor.states()
        return bool(states) and all(state.state == "finished" for state in states.values())

    # --- receiving

    async def _receive(self) -> None:
        while True:
            messages = await self._socket.receive()
            frames: list[bytes] = []
            events = 0
            through: dict[bytes, tuple[bytes, int]] = {}  # {producer: (peer, last seq to ack)}
            for peer, raw in messages:
                checked = self._check(raw)
                if checked is None:
                    continue
                if checked.kind == frame.CONTROL:
                    await self._survive("a control message", self._handle(peer, checked))
                    continue
                member = self._roster.by_peer(peer)
                if member is None or member.producer != checked.producer:
                    self._ask_who(peer)
                    continue
                self._roster.heard(member)
                known = through[member.producer][1] if member.producer in through else member.through_seq
                if checked.first_seq > known + 1:
                    # Something in between was lost on the way; acking this one would free what never came.
                    self._ask_who(peer)
                    continue
                if checked.last_seq > known or not checked.count:
                    frames.append(raw)
                    events += max(0, checked.last_seq - known)
                through[member.producer] = (peer, max(known, checked.last_seq))
            if through:
                await self._store(frames, events, through)
            await anyio.lowlevel.checkpoint()

    async def _store(self, frames: list[bytes], events: int, through: dict[bytes, tuple[bytes, int]]) -> None:
        if not await self._ledger.append(frames, events):
            return
        for producer, (peer, last) in through.items():
            member = self._roster.members[producer]
            member.through_seq = max(member.through_seq, last)
            member.last_seq = max(member.last_seq, last)
            self._send(peer, control.Ack(member.through_seq, self._tuning.credit_bytes, self._flush_interval))

    def _check(self, raw: bytes) -> frame.Frame | None:
        try:
            checked = frame.parse(raw)
            frame.check_claims(checked)
            if checked.kind == frame.RECORDS or checked.kind > frame.CONTROL:
                raise FrameError("kind", f"expected events or a control message, got a frame of kind {checked.kind}")
        except FrameError as error:
            self._drop(error)
            return None
        return checked

    def _drop(self, error: FrameError) -> None:
        """Count what a peer should not have sent."""
        self._bad_frames[error.reason] += 1
        count = self._bad_frames[error.reason]
        # The first, the tenth, the hundredth, …
        if str(count).strip("0") == "1":
            _log.warning("dropped what a peer sent, number %d of the kind: %s", count, error)

    async def _survive(self, what: str, work: Coroutine[Any, Any, None]) -> bool:
        """Do *work* for one producer; False when it failed, in a way that nobody thought of."""
        try:
            await work
        except Exception:  # noqa: BLE001  isolation: one producer must not end the process for all, again and again
            self._errors += 1
            if str(self._errors).strip("0") == "1":
                _log.exception("%s cannot be dealt with and is passed over, number %d of the kind", what, self._errors)
            return False
        return True

    def _ask_who(self, peer: bytes) -> None:
        now = time.monotonic()
        if now - self._asked_again.get(peer, float("-inf")) > 0.2:  # once per burst, not per frame
            self._asked_again = {p: at for p, at in self._asked_again.items() if now - at < 1.0} | {peer: now}
            self._send(peer, control.WhoAreYou())

    async def _handle(self, peer: bytes, checked: frame.Frame) -> None:
        try:
            message = control.unpack(checked)
        except FrameError as error:
            self._drop(error)
            return
        if isinstance(message, control.Hello):
            await self._welcome(peer, message)
            return
        member = self._roster.by_peer(peer)
        if member is None:
            self._ask_who(peer)
            return
        if self._roster.heard(member):
            self._ledger.record(self._roster.state_record(member))
        match message:
            case control.Heartbeat():
                self._send(peer, control.Ack(member.through_seq, self._tuning.credit_bytes, self._flush_interval))
                member.last_seq = max(member.last_seq, message.last_seq)
                member.dropped = message.dropped
            case control.Handover():
                self._take_handover(member, message)
            case control.Bye():
                await self._say_goodbye(peer, member, message)
            case _:
                self._drop(FrameError("control", f"expected a message of a producer, got {type(message).__name__}"))

    async def _welcome(self, peer: bytes, hello: control.Hello) -> None:
        if hello.run_id != self._run_dir.run_id:
            self._send(peer, control.Refused(f"this bus process serves run {self._run_dir.run_id!r}, not {hello.run_id!r}"))
            return
        if self._done.is_set():
            self._turned_away = True  # Leaving: it says hello again, to the next bus process.
            return
        known = self._roster.members.get(hello.producer)
        if known is not None and known.state == "finished" and hello.last_seq <= known.last_seq:
            # Sent before the word on its goodbye came, or because that got lost: nothing is new, and its process may be gone by now.
            member, _ = self._roster.join(hello, peer)
        else:
            member = self._take_in(hello, peer)
            self._reopen(member)
        await self._save_roster()
        if hello.record is not None:
            self._offer_record((hello.role != TRAINER, hello.rank), hello.record)
            self._compare((hello.role != TRAINER, hello.rank))
        self._send(
            peer,
            control.Welcome(
                self._ledger.incarnation, member.attempt, member.through_seq + 1, self._tuning.credit_bytes, self._flush_interval
            ),
        )
        if self._verdict is not None:
            self._send(peer, self._verdict)
        if hello.main:
            for notice in self._notices:
                self._send(peer, notice)
            self._tell_sink_states()

    def _reopen(self, member: Member) -> None:
        """A producer is here: the run goes on, whatever was thought of either."""
        if member.state not in LIVE:
            member.state, member.status = "alive", ""
            self._ledger.record(self._roster.state_record(member))
        self._closing_as = ""
        if self._closed_at is not None:
            self._closed_at = None
            if self._supervisor is not None:
                self._supervisor.resume()

    def _offer_record(self, who: tuple[bool, int], record: dict[str, Any]) -> None:
        try:
            self._offered[who] = msgspec.convert(record, RunRecord)
        except msgspec.ValidationError as error:
            self._drop(FrameError("record", f"rank {who[1]} sent settings that cannot be used: {error}"))

    def _take_in(self, hello: control.Hello, peer: bytes | None) -> Member:
        # What it has spilled is in the journal already.
        self._ledger.expect_events()
        member, joined = self._roster.join(hello, peer)
        if joined is not None:
            self._ledger.record(joined)
            for older in self._roster.fenced_by(member):
                self._ledger.record(self._roster.end(older, state="dead", status="killed"))
                if older.producer in self._roster.peer_of:
                    self._send(
                        self._roster.peer_of[older.producer],
                        control.Refused(
                            f"attempt {member.attempt} has started with a new rank {older.rank} on {member.host}, pid {member.pid}"
                        ),
                    )
        if hello.host == host.name():
            if hello.started_by is not None:
                self._launchers[member.producer] = hello.started_by
            member.salvageable = self._watch.watch(member.producer, hello.spool)
        return member

    async def _say_goodbye(self, peer: bytes, member: Member, message: control.Bye) -> None:
        member.last_seq = max(member.last_seq, message.final_seq)
        member.dropped = message.dropped
        if member.through_seq < message.final_seq:
            self._ask_who(peer)
            return
        if member.state in LIVE:
            self._ledger.record(self._roster.end(member, state="finished", status=message.status))
        self._unconfirmed[member.producer] = peer
        await self._confirm_goodbyes()

    async def _confirm_goodbyes(self) -> None:
        """Tell those who said goodbye that all of theirs is safe; when the disk refuses, as soon as it does not."""
        waiting = dict(self._unconfirmed)
        if not waiting or not (await self._ledger.append([]) and await self._ledger.sync()):
            return
        await self._save_roster()
        for producer, peer in waiting.items():
            if self._unconfirmed.pop(producer, None) is None:
                continue
            member = self._roster.members[producer]
            self._send(peer, control.Ack(member.through_seq, self._tuning.credit_bytes, self._flush_interval, final=True))
            self._watch.drop(producer, unlink=True)
            self._somebody_left.set()

    @property
    def _flush_interval(self) -> float:
        """20 Hz for a few producers, 1 Hz for ten thousand."""
        return max(self._tuning.pump_interval, len(self._roster.peers) / 10_000)

    def _send(self, peer: bytes, message: control.Message) -> None:
        self._socket.send(peer, control.pack(message, producer=self._ledger.incarnation))

    # --- producers that say nothing

    async def _adopt(self) -> set[Path]:
        """Take in the producers whose spools lie on this node: earlier incarnations of this process knew them.

        Returns the other runs that dead producers on this node have left something of.
        """
        if self._roster.is_new:
            self._roster.recall(await anyio.to_thread.run_sync(partial(recall, self._run_dir.journal, tuning=self._tuning)))
        found = await anyio.to_thread.run_sync(lambda: list(find_spools(spool_directories(self._tuning), self._tuning)))
        for spool in found:
            spool.hello.spool = str(spool.path)
            if self._is_ours(spool.hello):
                # Whatever became of its producer: a spool goes when its process is gone and all of it is in the journal.
                self._take_in(spool.hello, None)
        for spool in found:
            os.close(spool.descriptor)
        await self._ledger.append([])
        return {Path(spool.hello.run_dir) for spool in found if spool.gone} - {self._run_dir.path}

    async def _watch_producers(self) -> None:
        tuning = self._tuning
        while True:
            with anyio.move_on_after(tuning.probe_interval):
                await self._somebody_left.wait()
            self._somebody_left = anyio.Event()
            await self._find_producers()
            for producer in self._watch.gone():
                member = self._roster.members[producer]
                if not await self._survive(f"what rank {member.rank} left in its spool", self._bury(member)):
                    self._give_up(member)
            for member in self._roster.live():
                if not self._watch.is_watched(member.producer) and member.host == host.name() and not host.process_exists(member.pid):
                    self._ledger.record(self._roster.end(member, state="dead", status="killed"))
            for member in self._roster.silent_for(tuning.lost_after):
                if not self._watch.is_watched(member.producer):
                    self._ledger.record(self._roster.end(member, state="lost", status="lost"))
            for member in self._roster.newly_silent(tuning.silent_after):
                _log.warning("rank %d (%s, pid %d) has been silent for %.0f s", member.rank, member.host, member.pid, tuning.silent_after)
                self._ledger.record(self._roster.state_record(member))
            await self._confirm_goodbyes()
            await self._close_when_over()
            await self._ledger.append([])
            await self._save_roster()

    async def _find_producers(self) -> None:
        """Take in who has a spool on this node and said nothing yet: it may be killed before it gets a word out."""
        for hello in await anyio.to_thread.run_sync(self._watch.find_new, spool_directories(self._tuning)):
            if hello.producer not in self._roster.members and self._is_ours(hello):
                self._reopen(self._take_in(hello, None))

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
        member.last_seq = max(member.last_seq, remains.last_seq)
        member.dropped = remains.dropped
        if member.state in LIVE:
            said_so = bool(remains.status)
            record = self._roster.end(member, state="finished" if said_so else "dead", status=remains.status or "killed")
            self._ledger.record(record)

    async def _close_when_over(self) -> None:
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
        if await self._ledger.append([]) and await self._ledger.sync():
            self._closed_at = time.monotonic()

    def _grace(self, trainers: list[Member]) -> float:
        """How long a run without every rank's goodbye stays open: only while somebody may restart the ranks."""
        launchers = {self._launchers[member.producer] for member in trainers if member.producer in self._launchers}
        alive = any(host.process_start_time(pid) == started for pid, started in launchers)
        return self._tuning.restart_grace if alive and self._terminating_at is None else 0.5

    # --- delivery and reporting

    async def _start_delivery(self, tasks: anyio.abc.TaskGroup) -> None:
        """Wait for the run's record, rank 0's or after a grace the lowest rank's, then start the sinks."""
        while self._record is None:
            self._record = self._find_record()
            if self._record is None:
                await anyio.sleep(0.05)
        self._ledger.ack_after_sync = self._record.durability == "disk" or host.is_on_network(self._run_dir.path)
        for who in self._offered:
            self._compare(who)
        if self._record.mode != "online" or not (sinks := _own_sinks(self._record)):
            return
        await self._wait_for_handover()
        self._supervisor = Supervisor(self._run_dir, self._record, sinks=sinks, tuning=self._tuning, on_notice=self._notify)
        if self._handover is not None:
            self._supervisor.take_over_from(self._handover)
        tasks.start_soon(self._supervisor.run)
        if self._record.require or self._record.config_from:
            self._verdict = await judge(self._supervisor, self._record, timeout=self._tuning.require_timeout)
            for peer in self._roster.peers:
                self._send(peer, self._verdict)

    async def _wait_for_handover(self) -> None:
        """Wait for the main rank's word on its trackers, as long as it may come."""
        with anyio.move_on_after(self._tuning.handover_grace):
            while self._handover is None and not self._is_main_gone():
                await anyio.sleep(0.02)

    def _is_main_gone(self) -> bool:
        mains = [member for member in self._roster.members.values() if member.role == TRAINER and member.rank == 0]
        return bool(mains) and not any(member.state in LIVE for member in mains)

    def _take_handover(self, member: Member, handover: control.Handover) -> None:
        if member.producer in self._roster.wants_notices:
            self._handover = handover
            if self._supervisor is not None:
                self._supervisor.take_over_from(handover)

    def _compare(self, who: tuple[bool, int]) -> None:
        """Say once which settings of *rank* differ from those that rule."""
        ruling, offered, rank = self._record, self._offered.get(who), who[1]
        if ruling is None or offered is None:
            return
        for name in set(RunRecord.__struct_fields__) - _OWN_TO_A_RANK - self._differing:
            if getattr(offered, name) != getattr(ruling, name):
                self._differing.add(name)
                what = f"rank {rank} was started with {name}={getattr(offered, name)!r}"
                self._notify("warning", f"{what}; rank {ruling.settings_of_rank}'s {getattr(ruling, name)!r} is used", "")

    def _find_record(self) -> RunRecord | None:
        try:
            record = self._run_dir.read_record()
        except (CorruptDataError, OSError) as error:
            record = self._replace_record(error)
        waited = time.monotonic() - self._started
        if record is None and self._offered and (waited > self._tuning.settings_grace or self._closed_at is not None):
            who = min(self._offered)
            _log.warning("rank 0's settings did not come within %.0f s: those of rank %d are used", waited, who[1])
            record = self._offered[who]
            self._write_record(record)
        return record

    def _replace_record(self, error: CorruptDataError | OSError) -> RunRecord | None:
        """``run.json`` cannot be read: use what rank 0 says over the wire."""
        if self._complained_of_record != str(error):
            self._complained_of_record = str(error)
            _log.warning("%s; waiting for what rank 0 says", error)
        record = self._offered.get((False, 0))
        if record is not None:
            self._write_record(record)
        return record

    def _write_record(self, record: RunRecord) -> None:
        try:
            self._run_dir.write_record(record)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._run_dir.record_path, error)

    def _notify(self, level: str, text: str, sink: str) -> None:
        notice = control.Notice(level, text, sink)
        self._notices = [*self._notices, notice][-_NOTICES_KEPT:]
        for producer in self._roster.wants_notices & self._roster.peer_of.keys():
            self._send(self._roster.peer_of[producer], notice)

    def _tell_sink_states(self) -> None:
        states: dict[str, Any] = {}
        if self._supervisor is not None:
            states = {name: msgspec.to_builtins(state) for name, state in self._supervisor.states().items()}
        elif self._record is None:
            return
        for producer in self._roster.wants_notices & self._roster.peer_of.keys():
            self._send(self._roster.peer_of[producer], control.SinkStates(states))

    async def _report(self) -> None:
        next_status = 0.0
        while True:
            ending = any(member.state == "finished" for member in self._roster.members.values())
            await anyio.sleep(0.1 if ending else self._tuning.status_interval)
            self._tell_sink_states()
            if time.monotonic() >= next_status:
                next_status = time.monotonic() + self._tuning.status_interval
                await self._write_status("closed" if self._closed_at is not None else "open")

    async def _write_status(self, state: str) -> None:
        sinks = {} if self._supervisor is None else {name: msgspec.to_builtins(s) for name, s in self._supervisor.states().items()}
        status = {
            "run_id": self._run_dir.run_id,
            "state": state,
            "status": self._roster.status() if self._closed_at is not None else "running",
            "updated_ns": time.time_ns(),
            "bus": {
                "pid": os.getpid(), "host": host.name(), "disk_failing": self._ledger.is_failing, "bad_frames": self._bad_frames.total() + self._socket.malformed, "errors": self._errors,
                **self._ledger.statistics(),
            },
            "ranks": self._roster.snapshot(),
            "sinks": sinks,
        }  # fmt: skip
        try:
            await anyio.to_thread.run_sync(write_atomically, self._run_dir.status_path, msgspec.json.encode(status))
        except OSError as error:
            _log.debug("status.json: %s", error)

    async def _save_roster(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._roster.save)
        except OSError as error:
            _log.debug("the list of producers could not be written: %s", error)


def _own_sinks(record: RunRecord) -> tuple[str, ...]:
    """Return the sinks that are delivered to here; the main rank looks after the others itself."""
    return tuple(sink for sink in record.sinks if sink not in record.inline)


def _is_to_come_back(member: Member) -> bool:
    """Whether the launcher starts this rank's next attempt: then trackers need not close the run in between."""
    return member.may_restart and member.status != "finished"
