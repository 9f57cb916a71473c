"""The view: merged journal items in, points out.

A pure function of its items. Time is the receive time written in the journal, so live reading, a replay a year later and a reader
that was restarted from its state emit the same points with the same values.

A point, one value for a key and step over the ranks of an attempt, is emitted

- as soon as its usual contributors have logged it: the ranks that contributed to the key's last emitted point, all ranks of the
  attempt while there is none;
- when everybody it waits for has gone past the step, is silent, gone or done, or belongs to an attempt that a newer one replaced;
- ``late_after`` after its first value, whatever is missing;
- when the run is closed, or when open points outgrow their bound (counted as ``forced``).

A value that comes after its point was emitted changes the point, which is emitted again, as long as it is within the horizon;
after that it becomes a point ``late/<key>`` of its own. Either way it is counted as ``late``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from accelbus.config import Tuning
from accelbus.events import TRAINER, Metrics, ProducerJoined, ProducerState, RunClosed, RunEnd, RunStart
from accelbus.view.horizon import POINT_COST, VALUE_COST, EmittedPoint, Horizon, HorizonState
from accelbus.view.ranks import Attempt
from accelbus.view.rules import Rules, Value

if TYPE_CHECKING:
    from accelbus.journal.merge import Item

LATE_PREFIX: Final = "late/"
NANOSECONDS: Final = 1_000_000_000
OTHER_ROLES: Final = 1 << 40
"""Contributors from here on are producers of other roles than trainer: they come after every rank."""


class Point(NamedTuple):
    """One value for a key and step, new or changed."""

    attempt: int
    step: int
    key: str
    value: Value
    time_ns: int
    """Wall clock of the first rank that logged it."""
    n_ranks: int
    """Contributors to the value."""
    contributions: dict[int, int]
    """{rank: values accounted for by this emission and by none before}"""


class Counts(msgspec.Struct, array_like=True):
    """What became of the values of one rank. ``read = emitted + filtered + superseded + open``."""

    read: int = 0
    emitted: int = 0
    filtered: int = 0
    """None, or text that a lower rank's text stands for."""
    superseded: int = 0
    """Logged again by the rank before the point was emitted, or replaced by a newer attempt."""
    late: int = 0
    """Came after its point was emitted; counted beside the others, not one of them."""


class OpenPoint(msgspec.Struct, array_like=True, gc=False):
    """Values that wait for more ranks."""

    attempt: int
    step: int
    key: str
    first_ns: int
    """View time of the first value."""
    time_ns: int
    values: dict[int, Any]
    """{contributor: value}"""
    missing: set[int]
    """Ranks it waits for."""
    waits_for_all: bool
    """Whether those are all that may still log at the step, instead of the key's usual contributors."""
    cost: int
    """Bytes it takes in a cursor."""


class AutoSteps(msgspec.Struct, array_like=True):
    """Steps of a producer that never gives one: its calls are counted, on and on over attempts."""

    last: int = -1
    bases: dict[int, int] = {}
    """{attempt: what is added to its count}"""


class ViewState(msgspec.Struct, array_like=True):
    """Snapshot of a `View`: all it needs to go on."""

    now_ns: int = 0
    attempt: Attempt | None = None
    open: list[OpenPoint] = []
    horizon: HorizonState = msgspec.field(default_factory=HorizonState)
    usual: dict[str, tuple[int, list[int]]] = {}
    auto: dict[int, AutoSteps] = {}
    others: list[tuple[str, int]] = []
    counts: dict[int, Counts] = {}
    forced: int = 0


class View:
    """Merge ranks. `feed` items in journal order and deliver the points it returns."""

    def __init__(self, rules: Rules, state: ViewState | None = None, *, tuning: Tuning) -> None:
        # Through bytes: neither side may change the other's dictionaries, and a fresh state costs nothing.
        state = _decode(_encode(state)) if state is not None else ViewState()
        self._rules = rules
        self._late_after_ns = int(tuning.late_after * NANOSECONDS)
        self._size = tuning.view_bytes
        self._now_ns = state.now_ns
        self._attempt = state.attempt
        self._horizon = Horizon(tuning.late_horizon_points, tuning.view_bytes, state.horizon)
        self._usual = {key: (attempt, frozenset(usual)) for key, (attempt, usual) in state.usual.items()}
        self._auto = state.auto
        self._others = state.others
        self._other_index = {other: OTHER_ROLES + index for index, other in enumerate(state.others)}
        self._points: list[Point] = []
        self._cost = 0
        # {(step, key): point}, oldest first: deadlines are met from the front. All belong to the newest attempt: nothing waits for
        # an older one's ranks.
        self._open: OrderedDict[tuple[int, str], OpenPoint] = OrderedDict()
        self._awaited_in_event: dict[frozenset[int] | None, frozenset[int]] = {}
        # {step: {key: point}}
        self._steps: dict[int, dict[str, OpenPoint]] = {}
        self.counts: dict[int, Counts] = state.counts
        self.forced = state.forced
        """Points emitted only because too much was open."""
        for point in state.open:
            self._add(point)

    def feed(self, items: Iterable[Item]) -> list[Point]:
        """Apply *items* and return the points that became ready, in the order in which they did."""
        for item in items:
            if item.received_ns > self._now_ns:
                self._pass_time(item.received_ns)
            event = item.event
            if isinstance(event, Metrics):
                self._apply_metrics(item, event)
            else:
                self._apply_other(item)
        return self._take()

    def finish(self) -> list[Point]:
        """Emit everything open: nothing more will come."""
        self._emit_all()
        return self._take()

    def state(self) -> ViewState:
        """Return a snapshot that shares nothing with this view."""
        usual = {key: (attempt, sorted(ranks)) for key, (attempt, ranks) in self._usual.items()}
        state = ViewState(
            now_ns=self._now_ns,
            attempt=self._attempt,
            open=list(self._open.values()),
            usual=usual,
            auto=self._auto,
            others=self._others,
            counts=self.counts,
            forced=self.forced,
            horizon=self._horizon.state(),
        )
        return _decode(_encode(state))

    def pending(self) -> dict[int, int]:
        """Return {rank: values in open points}."""
        pending: dict[int, int] = {}
        for point in self._open.values():
            for who, value in point.values.items():
                if value is not None:
                    rank = self._rank_of(who)
                    pending[rank] = pending.get(rank, 0) + 1
        return pending

    # What items do

    def _pass_time(self, now_ns: int) -> None:
        """Emit what its deadline has passed for by *now_ns*."""
        self._now_ns = now_ns
        attempt = self._attempt
        if attempt is not None and not attempt.complete and now_ns >= attempt.since_ns + self._late_after_ns:
            unseen = attempt.unseen()
            attempt.complete = True
            self._release(unseen, list(self._open.values()))
        while self._open and (point := next(iter(self._open.values()))).first_ns + self._late_after_ns <= now_ns:
            self._emit(point)

    def _apply_other(self, item: Item) -> None:
        """Learn from everything that is not a metric; configuration is the delivery's."""
        event = item.event
        if isinstance(event, RunClosed):
            self._emit_all()
        elif isinstance(event, RunStart | ProducerJoined):
            producer = event.producer if isinstance(event, ProducerJoined) else item.producer
            self._hear(item, producer, event.role, event.world_size)
        elif isinstance(event, RunEnd):
            self._leave(item, item.producer)
        elif isinstance(event, ProducerState):
            if event.state == "alive":
                self._hear(item, event.producer, item.role, 0)
            else:
                self._leave(item, event.producer)

    def _hear(self, item: Item, producer: bytes, role: str, world_size: int) -> None:
        """A producer speaks; the first word of a newer attempt ends the older ones."""
        if role != TRAINER or item.rank < 0:
            return
        if self._attempt is None or item.attempt > self._attempt.number:
            self._emit_all()
            self._attempt = Attempt(item.attempt, self._now_ns)
        if item.attempt == self._attempt.number:
            self._attempt.join(item.rank, producer, world_size)

    def _leave(self, item: Item, producer: bytes) -> None:
        """A producer is gone, done or silent: nothing waits for it."""
        attempt = self._attempt
        if item.role == TRAINER and attempt is not None and item.attempt == attempt.number and attempt.leave(item.rank, producer):
            self._release((item.rank,), list(self._open.values()))

    def _apply_metrics(self, item: Item, event: Metrics) -> None:
        rank, number = item.rank, item.attempt
        counts = self._counts(rank)
        counts.read += len(event.values)
        who = rank if item.role == TRAINER and rank >= 0 else self._other(item.role, rank)
        step = event.step if event.step is not None else self._auto_step(who, number, event.auto_step)
        attempt = self._attempt
        if who == rank:
            if attempt is None or number > attempt.number or (number == attempt.number and rank not in attempt.seen):
                self._hear(item, item.producer, item.role, 0)
                attempt = self._attempt
            assert attempt is not None
            if number == attempt.number:
                self._reach(attempt, rank, step)
        self._awaited_in_event.clear()
        for key, value in event.values.items():
            self._apply_value(number, step, key, who, counts, value, event.time_ns)
        if self._cost > self._size:
            self._force()

    def _reach(self, attempt: Attempt, rank: int, step: int) -> None:
        """*rank* has come to *step*: points before it wait for it no longer."""
        before = attempt.reached.get(rank)
        if before is not None and step <= before:
            return
        attempt.reached[rank] = step
        if not self._steps:
            return
        if before is not None and step - before < len(self._steps):
            passed = [skipped for skipped in range(before, step) if skipped in self._steps]
        else:
            passed = sorted(skipped for skipped in self._steps if skipped < step)
        for skipped in passed:
            self._release((rank,), list(self._steps[skipped].values()))

    def _release(self, ranks: Iterable[int], points: list[OpenPoint]) -> None:
        """Let *points* wait for *ranks* no longer; emit those now ready."""
        for point in points:
            point.missing.difference_update(ranks)
            if not point.missing:
                self._emit(point)

    def _apply_value(self, number: int, step: int, key: str, who: int, counts: Counts, value: Value, time_ns: int) -> None:
        point = self._open.get((step, key))
        if point is not None and point.attempt == number:
            self._contribute(point, who, counts, value, time_ns)
            return
        emitted = self._horizon.get(step, key)
        if emitted is not None and emitted.attempt > number:
            counts.superseded += 1
        elif emitted is not None and emitted.attempt == number:
            self._change(emitted, who, counts, value, time_ns)
        elif emitted is None and self._horizon.has_left(number, step, key):
            self._emit_apart(number, step, key, counts, value, time_ns, self._rank_of(who))
        else:
            self._begin(number, step, key, who, counts, value, time_ns)

    def _begin(self, number: int, step: int, key: str, who: int, counts: Counts, value: Value, time_ns: int) -> None:
        """Open a point with its first value, or emit it if nobody else can contribute."""
        if value is None:
            counts.filtered += 1
        missing: set[int] = set()
        waits_for_all = True
        attempt = self._attempt
        if attempt is not None and number == attempt.number:
            of, usual = self._usual.get(key, _NOBODY)
            waits_for_all = of != number or who not in usual
            if not waits_for_all:
                missing = self._awaited(attempt, step, usual)
            elif who < OTHER_ROLES:
                missing = self._awaited(attempt, step, None)
            missing.discard(who)
        cost = POINT_COST + len(key) + _cost(value)
        point = OpenPoint(number, step, key, self._now_ns, time_ns, {who: value}, missing, waits_for_all, cost)
        if missing:
            self._add(point)
        else:
            self._settle(point)

    def _awaited(self, attempt: Attempt, step: int, usual: frozenset[int] | None) -> set[int]:
        """Return whom a new point waits for; the same for most keys of an event."""
        awaited = self._awaited_in_event.get(usual)
        if awaited is None:
            awaited = self._awaited_in_event[usual] = frozenset(attempt.awaited(step, usual))
        return set(awaited)

    def _contribute(self, point: OpenPoint, who: int, counts: Counts, value: Value, time_ns: int) -> None:
        """Take a value into an open point; the rank's last one counts."""
        if value is None:
            counts.filtered += 1
        cost = _cost(value)
        if (former := point.values.get(who)) is not None:
            counts.superseded += 1
            cost -= _cost(former)
        point.values[who] = value
        point.cost += cost
        self._cost += cost
        if time_ns < point.time_ns:
            point.time_ns = time_ns
        point.missing.discard(who)
        if not point.waits_for_all and who < OTHER_ROLES and who not in self._usual.get(point.key, _NOBODY)[1]:
            # Somebody unexpected logs the key: the usual contributors are not to be relied on.
            point.waits_for_all = True
            assert self._attempt is not None
            point.missing |= self._attempt.awaited(point.step, None) - point.values.keys()
        if not point.missing:
            self._emit(point)

    def _change(self, emitted: EmittedPoint, who: int, counts: Counts, value: Value, time_ns: int) -> None:
        """Emit a point again with a value that came late."""
        counts.late += 1
        candidates = {**emitted.values, who: value}
        reduced = self._rules.reduce(emitted.key, candidates) if value is not None else None
        if reduced is None or who not in reduced.used:
            counts.filtered += 1
            return
        counts.emitted += 1
        emitted.time_ns = min(emitted.time_ns, time_ns)
        self._horizon.change(emitted, {used: _remembered(candidates[used]) for used in reduced.used})
        self._remember_usual(emitted.attempt, emitted.key, emitted.values)
        self._points.append(
            Point(
                emitted.attempt,
                emitted.step,
                emitted.key,
                reduced.value,
                emitted.time_ns,
                len(reduced.used),
                {self._rank_of(who): 1},
            )
        )

    def _emit_apart(self, number: int, step: int, key: str, counts: Counts, value: Value, time_ns: int, rank: int) -> None:
        """Emit a value whose point can no longer change under a key of its own."""
        counts.late += 1
        if value is None:
            counts.filtered += 1
            return
        counts.emitted += 1
        self._points.append(Point(number, step, LATE_PREFIX + key, value, time_ns, 1, {rank: 1}))

    def _remember_usual(self, number: int, key: str, values: Mapping[int, Any]) -> None:
        former = self._usual.get(key)
        if former is None or former[0] < number or (former[0] == number and former[1] != values.keys()):
            self._usual[key] = (number, frozenset(values))

    # Open points

    def _add(self, point: OpenPoint) -> None:
        self._open[point.step, point.key] = point
        keys = self._steps.get(point.step)
        if keys is None:
            keys = self._steps[point.step] = {}
        keys[point.key] = point
        self._cost += point.cost

    def _emit(self, point: OpenPoint) -> None:
        """Take *point* out of the open ones and settle it."""
        del self._open[point.step, point.key]
        keys = self._steps[point.step]
        del keys[point.key]
        if not keys:
            del self._steps[point.step]
        self._cost -= point.cost
        self._settle(point)

    def _settle(self, point: OpenPoint) -> None:
        """Reduce *point* to its value, emit it and remember what late values need."""
        self._remember_usual(point.attempt, point.key, point.values)
        reduced = self._rules.reduce(point.key, point.values)
        if reduced is None:
            return
        for who in reduced.unused:
            self._counts(self._rank_of(who)).filtered += 1
        used = reduced.used
        contributions = dict.fromkeys(used, 1) if max(used) < OTHER_ROLES else Counter(map(self._rank_of, used))
        for rank, values in contributions.items():
            self.counts[rank].emitted += values
        if len(used) == len(point.values) and not isinstance(reduced.value, (str, list)):
            kept = point.values
        else:
            kept = {who: _remembered(point.values[who]) for who in used}
        self._horizon.put(EmittedPoint(point.attempt, point.step, point.key, point.time_ns, kept))
        self._points.append(Point(point.attempt, point.step, point.key, reduced.value, point.time_ns, len(used), contributions))

    def _emit_all(self) -> None:
        while self._open:
            self._emit(next(iter(self._open.values())))

    def _force(self) -> None:
        """Emit the oldest points until the rest fits its bound."""
        while self._open and self._cost > self._size:
            self._emit(next(iter(self._open.values())))
            self.forced += 1

    def _take(self) -> list[Point]:
        points, self._points = self._points, []
        return points

    # Contributors

    def _counts(self, rank: int) -> Counts:
        counts = self.counts.get(rank)
        if counts is None:
            counts = self.counts[rank] = Counts()
        return counts

    def _other(self, role: str, rank: int) -> int:
        other = (role, rank)
        index = self._other_index.get(other)
        if index is None:
            index = self._other_index[other] = OTHER_ROLES + len(self._others)
            self._others.append(other)
        return index

    def _rank_of(self, who: int) -> int:
        return who if who < OTHER_ROLES else self._others[who - OTHER_ROLES][1]

    def _auto_step(self, who: int, number: int, count: int) -> int:
        auto = self._auto.get(who)
        if auto is None:
            auto = self._auto[who] = AutoSteps(-1, {})
        base = auto.bases.get(number)
        if base is None:
            newer = not auto.bases or number > max(auto.bases)
            # A count may start at 0 or at 1; either way the first call of an attempt follows the last of the one before.
            base = auto.bases[number] = auto.last + 1 - min(count, 1) if newer and auto.bases else 0
        step = base + count
        auto.last = max(auto.last, step)
        return step


def _cost(value: Value) -> int:
    if isinstance(value, str):
        return VALUE_COST + len(value)
    return VALUE_COST * (1 + len(value)) if isinstance(value, list) else VALUE_COST


def _remembered(value: Value) -> Value:
    return "" if isinstance(value, (str, list)) else value


_NOBODY: Final[tuple[int, frozenset[int]]] = (-1, frozenset())

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ViewState).decode

__all__ = ["Counts", "Point", "View", "ViewState"]
