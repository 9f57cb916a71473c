"""What ranks say about the run beside its values: configuration, metric definitions, summary, run record, console.

Merged as it is read and kept in the cursor, so that a fresh tracker object can be told everything again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from accelbus import blobs
from accelbus.config import Tuning
from accelbus.delivery.cursor import Cursor, MergedConfig
from accelbus.delivery.feeder import back_off, describe, is_news
from accelbus.delivery.status import SinkStatus
from accelbus.errors import CorruptDataError
from accelbus.events import TRAINER, ConfigUpdate, ConsoleLines, MetricDefinition, Metrics, RunFacts, RunStart, Summary
from accelbus.journal.merge import Item

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["config", "definitions", "facts", "summary", "console"]
KINDS: Final[tuple[Kind, ...]] = ("config", "definitions", "facts", "summary", "console")
"""In the order in which a tracker is told."""
AT_ONCE: Final[tuple[Kind, ...]] = ("config", "definitions", "facts")
"""The others may change with every step and are told before a cursor is written."""

_NAMES: Final[Mapping[Kind, str]] = {
    "config": "configuration", "definitions": "definition of metrics", "facts": "run record", "summary": "summary", "console": "console",
}  # fmt: skip
_HOSTS: Final = "hosts"
_MOST_KEYS: Final = 4096
"""Of definitions and of the summary, which are in every cursor."""
_MOST_LINES: Final = 1000
"""Console lines that wait; beyond it the oldest are left out."""
_LONGEST_LINE: Final = 1000


class Statements:
    """What was said so far. Everything it holds is the cursor's, used and not copied."""

    def __init__(self, cursor: Cursor, sink: str, large_values: Path = Path()) -> None:
        self._sink = sink
        self._large_values = large_values
        self.config: MergedConfig = cursor.config
        self.definitions: MergedConfig = cursor.definitions
        self.summary: MergedConfig = cursor.summary
        self.facts: MergedConfig = cursor.facts
        self.console: list[str] = cursor.console
        self._cursor = cursor
        self._left_out: dict[Kind, dict[str, Any]] = {}
        self._known_left_out: set[tuple[Kind, str]] = set()
        self.lines_left_out = 0
        """Of the console, since somebody asked."""

    def take(self, item: Item) -> Kind | None:
        """Take over what *item* says and return what changed by it, if anything did."""
        event = item.event
        if isinstance(event, Metrics):
            return None
        match event:
            case ConfigUpdate() if self._is_for_us(event.sinks):
                self._open_what_changes(event.values)
                self._cursor.configured_ns = max(self._cursor.configured_ns, event.time_ns)
                return "config" if self.config.merge(item.attempt, item.rank, event.values, nested=True) else None
            case Summary() if self._is_for_us(event.sinks):
                return "summary" if self._merge("summary", self.summary, item, event.values) else None
            case MetricDefinition() if self._is_for_us(event.sinks):
                said = {event.pattern: [event.axis, event.summary, event.goal]}
                return "definitions" if self._merge("definitions", self.definitions, item, said) else None
            case RunFacts():
                return "facts" if self.facts.merge(item.attempt, item.rank, event.facts) else None
            case RunStart(role=role, host=host) if role == TRAINER and self._note_host(item.attempt, item.rank, host):
                return "facts" if self.of("facts") else None
            case ConsoleLines():
                return "console" if self._add_lines(event.lines) else None
        return None

    @property
    def configured_ns(self) -> int:
        """When the newest part of the configuration was given; 0: none was."""
        return self._cursor.configured_ns

    def of(self, kind: Kind) -> dict[str, Any] | list[str]:
        """Return all that was said of one kind."""
        if kind == "facts" and self.facts.values.keys() == {_HOSTS}:
            # Nobody keeps a record, or what it says is still on its way.
            return {}
        return self.console if kind == "console" else {
            "config": self.config, "definitions": self.definitions, "facts": self.facts, "summary": self.summary,
        }[kind].values  # fmt: skip

    def left_out(self) -> dict[Kind, dict[str, Any]]:
        """Return what there was no room for, once per key, and that there was for too long: `forget_left_out` when somebody has it."""
        return self._left_out

    def forget_left_out(self, kind: Kind) -> None:
        """Somebody has kept it."""
        del self._left_out[kind]

    def forget_console(self) -> None:
        """Somebody has the lines."""
        self.console.clear()

    def _note_host(self, attempt: int, rank: int, host: str) -> bool:
        """Add where a trainer runs to the run record: {host: its ranks}, of the newest attempt. Returns whether that is news."""
        newest, _ = self.facts.givers.get(_HOSTS, (attempt - 1, 0))
        hosts: dict[str, list[int]] = dict(self.facts.values.get(_HOSTS, {})) if attempt == newest else {}
        if attempt < newest or rank in hosts.get(host, ()):
            return False
        hosts[host] = sorted([*hosts.get(host, ()), rank])
        return self.facts.merge(attempt, 0, {_HOSTS: hosts})

    def _is_for_us(self, sinks: Collection[str]) -> bool:
        return not sinks or self._sink in sinks

    def _open_what_changes(self, update: Mapping[str, Any]) -> None:
        """Read a mapping that was too large for an event if a part of it is to change; else its reference is all that a cursor holds."""
        for key, value in update.items():
            known = self.config.values.get(key)
            if isinstance(known, msgspec.msgpack.Ext) and isinstance(value, dict):
                self.config.values |= loaded({key: known}, self._large_values)

    def _merge(self, kind: Kind, into: MergedConfig, item: Item, values: Mapping[str, Any]) -> bool:
        room = _MOST_KEYS - len(into.values)
        kept: dict[str, Any] = {}
        for key, value in values.items():
            if key in into.values:
                kept[key] = value
            elif room > 0:
                kept[key] = value
                room -= 1
            else:
                self._leave_out(kind, key, value)
        return into.merge(item.attempt, item.rank, kept)

    def _leave_out(self, kind: Kind, key: str, value: Any) -> None:
        # Once: a summary is said again with every step. Beyond so many keys there is no end to them.
        if (kind, key) not in self._known_left_out and len(self._known_left_out) < _MOST_KEYS:
            self._known_left_out.add((kind, key))
            self._left_out.setdefault(kind, {})[key] = value

    def _add_lines(self, lines: list[str]) -> bool:
        self.console += [line[:_LONGEST_LINE] for line in lines]
        if (surplus := len(self.console) - _MOST_LINES) > 0:
            del self.console[:surplus]
            self.lines_left_out += surplus
        return bool(lines)


class Teller:
    """Tell the tracker what it does not know yet; rows do not wait for it.

    What fails is repeated with back-off. A statement that is refused again and again goes to the dead letters and is left out until it
    changes; an outage of the system or the network is no refusal, however long it lasts.

    Args:
        statements: what there is to say.
        tell: (kind, all of it) → tell the tracker; raises whatever the tracker raises.
        give_up: (kind, all of it, reason) → keep it where the user finds it; raises OSError when that cannot be.
        notice: tell the user a text, once.
        known: kinds that the tracker, a fresh object, need not be told.
        deadly: kinds that workers died or hung on; they are left out.
        tuning: back-off and patience.
        status: for the last error.
    """

    def __init__(
        self,
        statements: Statements,
        tell: Callable[[Kind, Any], None],
        give_up: Callable[[Kind, Any, str], None],
        notice: Callable[[str], None],
        *,
        known: Collection[Kind],
        deadly: Collection[Kind],
        tuning: Tuning,
        status: SinkStatus,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._statements = statements
        self._tell = tell
        self._give_up = give_up
        self._notice = notice
        self._tuning = tuning
        self._status = status
        self._monotonic = monotonic
        self._deadly = set(deadly)
        self._owed = {kind for kind in KINDS if kind not in known and statements.of(kind)}
        self._failures = dict.fromkeys(KINDS, 0)
        self._retry_at = dict.fromkeys(KINDS, 0.0)

    @property
    def owes(self) -> bool:
        """Whether there is something that the tracker was not told."""
        return bool(self._owed)

    def has_told(self, kind: Kind) -> bool:
        """Whether the tracker knows all that was said of one kind, or refused it."""
        return kind not in self._owed

    def note(self, changed: Collection[Kind]) -> None:
        """More was said."""
        self._owed.update(changed)

    def tell(self, kinds: Collection[Kind] = KINDS) -> None:
        """Tell what is owed of *kinds* and not waiting for its next try."""
        self._settle_left_out()
        for kind in KINDS if self._owed else ():
            if kind in self._owed and kind in kinds and self._monotonic() >= self._retry_at[kind]:
                self._try(kind)

    def _settle_left_out(self) -> None:
        statements = self._statements
        for kind, values in list(statements.left_out().items()):
            if self._is_kept(kind, values, f"more than {_MOST_KEYS} keys"):
                statements.forget_left_out(kind)
        if statements.lines_left_out:
            self._notice("lines of the console are left out: it printed faster than they were taken; the journal has them")
            statements.lines_left_out = 0

    def _try(self, kind: Kind) -> None:
        if kind in self._deadly:
            self._leave_out(kind, "workers died or hung on it")
            return
        try:
            self._tell(kind, self._statements.of(kind))
        except Exception as error:  # noqa: BLE001  isolation: whatever a tracker raises is retried, counted and reported
            self._failed(kind, error)
        else:
            self._owed.discard(kind)
            self._failures[kind] = 0
            if kind == "console":
                self._statements.forget_console()

    def _failed(self, kind: Kind, error: Exception) -> None:
        failures = self._failures[kind] = self._failures[kind] + 1
        self._status.last_error = describe(error)
        if is_news(failures):
            logger.warning("%s: %s (failure %d)", kind, self._status.last_error, failures)
        if failures == self._tuning.retries_alone:
            self._notice(f"the {_NAMES[kind]} is not taken ({self._status.last_error}); trying again")
        self._retry_at[kind] = self._monotonic() + back_off(failures, self._tuning)
        # An outage of the system or the network says nothing about what is to be told.
        if failures % self._tuning.failures_of_last_row == 0 and not isinstance(error, OSError):
            self._leave_out(kind, self._status.last_error)

    def _leave_out(self, kind: Kind, reason: str) -> None:
        """Do without *kind* until it changes, if it can be kept somewhere."""
        self._status.last_error = f"{kind}: {reason}"
        if self._is_kept(kind, self._statements.of(kind), reason):
            self._owed.discard(kind)
            if kind == "console":
                self._statements.forget_console()

    def _is_kept(self, kind: Kind, said: Any, reason: str) -> bool:
        try:
            self._give_up(kind, said, reason)
        except OSError as error:
            # No room for the dead letter: it stays owed, or in memory.
            self._status.last_error = describe(error)
            return False
        logger.error("the %s is left out, it is in the dead letters (%s)", _NAMES[kind], reason)
        return True


def loaded(values: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return a copy of *values* in which those too large for an event were read from the run's directory of large values."""

    def load(value: Any) -> Any:
        if isinstance(value, msgspec.msgpack.Ext) and value.code == blobs.EXTENSION:
            try:
                return blobs.load(bytes(value.data), directory)
            except CorruptDataError as error:
                return f"(lost: {error})"
        return value

    return {key: load(value) for key, value in values.items()}


__all__ = ["AT_ONCE", "KINDS", "Kind", "Statements", "Teller", "loaded"]
