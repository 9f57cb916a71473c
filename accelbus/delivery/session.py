"""One tracker, from its construction to its end: each call with its phase, its deadline watched from outside."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from accelbus.delivery.channel import Channel
from accelbus.delivery.deadletters import DeadLetters
from accelbus.delivery.ledger import Ledger, OwedRow
from accelbus.media import unpack
from accelbus.rundir import RunDir, RunRecord
from accelbus.tracking import GeneralTracker, Row, RunInfo, finish_with_status, load_tracker_class, make_tracker, overrides

CONFIG: Final = "config"
"""Stands for a row's label while the configuration is stored."""


class Session:
    """The tracker called *sink* of the run, made durable and counted."""

    def __init__(self, sink: str, run_dir: RunDir, record: RunRecord, *, channel: Channel, ledger: Ledger, letters: DeadLetters) -> None:
        self._sink = sink
        self._run_dir = run_dir
        self._record = record
        self._channel = channel
        self._ledger = ledger
        self._letters = letters
        self._tracker: GeneralTracker | None = None
        self._takes_batches = False
        self.names_rows = False
        """Report each row before it is tried."""

    @property
    def is_started(self) -> bool:
        return self._tracker is not None

    @property
    def takes_batches(self) -> bool:
        return self._takes_batches

    @property
    def durable_after(self) -> str:
        return getattr(self._tracker, "durable_after", "flush")

    def start(self, checkpoint: dict[str, Any]) -> None:
        """Build a tracker, take it back to *checkpoint* and start it. Raises whatever the tracker raises."""
        self._channel.enter("start")
        tracker_class = load_tracker_class(self._sink, self._record.search_path)
        logging_dir = self._run_dir.tracker_output(self._sink)
        if tracker_class.requires_logging_directory:
            logging_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        arguments = self._record.init_kwargs.get(self._sink) or self._record.init_kwargs.get(tracker_class.name) or {}
        tracker = make_tracker(tracker_class, self._record, logging_dir, arguments)
        tracker.run_info = self._run_info(logging_dir, resumed=bool(checkpoint))
        if overrides(tracker, "restore"):
            tracker.restore(checkpoint)
        tracker.start()
        self._takes_batches = overrides(tracker, "log_batch")
        self._tracker = tracker
        self._channel.status.url = self._url(logging_dir)
        self._channel.enter("idle")

    def store_config(self, config: dict[str, Any]) -> None:
        """Raises whatever the tracker raises."""
        self._channel.enter("log")
        self._name(CONFIG)
        try:
            # A copy: trackers have been seen to delete what they cannot store.
            self._current.store_init_configuration(copy.deepcopy(config))
        finally:
            self._channel.enter("idle")
            self._channel.status.row = ""

    def log(self, rows: Sequence[OwedRow]) -> float:
        """Hand over *rows* and return the seconds it took. Raises whatever the tracker raises."""
        channel, tracker = self._channel, self._current
        channel.enter("log")
        self._name(rows[0].label)
        began = time.monotonic()
        try:
            if self._takes_batches:
                tracker.log_batch([owed.row._replace(values=_without_media(owed.row.values)) for owed in rows])
            else:
                for owed in rows:
                    tracker.log(_without_media(owed.row.values), step=owed.row.step)
            for owed in rows:
                self._log_media(owed.row)
        finally:
            channel.enter("idle")
            channel.status.row = ""
        self._ledger.take(rows)
        channel.status.rows += len(rows)
        return time.monotonic() - began

    def give_up(self, owed: OwedRow, reason: str) -> None:
        """Write *owed* to the dead letters."""
        self._letters.append(owed.row, reason)
        self._ledger.give_up(owed)
        self._channel.status.dead_letters += 1
        self._channel.push()

    def flush(self) -> dict[str, Any]:
        """Make what was logged durable and return the tracker's checkpoint. Raises whatever the tracker raises."""
        self._channel.enter("flush")
        tracker = self._current
        if overrides(tracker, "flush"):
            tracker.flush()
        checkpoint = tracker.checkpoint() if overrides(tracker, "checkpoint") else {}
        self._channel.enter("idle")
        return _plain(checkpoint, self._sink)

    def finish(self, status: str | None) -> None:
        """Close the tracker; None: with no word on how the run ended. Raises whatever the tracker raises."""
        self._channel.enter("finish")
        if status is None:
            self._current.finish()
        else:
            finish_with_status(self._current, status)
        self._channel.enter("idle")

    def _log_media(self, row: Row) -> None:
        values: Mapping[str, object] = row.values
        for key, value in values.items():
            if isinstance(value, msgspec.msgpack.Ext):
                self._channel.enter("media")
                self._current.log_media(key, unpack(value, self._run_dir.blobs), row.step)

    def _run_info(self, logging_dir: Path, *, resumed: bool) -> RunInfo:
        record = self._record
        return RunInfo(
            run_id=record.run_id,
            project=record.project,
            name=record.name or record.run_id,
            group=record.group or "",
            tags=record.tags,
            notes=record.notes or "",
            resumed=resumed,
            state_dir=self._run_dir.sink(self._sink) / "state",
            output_dir=logging_dir,
            world_size=record.world_size,
        )

    def _name(self, label: str) -> None:
        """Say what is about to be tried, if the supervisor wants to know what a worker died of."""
        if self.names_rows:
            self._channel.status.row = label
            self._channel.push_now()

    @property
    def _current(self) -> GeneralTracker:
        if self._tracker is None:
            raise RuntimeError(f"tracker {self._sink!r} is not started")
        return self._tracker

    def _url(self, logging_dir: Path) -> str:
        with contextlib.suppress(Exception):  # an address is a convenience, a tracker without one works as well
            if url := getattr(self._tracker, "url", None):
                return str(url).encode("utf-8", "backslashreplace").decode()
        return str(logging_dir) if self._current.requires_logging_directory else ""


def _plain(checkpoint: Any, sink: str) -> dict[str, Any]:
    """Return *checkpoint* if it can be part of a cursor.

    Raises:
        TypeError: it cannot.
    """
    try:
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(checkpoint))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"checkpoint() of {sink!r} returned {checkpoint!r}; expected a dictionary of plain data ({error})") from error
    if not isinstance(plain, dict):
        raise TypeError(f"checkpoint() of {sink!r} returned {checkpoint!r}; expected a dictionary")
    return plain


def _without_media(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy: a row that is tried again must be what was logged."""
    return {key: value for key, value in values.items() if not isinstance(value, msgspec.msgpack.Ext)}


__all__ = ["CONFIG", "Session"]
