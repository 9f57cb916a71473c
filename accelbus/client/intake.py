"""From the arguments of ``log`` to events in the queue: everything but the hot path, which is `accelbus.client.run.Run.log`.

The hot path encodes what it was given and appends it. When that fails, because of the values, the step, the size or a full queue,
it comes here.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from itertools import count
from time import time_ns
from typing import Any

import msgspec

from accelbus import values as value_model
from accelbus.blobs import BlobStore
from accelbus.client.compiled import CompiledCallers, keep_out
from accelbus.client.device import Arrivals
from accelbus.client.faults import Faults
from accelbus.client.pump import Wake
from accelbus.config import Settings, Tuning
from accelbus.errors import QueueFullError
from accelbus.events import METRICS_TAG, ConfigUpdate, ConsoleLines, Fill, MetricDefinition, RunEnd, RunFacts, RunStart, Summary
from accelbus.journal.memory_queue import MemoryQueue
from accelbus.journal.spool import Spool
from accelbus.media import blob_names

_log = logging.getLogger("accelbus")
_check = msgspec.msgpack.Decoder().decode
_TOKEN_BYTES = 9
"""Longest encoded token of a value from a device."""
_FILL_BYTES = 64
"""More than an encoded `Fill` without values."""


class Intake:
    """The way into one producer's queue."""

    __slots__ = (
        "_auto_step",
        "_auto_steps",
        "_encoder",
        "_name",
        "_queue",
        "_settings",
        "_tuning",
        "_wake",
        "append",
        "arrivals",
        "encode",
        "faults",
        "files",
        "hook",
        "step",
    )

    def __init__(self, name: str, settings: Settings, tuning: Tuning, blobs: BlobStore, wake: Wake) -> None:
        self._name = name
        self._settings = settings
        self._tuning = tuning
        self.files = blobs
        """Of large values and media."""
        self._wake = wake
        self._encoder = value_model.encoder()
        self._queue: Spool | MemoryQueue | None = None
        self._auto_steps = count()
        self._auto_step = 0
        """Number of the last call without a step."""
        self.encode = self._encoder.encode
        hook = self._encoder.enc_hook
        assert isinstance(hook, value_model.Hook)
        hook.blobs = blobs
        self.hook = hook
        """Its ``calls`` tell whether Python code ran while a dict was being encoded."""
        self.step: int | None = None
        """The last explicit step."""
        self.append: Callable[[bytes], bool] = _keep_nothing
        """Appends an encoded event; False when `refused` has to decide about it. What it is depends on the state of the run."""
        self.faults = Faults(strict=settings.strict)
        self.arrivals = Arrivals(self.faults, patience=tuning.device_patience)
        """Values on their way from a device."""
        hook.device_value = self.arrivals.begin
        hook.on_tensor = CompiledCallers().look
        keep_out()

    # --- states

    def open(self, queue: Spool | MemoryQueue) -> None:
        """Events go to *queue* from here on."""
        self.files.last_seq = lambda: queue.last_seq
        self._queue = queue
        self.append = queue.append
        self.faults.keep_in(queue.file)

    def close(self, event: RunEnd) -> None:
        """Keep *event* as the last one, and count those that come all the same."""
        self.append = self._refuse_closed
        if self._queue is not None:
            self._queue.seal(self.encode(event))

    def detach(self) -> None:
        """The queue is about to be unmapped."""
        self._queue = None
        self.faults.keep_in(None)

    def become_inert(self) -> None:
        """This process is a child of the producer's."""
        self._queue = None
        self.append = self._refuse_inert
        self.faults.forget_file()

    # --- events

    def put(
        self,
        values: Any,
        step: Any,
        *,
        sinks: tuple[str, ...] = (),
        log_kwargs: dict[str, Any] | None = None,
        beside: bool = False,
    ) -> None:
        """Keep what can be kept of a call that the hot path could not take as it is.

        Args:
            values: what was passed.
            step: as for `Run.log`.
            sinks: whom it is for; nobody named: everybody.
            log_kwargs: {sink: keyword arguments}, plain data.
            beside: it is no step of its own where steps are counted per call: it belongs to the last one.
        """
        if self._is_shut():
            self.append(b"")
            return
        now = time_ns()
        try:
            clean, faults = value_model.sanitise(values, self._encoder)
        except RecursionError as error:
            self.faults.blame("bad_values", "values", f"cannot be walked through ({error})")
            return
        self.faults.blame_all(faults)
        if faults and not clean:
            return
        step, auto_step = self._resolve(step, beside=beside)
        event: tuple[Any, ...] = (METRICS_TAG, now, step, clean) if step is not None else (METRICS_TAG, now, None, clean, auto_step)
        if sinks or log_kwargs:
            event = (METRICS_TAG, now, step, clean, auto_step, sinks, log_kwargs)
        self._put_event(event)

    def put_start(self, event: RunStart) -> None:
        """Keep the first event."""
        self._append_reserved(self.encode(event))

    def put_config(self, event: ConfigUpdate) -> None:
        """Keep plain, nested hyperparameters, also when the queue is full."""
        if self._queue is None:
            return
        parts, large = value_model.split(event.values, self._tuning.event_bytes, self._encoder)
        for part in [*parts, *self._as_blobs(large)] or [{}]:
            self._append_reserved(self.encode(ConfigUpdate(event.time_ns, part, event.sinks)))

    def put_statement(self, event: MetricDefinition | Summary) -> None:
        """Keep what is said about the run; the values of a summary are cleaned like those of a log call."""
        if self._is_shut():
            self.append(b"")
            return
        if isinstance(event, MetricDefinition):
            self._append_reserved(self.encode(event))
            return
        # With an encoder that waits for devices: these come rarely, and say how things are now.
        clean, faults = value_model.sanitise(event.values)
        for key in [key for key, value in clean.items() if isinstance(value, msgspec.msgpack.Ext)]:
            del clean[key]
            faults.append(value_model.Fault(key, "media", "unsupported_value", "a summary holds numbers and text; log it instead"))
        self.faults.blame_all(faults)
        parts, large = value_model.split(clean, self._tuning.event_bytes, self._encoder)
        for part in [*parts, *self._as_blobs(large)]:
            payload = self.encode(Summary(event.time_ns, part, event.sinks))
            if not self.append(payload):
                self.refused(payload, None, None)

    def put_arrivals(self, *, give_up: bool = False) -> None:
        """Keep what has arrived from devices since the last time; with *give_up*, say of the rest that it is lost."""
        arrived = self.arrivals.give_up() if give_up else self.arrivals.collect()
        part: dict[int, Any] = {}
        part_bytes = 0
        for token, value in arrived.items():
            size = len(self.encode(value)) + _TOKEN_BYTES
            if part and part_bytes + size > self._tuning.event_bytes - _FILL_BYTES:
                self._put_fill(part)
                part, part_bytes = {}, 0
            part[token] = value
            part_bytes += size
        if part:
            self._put_fill(part)

    def _put_fill(self, values: dict[int, Any]) -> None:
        queue, payload = self._queue, self.encode(Fill(time_ns(), values))
        # The reserved room last: its event is there, and waits for it.
        if queue is None or not (queue.append(payload) or queue.append_reserved(payload)):
            for _ in values:
                self.faults.count("device_lost", f"{self._name}: values from a device are dropped; the queue is full")

    def put_aside(self, event: RunFacts | ConsoleLines) -> bool:
        """Keep what is good to have: in the room that is left, never waiting, counting or warning. Returns whether it is kept."""
        queue = self._queue
        if queue is None:
            return False
        if not isinstance(event, RunFacts):
            return queue.append(self.encode(event))
        parts, large = value_model.split(event.facts, self._tuning.event_bytes, self._encoder)
        for key, value in large.items():
            try:
                parts.append({key: self.files.write(self.encode(value))})
            except OSError:
                parts.append({key: None})
        kept = [queue.append(self.encode(RunFacts(event.time_ns, part))) for part in parts]
        return all(kept)

    def refused(self, payload: bytes, values: Any, step: int | None) -> None:
        """The queue did not take *payload*: the run is over, the event too large, or the queue full.

        Raises:
            QueueFullError: only with ``on_full="raise"``.
        """
        if self._is_shut():
            self._count_late(payload)
            return
        if values is not None and len(payload) > self._tuning.event_bytes:
            # What the payload holds: images and files in it were copied already.
            self.put(_check(payload)[3], step)
        else:
            self._apply_policy(payload)

    def is_intact(self, payload: bytes) -> bool:
        """Whether an event decodes. It does not when another thread changed a dict while a hook ran: its length was written before."""
        try:
            event = _check(payload)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return False
        if self.files.unclaimed:
            self.files.claim(blob_names(event[3]))
        return True

    def _resolve(self, step: Any, *, beside: bool) -> tuple[int | None, int]:
        """Return the step, or None and the number of this call."""
        if step is not None:
            try:
                self.step = value_model.step_of(step)
            except ValueError as error:
                self.faults.blame("bad_step", "step", f"{error}; the values go to the last step")
        if self.step is not None:
            return self.step, 0
        if not beside:
            self._auto_step = next(self._auto_steps)
        return None, self._auto_step

    def _put_event(self, event: tuple[Any, ...]) -> None:
        """Append an event of clean values, in as many parts as it takes."""
        if self.files.unclaimed:
            self.files.claim(blob_names(event[3]))
        payload = self.encode(event)
        if len(payload) <= self._tuning.event_bytes:
            if not self.append(payload):
                self.refused(payload, None, None)
            return
        parts, large = value_model.split(event[3], self._tuning.event_bytes, self._encoder)
        for part in [*parts, *self._as_blobs(large)]:
            payload = self.encode((*event[:3], part, *event[4:]))
            if not self.append(payload):
                self.refused(payload, None, None)

    def _as_blobs(self, large: dict[str, Any]) -> list[dict[str, Any]]:
        """Write values that are too large for an event to files, and return what stands for them."""
        references = []
        for key, value in large.items():
            try:
                references.append({key: self.files.write(self.encode(value))})
            except OSError as error:
                self.faults.count("blob_full", f"{key!r} needs a file in the run directory: {error}", topic=f"blob_full:{key}")
        return references

    def _append_reserved(self, payload: bytes) -> None:
        queue = self._queue
        if queue is not None and queue.append_reserved(payload):
            return
        if self._is_shut():
            self._count_late(payload)
        else:
            self._count_full("full")

    def _is_shut(self) -> bool:
        """Whether events do not go to a queue, or not any more."""
        queue = self._queue
        return queue is None or self.append != queue.append

    def _count_late(self, payload: bytes) -> None:
        """*payload* was on its way to the queue when the run was finished, by another thread or by a handler that interrupted its `log`."""
        self._discard_files_of(payload)
        if self.append == self._refuse_closed:
            self.faults.count("closed", f"{self._name} was finished in the middle of a log(): its values are not kept")
        else:
            self.append(payload)

    # --- a full queue

    def _apply_policy(self, payload: bytes) -> None:
        if self._settings.on_full == "raise":
            self._discard_files_of(payload)
            self.faults.count_silently("full")
            raise QueueFullError(f"{self._name}: the spool is full; neither the bus process nor the run directory keeps up")
        if self._settings.on_full == "block" and self._append_blocking(payload):
            return
        self._discard_files_of(payload)
        self._count_full("blocked" if self._settings.on_full == "block" else "full")

    def _discard_files_of(self, payload: bytes) -> None:
        """Nobody will ask for the files that a dropped event names."""
        with contextlib.suppress(msgspec.MsgspecError):  # the file stays until somebody prunes the run
            self.files.discard(list(blob_names({"": _check(payload)})))

    def _count_full(self, reason: str) -> None:
        self.faults.count(
            reason, f"{self._name}: events are dropped; the spool is full, neither the bus process nor the run directory keeps up"
        )

    def _append_blocking(self, payload: bytes) -> bool:
        deadline = time.monotonic() + self._tuning.block_timeout
        while time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.001)
            if self.append(payload):
                return True
        return False

    # --- what `append` is when there is no queue

    def _refuse_closed(self, _: bytes) -> bool:
        self.faults.misuse("closed", f"log() after finish() of {self._name}: the values are not kept")
        return True

    def _refuse_inert(self, _: bytes) -> bool:
        self.faults.count("forked", f"{self._name} belongs to another process; call accelbus.attach() here to log from this one")
        return True


def _keep_nothing(_: bytes) -> bool:
    """Stand in for the queue of a disabled run."""
    return True
