"""The pump: one thread per producer that moves events from the spool to the bus process, or to the run directory.

It wakes about twenty times a second, never per event, and holds the GIL for less than 60 µs at a time while the ring is not
filling up. Nothing it does can delay `Run.log`: the two share only the spool.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from accelbus import control, frame
from accelbus.client.launch import BusLauncher
from accelbus.client.wire import Wire
from accelbus.config import Tuning
from accelbus.errors import FrameError
from accelbus.journal.memory_queue import MemoryQueue
from accelbus.journal.segments import JournalWriter
from accelbus.journal.spool import Spool

_log = logging.getLogger(__name__)
_PRESSED = 0.25
"""Fill of the ring from which frames get larger and the pump stops sleeping."""
_NEARLY_FULL = 0.5
"""Fill of the ring from which events go to the run directory when acks do not keep up."""
_MOST_NOTICES = 1000
_NO_PROGRESS = 0.2
"""Seconds without an ack that count as not keeping up, when the ring is nearly full."""


class Wake:
    """Wakes one waiting thread; `set` may be called from anywhere, a signal handler included, and never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Let the waiting thread, or the next wait, return at once."""
        try:
            self._lock.release()
        except RuntimeError:
            return  # already set

    def wait(self, timeout: float) -> None:
        """Return when set, or after *timeout* seconds."""
        self._lock.acquire(timeout=timeout)


class Spill:
    """A writer of its own in the run's journal: what is written and synced there needs no ack any more."""

    def __init__(self, make_writer: Callable[[], JournalWriter], *, max_bytes: int) -> None:
        self._make_writer = make_writer
        self._writer: JournalWriter | None = None
        self._max_bytes = max_bytes
        self.written = 0
        self.frames = 0

    @property
    def has_room(self) -> bool:
        return self.written < self._max_bytes

    def write(self, frames: list[bytes]) -> None:
        """Append *frames* and sync.

        Raises:
            OSError: not safe; the events stay in the spool.
        """
        if self._writer is None:
            self._writer = self._make_writer()
        if self._writer.unsynced_bytes:
            # Of an earlier try. It is in the spool as well, and comes again; while the disk refuses, nothing is added to it.
            self._writer.sync()
        self._writer.append(frames)
        self._writer.sync()
        self.written += sum(map(len, frames))
        self.frames += len(frames)

    def close(self) -> None:
        if self._writer is not None:
            # What could not be synced was not released either: it is in the spool.
            with contextlib.suppress(OSError):
                self._writer.close()


class _Sent(NamedTuple):
    last_seq: int
    size: int
    at: float


class Producer(Protocol):
    """What the pump needs to know about whoever appends; see `accelbus.client.run`."""

    def hello(self, base_seq: int, last_seq: int) -> control.Hello: ...
    def handover(self) -> control.Handover | None: ...
    def dropped(self) -> dict[str, int]: ...


class Pump(threading.Thread):
    """Owns the wire; every method but `run` may be called from other threads and returns at once."""

    def __init__(
        self,
        queue: Spool | MemoryQueue,
        producer: Producer,
        *,
        wake: Wake,
        endpoint: str,
        launcher: BusLauncher | None,
        spill: Spill,
        tuning: Tuning,
        on_notice: Callable[[control.Notice], None],
        safe_seq: Callable[[], int | None] | None = None,
        before_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """*before_turn* may append what came in other ways than through ``log``. Acks count up to what *safe_seq* returns, if it returns
        something: a file that a later event names is not durable yet.
        """
        super().__init__(name="accelbus-pump", daemon=True)
        self._queue = queue
        self._producer = producer
        self._wake = wake
        self._endpoint = endpoint
        self._launcher = launcher
        self._spill = spill
        self._tuning = tuning
        self._on_notice = on_notice
        self._safe_seq = safe_seq or (lambda: None)
        self._before_turn = before_turn
        self._acked_seq = 0
        """The newest event that was acked; it is released when its files are safe."""
        first = producer.hello(1, 0)
        self._id, self._launch = first.producer, first.launch

        self._open = False  # welcomed
        self._owes_handover = False
        self._server: bytes | None = None
        self._credit = tuning.credit_bytes
        self._interval = tuning.pump_interval
        self._in_flight: deque[_Sent] = deque()
        self._bytes_in_flight = 0
        self._unsent: tuple[bytes, int] | None = None
        self._said_hello_at = self._ensured_at = self._heartbeat_at = self._spill_failed_at = float("-inf")
        self._progress_at = time.monotonic()
        self._goodbye: control.Bye | None = None
        self._said_goodbye = False
        self._said_goodbye_at = float("-inf")
        self._is_stuck = False
        """The socket took nothing in the last turn: nobody is connected."""
        self._looked_at = self._heard_at = float("-inf")
        self._paced_at = tuning.pump_interval
        self._stopping = False
        self._shown: set[str] = set()
        self.final = threading.Event()
        """The bus process has everything, synced, and knows that nothing follows."""
        self.verdict: control.Verdict | None = None
        """Whether the required trackers have started, once that is known."""
        self.refused: str | None = None
        self.sink_states: dict[str, Any] | None = None
        self.attempt: int | None = None
        self.counters = {
            "frames": 0,
            "resent": 0,
            "hellos": 0,
            "reconnects": 0,
            "spilled": 0,
            "spill_errors": 0,
            "bad_frames": 0,
            "errors": 0,
        }

    # --- called by other threads

    @property
    def connected(self) -> bool:
        return self._open

    @property
    def is_alone(self) -> bool:
        """No bus process has spoken for so long that one that is only slow would have."""
        return not self._open and time.monotonic() - self._heard_at > 2 * self._tuning.ack_timeout

    @property
    def may_be_served(self) -> bool:
        """The bus process has spoken lately, or is just being started."""
        if self._server is None:
            return self._launcher is not None and self._launcher.is_expected
        return time.monotonic() - self._heard_at < self._tuning.exit_timeout

    def say_goodbye(self, status: control.Ending) -> None:
        """Drain, then say that nothing follows; `final` is set when the bus process confirmed."""
        self._goodbye = control.Bye(self._queue.last_seq, status)
        self._wake.set()

    def stop(self) -> None:
        """End the thread soon, whatever is left."""
        self._stopping = True
        self._wake.set()

    # --- the thread

    def run(self) -> None:
        wire = Wire(self._endpoint, max_message=self._tuning.frame_bytes)
        wire.open()
        try:
            while not self._stopping:
                self._turn_whatever_happens(wire)
        finally:
            wire.close()
            # What it could not sync is in the spool still.
            with contextlib.suppress(OSError):
                self._spill.close()
            if self._launcher is not None:
                self._leave_to(self._launcher)

    def _turn_whatever_happens(self, wire: Wire) -> None:
        try:
            self._turn(wire)
        except Exception:  # noqa: BLE001  isolation: without this thread nothing would ever leave the spool
            self.counters["errors"] += 1
            if self.counters["errors"] == 1:
                _log.exception("moving events failed and is tried again; more failures are only counted")
            self._go_back()
            self._wake.wait(self._interval)

    def _leave_to(self, launcher: BusLauncher) -> None:
        """Nobody confirmed the goodbye: whoever comes finds the spool, closes the run and delivers what is owed."""
        if self._goodbye is not None and not self.final.is_set():
            launcher.ensure_for_the_last_time()
        launcher.settled()

    def _turn(self, wire: Wire) -> None:
        if self._goodbye is not None or (self._pressed and self._in_flight):
            # An ack is what helps now: wait for it on the socket, not for the next tick.
            wire.poll(5 if self._open else 20)
        elif not self._pressed or not self._open or self._is_stuck:
            self._wake.wait(self._interval)
        self._before_turn()
        now = time.monotonic()
        self._receive(wire, now)
        if self.refused is None:
            self._greet(wire, now)
            self._send_events(wire, now)
            self._heartbeat(wire, now)
        self._release_held()
        self._spill_when_needed(now)
        if self._goodbye is not None:
            self._send_goodbye(wire)

    @property
    def _pressed(self) -> bool:
        return self._queue.fill > _PRESSED

    def _receive(self, wire: Wire, now: float) -> None:
        """Take what has come. The usual tick finds one ack for all that is in flight and asks the socket once."""
        if not self._in_flight and self._open and self._goodbye is None and now - self._looked_at < self._tuning.heartbeat_interval / 2:
            return
        self._looked_at = now
        for _ in range(64):
            raw = wire.receive()
            if raw is None:
                return
            try:
                message = control.unpack(frame.parse(raw))
            except FrameError as error:
                self.counters["bad_frames"] += 1
                _log.debug("ignored a message from the bus process: %s", error)
                continue
            self._heard_at = now
            self._handle(message)
            if type(message) is control.Ack and not self._in_flight and not self._said_goodbye:
                return

    def _handle(self, message: control.Message) -> None:
        match message:
            case control.Ack():
                self._set_pace(message)
                self._release(message.through_seq)
                if message.final:
                    # What was reported before may be of an attempt that had ended.
                    self.sink_states = None
                    self.final.set()
            case control.Welcome():
                self._welcomed(message)
            case control.WhoAreYou():
                self._open = False
                self._said_hello_at = float("-inf")
            case control.Refused():
                self.refused, self._open = message.reason, False
                _log.warning("the bus process refused this producer: %s; events go to the run directory", message.reason)
            case control.Notice():
                self._show(message)
            case control.SinkStates():
                self.sink_states = message.sinks
            case control.Verdict():
                self.verdict = message
            case _:
                self.counters["bad_frames"] += 1

    def _welcomed(self, message: control.Welcome) -> None:
        if self._launcher is not None:
            self._launcher.settled()
        if self._server is not None and self._server != message.server:
            self.counters["reconnects"] += 1
        self._open, self._server, self.attempt = True, message.server, message.attempt
        self._owes_handover = True
        self._set_pace(message)
        self._release(message.resume_from - 1)
        self._go_back()
        # A goodbye was said to another bus process, or to this one before it knew what lies in the run directory.
        self._said_goodbye = False

    def _show(self, notice: control.Notice) -> None:
        """Once: a bus process tells everything to everybody who says hello, and so does the next one."""
        if notice.text not in self._shown and len(self._shown) < _MOST_NOTICES:
            self._shown.add(notice.text)
            self._on_notice(notice)

    def _set_pace(self, message: control.Welcome | control.Ack) -> None:
        self._credit = message.credit_bytes
        if message.flush_interval != self._paced_at:
            self._paced_at = message.flush_interval
            # Jitter, so that ranks that started together do not flush together.
            self._interval = message.flush_interval * random.uniform(0.9, 1.0)  # noqa: S311

    def _release(self, through_seq: int) -> None:
        before = self._queue.released_seq
        self._acked_seq = max(self._acked_seq, through_seq)
        if self._queue.release(self._limited(through_seq)) > before:
            self._progress_at = time.monotonic()
        while self._in_flight and self._in_flight[0].last_seq <= through_seq:
            self._bytes_in_flight -= self._in_flight.popleft().size

    def _limited(self, through_seq: int) -> int:
        safe_seq = self._safe_seq()
        return through_seq if safe_seq is None else min(through_seq, max(safe_seq, self._queue.released_seq))

    def _release_held(self) -> None:
        """Release what was acked before its files were safe."""
        if self._acked_seq > self._queue.released_seq:
            self._progress_at = time.monotonic()
            self._queue.release(self._limited(self._acked_seq))

    def _go_back(self) -> None:
        """Send everything that is not acked again."""
        self.counters["resent"] += len(self._in_flight)
        self._in_flight.clear()
        self._bytes_in_flight = 0
        self._unsent = None
        self._queue.rewind()

    def _greet(self, wire: Wire, now: float) -> None:
        if self._open and not self.final.is_set() and now - self._said_hello_at > self._tuning.ack_timeout and self._is_unanswered(now):
            self._open = False
            self._said_hello_at = float("-inf")
        if self._open:
            self._hand_over(wire)
            return
        if now - self._said_hello_at > self._tuning.bus_retry_interval:
            hello = self._producer.hello(self._queue.released_seq + 1, self._queue.last_seq)
            if self._send(wire, hello):
                self._said_hello_at = now
                self.counters["hellos"] += 1
        if self._launcher is not None and now - self._ensured_at > self._tuning.bus_retry_interval:
            self._ensured_at = now
            self._launcher.ensure()

    def _hand_over(self, wire: Wire) -> None:
        if self._owes_handover:
            handover = self._producer.handover()
            self._owes_handover = handover is not None and not self._send(wire, handover)

    def _is_unanswered(self, now: float) -> bool:
        timeout = self._tuning.ack_timeout
        if self._in_flight and now - self._in_flight[0].at > timeout:
            return True
        if self._said_goodbye and now - self._said_goodbye_at > timeout:
            return True
        # Every heartbeat is answered, so silence means that nobody is there, also when what was sent has been spilled since.
        return now - self._heard_at > timeout + self._tuning.heartbeat_interval

    def _send_events(self, wire: Wire, now: float) -> None:
        tuning = self._tuning
        while self._open and self._bytes_in_flight < self._credit:
            if self._unsent is None:
                if self._queue.taken_seq >= self._queue.last_seq:
                    return
                count = tuning.overload_frame_events if self._pressed else tuning.frame_events
                batch = self._queue.take(count, tuning.frame_bytes)
                if batch is None:
                    return
                self._unsent = (batch.to_frame(self._id, self._launch), batch.last_seq)
            raw, last_seq = self._unsent
            self._is_stuck = not wire.send(raw)
            if self._is_stuck:
                return
            self._unsent = None
            self._in_flight.append(_Sent(last_seq, len(raw), now))
            self._bytes_in_flight += len(raw)
            self.counters["frames"] += 1
            if not self._pressed and self._queue.taken_seq < self._queue.last_seq:
                time.sleep(0)  # between chunks, whoever waits for the GIL gets it

    def _heartbeat(self, wire: Wire, now: float) -> None:
        if self._open and now - self._heartbeat_at > self._tuning.heartbeat_interval:
            self._heartbeat_at = now
            self._send(wire, control.Heartbeat(self._queue.last_seq, self._producer.dropped()))

    def _send_goodbye(self, wire: Wire) -> None:
        goodbye = self._goodbye
        if goodbye is None or self._said_goodbye or not self._open or self._queue.released_seq < goodbye.final_seq:
            return
        goodbye.dropped = self._producer.dropped()
        self._said_goodbye = self._send(wire, goodbye)
        self._said_goodbye_at = time.monotonic()

    def _spill_when_needed(self, now: float) -> None:
        """Write what nobody acked to the run directory, which outlives this node."""
        queue, tuning = self._queue, self._tuning
        if queue.released_seq >= queue.last_seq:
            self._progress_at = now
            return
        stalled = now - self._progress_at
        needed = stalled > tuning.spill_after or (queue.fill > _NEARLY_FULL and stalled > _NO_PROGRESS)
        if not needed or now - self._spill_failed_at < tuning.disk_retry_interval or not self._spill.has_room:
            return
        try:
            self._spill_all()
        except OSError as error:
            self._spill_failed_at = now
            if not self.counters["spill_errors"]:
                _log.warning("events cannot be written to the run directory (%s); they stay in memory until it works", error)
            self.counters["spill_errors"] += 1
            self._go_back()

    def _spill_all(self) -> None:
        self._go_back()
        while self._spill.has_room:
            frames, last, size = [], 0, 0
            while size < self._tuning.frame_bytes:
                batch = self._queue.take(self._tuning.overload_frame_events, self._tuning.frame_bytes)
                if batch is None:
                    break
                frames.append(batch.to_frame(self._id, self._launch))
                size += len(frames[-1])
                last = batch.last_seq
            if not frames:
                return
            self._spill.write(frames)
            self.counters["spilled"] += len(frames)
            self._release(last)

    def _send(self, wire: Wire, message: control.Message) -> bool:
        return wire.send(control.pack(message, producer=self._id))
