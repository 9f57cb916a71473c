"""One tracker, from its construction to its end: each call with its phase, its deadline watched from outside."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from accelbus.config import SinkOptions
from accelbus.delivery.channel import Channel
from accelbus.delivery.deadletters import DeadLetters
from accelbus.delivery.feeder import describe_text
from accelbus.delivery.handed import HandedRows, Refused
from accelbus.delivery.ledger import Ledger, OwedRow
from accelbus.delivery.making import Maker
from accelbus.delivery.output import check_output
from accelbus.delivery.selection import redacted
from accelbus.delivery.statements import Kind, loaded
from accelbus.media import TIME, unpack
from accelbus.rundir import RunDir, RunRecord
from accelbus.tracking import GeneralTracker, RefusedRow, RunInfo, finish_with_status, name_and_rank, overrides, wants_every_rank
from accelbus.values import config_values

logger = logging.getLogger(__name__)

_MOST_NOTICES: Final = 21
"""In a status: more than a supervisor passes on. What comes later is in the worker's log only."""


class Session:
    """The tracker called *sink* of the run, made durable and counted."""

    def __init__(
        self, sink: str, run_dir: RunDir, record: RunRecord, maker: Maker, *, channel: Channel, ledger: Ledger, letters: DeadLetters
    ) -> None:
        self._maker = maker
        self._sink = sink
        self._run_dir = run_dir
        self._record = record
        self._channel = channel
        self._ledger = ledger
        self._letters = letters
        self._options = record.sink_options.get(sink, SinkOptions())
        self._tracker: GeneralTracker | None = None
        self._takes_batches = False
        self._log_kwargs: Mapping[str, Any] = record.log_kwargs.get(sink, {})
        """Of every call."""
        self._takes_keyword: Callable[[str], bool] = bool
        self._refused_keywords: set[str] = set()
        self._handed: HandedRows | None = None
        """Of trackers that may say later that their service refused a row."""
        self._refused: deque[Refused] = deque()
        """What the tracker has said, until it is in the dead letters."""
        self._is_closed = False
        """The tracker was finished; what it refused may not be written yet."""
        self.names_rows = False
        """Report each row before it is tried."""
        self.names_media = False
        """The same for media."""

    @property
    def is_started(self) -> bool:
        return self._tracker is not None

    @property
    def tracker(self) -> GeneralTracker | None:
        """The tracker, once it has started."""
        return self._tracker

    @property
    def takes_batches(self) -> bool:
        return self._takes_batches

    @property
    def durable_after(self) -> str:
        return getattr(self._tracker, "durable_after", "flush")

    def start(self, checkpoint: dict[str, Any], *, resumed: bool) -> None:
        """Build a tracker, take it back to *checkpoint* and start it. Raises whatever the tracker raises.

        Args:
            checkpoint: of the cursor.
            resumed: a start was begun before, here or in an earlier process.

        Raises:
            OutputGoneError: what was delivered before is not there any more.
        """
        self._channel.enter("start")
        self.check_output(checkpoint)
        logging_dir = self._logging_dir
        tracker = self._maker.make(logging_dir, self._state_dir)
        tracker.run_info = self._run_info(logging_dir, resumed=resumed)
        tracker.tell_user = self.notice
        self._is_closed = False
        if overrides(tracker, "restore"):
            tracker.restore(checkpoint)
        tracker.start()
        self._takes_batches = overrides(tracker, "log_batch")
        self._handed = HandedRows() if overrides(tracker, "refused_rows") else None
        declared = getattr(tracker, "log_keywords", None)
        self._takes_keyword = _keywords_of(getattr(tracker, "logs_with", tracker.log)) if declared is None else declared.__contains__
        self._tracker = tracker
        self._channel.status.url = self._url(logging_dir)
        if wants_every_rank(getattr(tracker, "inner", tracker)) and self._record.world_size > 1 and name_and_rank(self._sink)[1] is None:
            # Only who has imported the class knows; a rank does not.
            self.notice(
                "main_process_only is False, but this is one tracker for all ranks, as a class that is named has: give log_with the class "
                f"itself, or sink_options={{{self._sink!r}: {{'per_rank': True}}}}, for one in every rank"
            )
        self._channel.enter("idle")

    def resolve_config(self) -> dict[str, Any] | None:
        """Return the configuration as the tracker has resolved it, None when it has no word on it.

        Raises:
            ConfigurationError: what it returned is no configuration.
        """
        self._channel.enter("start")
        try:
            resolve = getattr(self._current, "resolved_config", None)
            resolved = resolve() if callable(resolve) else None
            return None if resolved is None else config_values(resolved)
        finally:
            self._channel.enter("idle")

    def tell(self, kind: Kind, said: Any) -> None:
        """Hand over what ranks said about the run. Raises whatever the tracker raises."""
        self._channel.enter("log")
        self._name(kind, when=self.names_rows)
        try:
            self._tell(kind, said)
        finally:
            self._channel.enter("idle")
            self._channel.status.row = ""

    def log(self, rows: Sequence[OwedRow]) -> float:
        """Hand over *rows*, none of them media, and return the seconds it took. Raises whatever the tracker raises."""
        channel, tracker = self._channel, self._current
        channel.enter("log")
        self._name(rows[0].label, when=self.names_rows)
        began = time.monotonic()
        keywords = self._taken_keywords({**self._log_kwargs, **rows[0].row.log_kwargs})
        try:
            # Copies, here and below: trackers have been seen to empty what they are given, and a row may be tried again.
            if self._takes_batches:
                tracker.log_batch([owed.row._replace(values=dict(owed.row.values), log_kwargs=keywords) for owed in rows])
            else:
                for owed in rows:
                    tracker.log(dict(owed.row.values), step=owed.row.step, **keywords)
        finally:
            channel.enter("idle")
            channel.status.row = ""
        self._take(rows)
        channel.status.rows += len(rows)
        return time.monotonic() - began

    def log_media(self, rows: Sequence[OwedRow]) -> float:
        """`log` for media, which have more time."""
        channel = self._channel
        began = time.monotonic()
        for owed in rows:
            channel.enter("media")
            self._name(owed.label, when=self.names_media)
            try:
                media = unpack(owed.media, self._run_dir.blobs)
                media.meta[TIME] = owed.row.time_ns
                self._current.log_media(owed.media_key or "", media, owed.row.step)
            finally:
                channel.enter("idle")
                channel.status.row = ""
            self._take([owed])
            channel.status.media += 1
        return time.monotonic() - began

    def give_up(self, owed: OwedRow, reason: str) -> None:
        """Write *owed* to the dead letters."""
        self._letters.append(owed.row, reason)
        self._channel.status.last_error = describe_text(reason)
        self._ledger.give_up(owed)
        self._channel.status.dead_letters += 1
        self._channel.push()

    def give_up_statement(self, kind: Kind, said: Any, reason: str) -> None:
        """Write what ranks said about the run to the dead letters.

        Raises:
            OSError: there is no room for it.
        """
        if kind != "console":
            said = loaded(said, self._run_dir.blobs)
            if kind == "config" and self._options.redact:
                said = redacted(said, self._options.redact)
        self._letters.append_statement(kind, said, describe_text(reason))
        self._channel.status.dead_letters += 1
        self._channel.push()

    def flush(self) -> dict[str, Any]:
        """Make what was logged durable and return the tracker's checkpoint. Raises whatever the tracker raises."""
        self._channel.enter("flush")
        tracker = self._current
        if overrides(tracker, "flush"):
            tracker.flush()
        self.settle_refusals()
        checkpoint = self._checkpoint()
        self._channel.enter("idle")
        return checkpoint

    def finish(self, status: str | None) -> dict[str, Any]:
        """Close the tracker and return its checkpoint: a later attempt starts from there.

        Args:
            status: None: with no word on how the run ended.
        """
        self._channel.enter("finish")
        if self._is_closed:
            # The dead letters could not be written; it is not closed twice for that.
            pass
        elif status is None:
            self._current.finish()
        else:
            finish_with_status(self._current, status)
        self._is_closed = True
        self.settle_refusals()
        checkpoint = self._checkpoint()
        self._channel.enter("idle")
        return checkpoint

    def settle_refusals(self) -> None:
        """Write what the tracker's service has refused, of the rows it had taken, to the dead letters.

        Raises:
            OSError: there is no room for it; what is left is written with the next call.
        """
        if self._handed is None:
            return
        for refusal in self._current.refused_rows():
            self._refused.extend(self._handed.refused(RefusedRow(*refusal)))
        while self._refused:
            row, contributions, reason = self._refused[0]
            self._letters.append(row, describe_text(reason))
            self._refused.popleft()
            self._ledger.refuse(contributions)
            self._channel.status.last_error = f"step {row.step}: {describe_text(reason)}"
            self._channel.status.dead_letters += 1
            self._channel.push()

    def notice(self, text: str) -> None:
        """Tell the user *text*, once. Any thread may call it."""
        text = describe_text(text)
        notices = self._channel.status.notices
        if text in notices:
            return
        logger.warning("%s", text)
        # A list of its own for each report: one may be on its way.
        self._channel.status.notices = [*notices, text][:_MOST_NOTICES]
        self._channel.push()

    def _take(self, rows: Sequence[OwedRow]) -> None:
        """The tracker has *rows*."""
        self._ledger.take(rows)
        if self._handed is not None:
            self._handed.add(rows)

    def check_output(self, checkpoint: Mapping[str, Any]) -> None:
        """Look whether the files that *checkpoint* names are there. Needs no tracker.

        Raises:
            OutputGoneError: one is not, or is shorter than it was.
        """
        check_output(self._logging_dir, checkpoint)

    def _checkpoint(self) -> dict[str, Any]:
        checkpoint = _plain(self._current.checkpoint(), self._sink) if overrides(self._current, "checkpoint") else {}
        self.check_output(checkpoint)
        return checkpoint

    @property
    def _logging_dir(self) -> Path:
        return self._run_dir.tracker_output(self._sink)

    def _tell(self, kind: Kind, said: Any) -> None:
        tracker = self._current
        if kind == "console":
            tracker.log_console(list(said))
            return
        # A copy: trackers have been seen to delete what they cannot store.
        values = copy.deepcopy(loaded(said, self._run_dir.blobs))
        if kind == "config":
            tracker.store_init_configuration(redacted(values, self._options.redact) if self._options.redact else values)
        elif kind == "definitions":
            for pattern, (axis, summary, goal) in values.items():
                tracker.define_metric(pattern, axis=axis, summary=summary, goal=goal)
        elif kind == "facts":
            tracker.store_run_record(values)
        else:
            tracker.summarise(values)

    def _taken_keywords(self, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return those that the tracker's ``log`` takes; say once which it does not."""
        refused = [name for name in keywords if not self._takes_keyword(name)]
        if not refused:
            return keywords
        if not self._refused_keywords.issuperset(refused):
            self._refused_keywords.update(refused)
            self.notice(f"log_kwargs: takes no {', '.join(map(repr, refused))}; left out")
        return {name: value for name, value in keywords.items() if name not in refused}

    @property
    def _state_dir(self) -> Path:
        return self._run_dir.sink(self._sink) / "state"

    def _run_info(self, logging_dir: Path, *, resumed: bool) -> RunInfo:
        record = self._record
        _, rank = name_and_rank(self._sink)
        # Of a tracker that every rank has each is a run of its own; what groups runs keeps them together.
        own = "" if rank is None else f"-rank{rank}"
        return RunInfo(
            run_id=record.run_id + own,
            project=record.project,
            name=(record.name or record.run_id) + own,
            group=record.group or (record.run_id if own else ""),
            tags=record.tags,
            notes=record.notes or "",
            resumed=resumed,
            state_dir=self._state_dir,
            output_dir=logging_dir,
            world_size=record.world_size,
            directory=Path(record.directory),
        )

    def _name(self, label: str, *, when: bool) -> None:
        """Say what is about to be tried, if the supervisor wants to know what a worker died of."""
        if when:
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


def _keywords_of(method: Callable[..., Any]) -> Callable[[str], bool]:
    """Return whether *method* takes a keyword argument of a name."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # a method that says nothing about itself
        return lambda name: True
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return lambda name: True
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY} - {"values", "step"}
    return lambda name: name in names


__all__ = ["Session"]
