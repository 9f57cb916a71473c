"""An open run in this process: its queue, the thread that empties it, and what else the main rank has."""

from __future__ import annotations

import logging
import time
from time import time_ns

import msgspec

from accelbus import control, host
from accelbus.client import notices
from accelbus.client.console import Console
from accelbus.client.facts import Recorder
from accelbus.client.inline import InlineTrackers
from accelbus.client.intake import Intake
from accelbus.client.introduction import Introduction
from accelbus.client.launch import BusLauncher, node_directory
from accelbus.client.placement import place
from accelbus.client.pump import Pump, Spill, Wake
from accelbus.client.statistics import Statistics
from accelbus.config import Tuning
from accelbus.events import ConsoleLines, RunEnd, RunFacts
from accelbus.journal.memory_queue import MemoryQueue
from accelbus.journal.segments import JournalWriter
from accelbus.journal.spool import Spool

_log = logging.getLogger("accelbus")


class Session:
    """Made when a run opens; after `close` it only answers questions."""

    def __init__(self, introduction: Introduction, intake: Intake, *, tuning: Tuning, wake: Wake) -> None:
        """Place the spool, let *intake* use it, and start the pump.

        Raises:
            ConfigurationError: no place for sockets that is ours alone; nothing was opened.
        """
        self.introduction = introduction
        self.settings = introduction.settings
        self.tuning = tuning
        self.inline: InlineTrackers | None = None
        self._intake = intake
        self._wake = wake
        self._console: Console | None = None
        self._recorder: Recorder | None = None
        self._final = Statistics()
        self._queue: Spool | MemoryQueue | None = None
        self._where = ""
        launcher = self._make_launcher()
        introduction.look_around()
        self._queue, self._where = place(introduction.hello(1, 0), durability=self.settings.durability, tuning=tuning, wake=wake)
        intake.open(self._queue)
        intake.put_start(introduction.start_event())
        if launcher is not None:
            # Here and not only in the pump: a rank killed in its first milliseconds leaves somebody who finds its spool.
            launcher.ensure()
        self.pump = self._make_pump(self._queue, launcher)
        self.pump.start()

    def start_inline(self) -> None:
        """Start the trackers that live in this process, if it is the main rank's. Returns at once."""
        introduction = self.introduction
        if introduction.trackers.inline and introduction.is_main and self.settings.mode == "online":
            self.inline = InlineTrackers(
                introduction.run_dir, introduction.record(), introduction.trackers, tuning=self.tuning, on_notice=notices.show
            )
            self.inline.start()

    # --- what the pump asks

    def hello(self, base_seq: int, last_seq: int) -> control.Hello:
        file = self._queue.file if self._queue is not None else None
        return self.introduction.hello(base_seq, last_seq, spool=str(file.path) if file is not None else None, spool_kind=self._where)

    def handover(self) -> control.Handover | None:
        return self.introduction.handover(limit_bytes=self.tuning.frame_bytes // 4)

    def dropped(self) -> dict[str, int]:
        return self._intake.faults.dropped()

    # --- what is printed, and the run record

    def start_recording(self) -> None:
        """Begin to collect the run record and what is printed, as far as the settings want it, in the main rank. Returns at once."""
        identity, put = self.introduction.identity, self._intake.put_aside
        if not self.introduction.is_main or identity is None:
            return
        if self.settings.console:
            self._console = Console(lambda stream, lines: put(ConsoleLines(time_ns(), lines, stream)), self.tuning)
            self._console.open(self.pump.ident)
        if self.settings.run_record:
            self._recorder = Recorder(identity, self.settings, self.tuning, lambda facts: put(RunFacts(time_ns(), facts)))
            self._recorder.start()

    def stop_recording(self, patience: float) -> None:
        """Hand over the last lines that were printed, and what is known of the run record after at most *patience* seconds."""
        if self._console is not None:
            self._console.close()
        if self._recorder is not None:
            self._recorder.finish(patience)

    # --- safety

    @property
    def is_safe(self) -> bool:
        """Whether everything is in the run directory, or acked."""
        queue = self._queue
        return queue is None or queue.released_seq >= queue.last_seq

    def flush(self, timeout: float) -> bool:
        """Wait until everything logged so far is safe; False when *timeout* seconds were not enough."""
        queue = self._queue
        if queue is None:
            return True
        deadline = time.monotonic() + timeout
        self.wait_for_devices(timeout)
        target = queue.last_seq
        while queue.released_seq < target:
            if time.monotonic() > deadline:
                return False
            self._wake.set()
            time.sleep(0.002)
        return True

    def wait_for_devices(self, timeout: float) -> None:
        """Wait for values that are on their way from a device, at most *timeout* seconds."""
        deadline = time.monotonic() + timeout
        self._intake.put_arrivals()
        while self._intake.arrivals and time.monotonic() < deadline:
            time.sleep(0.001)
            self._intake.put_arrivals()

    def end(self, status: control.Ending, reason: str) -> None:
        """Say that nothing follows: to the journal, to whoever finds the spool, and to the bus process."""
        self.wait_for_devices(self.tuning.exit_timeout)
        self._intake.put_arrivals(give_up=True)
        self._intake.close(RunEnd(time_ns(), status, reason))
        if self._queue is not None and self._queue.file is not None:
            self._queue.file.mark_ending(status)
        self.pump.say_goodbye(status)

    def wait_until_safe(self) -> bool:
        """Wait, bounded, until everything is safe and the bus process knows that nothing follows."""
        deadline = time.monotonic() + self.tuning.exit_timeout
        while time.monotonic() < deadline:
            if self.pump.final.wait(0.005):
                return True
            if self.is_safe and self.pump.is_alone and self.pump.counters["spilled"]:
                return True  # all of it is in the run directory, and nobody is there to confirm
        return self.is_safe

    def settle_files(self, *, in_a_hurry: bool) -> None:
        """Wait, bounded, until large values and files are durable, and those of other file systems copied; warn if they are not."""
        patience = self.tuning.exit_timeout
        if not self._intake.files.settle(patience, copies=patience if in_a_hurry else max(patience, self.tuning.copy_timeout)):
            _log.warning("large values of run %s, rank %d, may not be on disk", self.introduction.run_dir.run_id, self.introduction.rank)

    def say_what_is_at_risk(self) -> None:
        """Warn: how much is nowhere but here, and how to get it."""
        queue = self._queue
        if queue is None:
            return
        where = (
            f"they are in {queue.file.path}: `accelbus salvage {queue.file.path}` brings them into the run"
            if isinstance(queue, Spool)
            else "they end with this process"
        )
        _log.warning(
            "%d events of run %s, rank %d, are not in the run directory; %s",
            queue.last_seq - queue.released_seq,
            self.introduction.run_dir.run_id,
            self.introduction.rank,
            where,
        )

    def wait_for_verdict(self, timeout: float) -> control.Verdict | None:
        """Return what the bus process says about the required trackers and the configuration, None after *timeout* seconds."""
        deadline = time.monotonic() + timeout
        while self.pump.verdict is None and time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.02)
        return self.pump.verdict

    # --- the end

    def close(self, *, safe: bool) -> None:
        """Stop the pump, and let go of the queue if it has stopped; the file goes too if everything is *safe* and that was confirmed."""
        queue, pump = self._queue, self.pump
        pump.stop()
        pump.join(2.0)
        confirmed = pump.final.is_set()
        if queue is None:
            return
        if confirmed and queue.file is not None:
            queue.file.mark_closed()
        if not pump.is_alive():
            # Without the bus process's word the file stays: it tells the next one that this producer was here, and ended.
            self._final = self.statistics()
            self._queue = None
            self._intake.detach()
            queue.close(unlink=confirmed and safe)

    def abandon_in_child(self) -> None:
        """Let go after a fork: the spool, the socket and the threads are the parent's."""
        if self._queue is not None and self._queue.file is not None:
            self._queue.file.abandon_in_child()
        if self._console is not None:
            self._console.abandon_in_child()

    def statistics(self) -> Statistics:
        """Return a snapshot of the producer's counters."""
        queue, pump = self._queue, self.pump
        if queue is None:
            return msgspec.structs.replace(self._final, dropped=self.dropped())
        logged, acked = queue.last_seq, queue.released_seq
        return Statistics(
            logged=logged, acked=acked, pending=logged - acked, dropped=self.dropped(), spool=self._where, fill=queue.fill,
            on_device=len(self._intake.arrivals), connected=pump.connected, attempt=pump.attempt, console_left_out=0 if self._console is None else self._console.lines_left_out,
            **pump.counters,
        )  # fmt: skip

    # --- opening

    def _make_launcher(self) -> BusLauncher | None:
        if self.settings.endpoint is not None:
            return None
        run_dir = self.introduction.run_dir
        return BusLauncher(run_dir, node_directory(run_dir, self.tuning), tuning=self.tuning)

    def _make_pump(self, queue: Spool | MemoryQueue, launcher: BusLauncher | None) -> Pump:
        files = self._intake.files
        directory = self.introduction.run_dir.journal / f"spill-{self.introduction.producer.hex()}"
        spill = Spill(
            lambda: JournalWriter(directory, tuning=self.tuning, local=not host.is_on_network(directory.parent)),
            max_bytes=self.tuning.spill_bytes,
        )
        return Pump(
            queue,
            self,
            wake=self._wake,
            endpoint=self.settings.endpoint or (launcher.endpoint if launcher is not None else ""),
            launcher=launcher,
            spill=spill,
            tuning=self.tuning,
            on_notice=notices.show,
            before_turn=self._intake.put_arrivals,
            # Elsewhere acked means less: with the system, and on disk a moment later.
            safe_seq=(lambda: files.safe_seq) if self.settings.durability == "disk" or host.is_on_network(directory.parent) else None,
        )


__all__ = ["Session"]
