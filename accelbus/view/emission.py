"""The view: merged journal items in, points out.

A pure function of its items. Time is the receive time written in the journal, so live reading, a replay a year later and a reader
that was restarted from its state emit the same points with the same values.

A point, one value for a key and step over the ranks of an attempt, is emitted

- as soon as its usual contributors have logged it: the ranks that contributed to the key's last emitted point, all ranks of the
  attempt while there is none;
- when everybody it waits for has gone past the step, is silent, gone or done, or belongs to an attempt that a newer one replaced;
- ``late_after`` after its first value, whatever is missing;
- when the run is closed, or when open points outgrow their bound (counted as ``forced``).

Points of one key and attempt leave in step order, because trackers drop, refuse or misplace what goes back: a point that is ready is
held, within its own ``late_after``, by an open point of its key at a lower step, and one that has to leave takes those with it. Only a
value that comes when a higher step of its key has left makes a point that goes back.

A value that comes after its point was emitted changes the point, which is emitted again, as long as it is within the horizon;
after that it becomes a point ``late/<key>`` of its own. Either way it is counted as ``late``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from accelbus.config import Tuning
from accelbus.events import TRAINER, Fill, Metrics, ProducerJoined, ProducerState, RunClosed, RunEnd, RunStart, Tick
from accelbus.journal.bodies import PendingMetrics
from accelbus.journal.fills import Fills, FillsState
from accelbus.view.contributors import OTHER_ROLES, Contributors, ContributorsState
from accelbus.view.horizon import EmittedPoint, Horizon, HorizonState
from accelbus.view.keywords import Keywords, StepKeywords
from accelbus.view.opened import OpenPoint, OpenPoints, new_cost
from accelbus.view.ranks import Attempt
from accelbus.view.rules import Rules, Value, is_number
from accelbus.view.usual import Usual, UsualState

if TYPE_CHECKING:
    from accelbus.journal.merge import Item

LATE_PREFIX: Final = "late/"
NANOSECONDS: Final = 1_000_000_000


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
    """None, for other sinks, or text or media that a lower rank's stand for."""
    superseded: int = 0
    """Logged again by the rank before the point was emitted, or replaced by a newer attempt."""
    late: int = 0
    """Came after its point was emitted; counted beside the others, not one of them."""


class ViewState(msgspec.Struct, array_like=True):
    """Snapshot of a `View`: all it needs to go on."""

    now_ns: int = 0
    ticked: tuple[bytes, int] = (b"", 0)
    """Who wrote the last tick, and when."""
    attempt: Attempt | None = None
    open: list[OpenPoint] = []
    horizon: HorizonState = msgspec.field(default_factory=HorizonState)
    usual: UsualState = msgspec.field(default_factory=UsualState)
    contributors: ContributorsState = msgspec.field(default_factory=ContributorsState)
    counts: dict[int, Counts] = {}
    forced: int = 0
    keywords: list[StepKeywords] = []
    fills: FillsState = msgspec.field(default_factory=FillsState)


class View:
    """Merge ranks. `feed` items in journal order and deliver the points it returns.

    Args:
        rules: how values are reduced.
        state: of a former view, to go on from; it is copied.
        tuning: ``late_after``, ``late_horizon_points`` and ``view_bytes`` are used.
        sink: whose view it is; events for others only are counted as filtered. None: everybody's.
    """

    def __init__(self, rules: Rules, state: ViewState | None = None, *, tuning: Tuning, sink: str | None = None) -> None:
        state = _copy(state or ViewState())
        self._sink = sink
        self._rules = rules
        self._late_after_ns = int(tuning.late_after * NANOSECONDS)
        self._size = tuning.view_bytes
        self._now_ns = state.now_ns
        self._ticked = state.ticked
        self._attempt = state.attempt
        """The newest one; older attempts hold nothing."""
        self._horizon = Horizon(tuning.late_horizon_points, tuning.view_bytes, state.horizon)
        self._usual = Usual(state.usual)
        self._contributors = Contributors(state.contributors)
        self._open = OpenPoints()
        for point in state.open:
            self._open.add(point)
        self._fills = Fills(state.fills)
        """Values on their way. A rank is past a step only when its own have come."""
        self._awaited_in_event: dict[frozenset[int] | None, frozenset[int]] = {}
        self._points: list[Point] = []
        self.counts: dict[int, Counts] = state.counts
        self.forced = state.forced
        """Points emitted only because too much was open."""
        self.keywords = Keywords(state.keywords)
        """What log calls gave for this sink beside values."""

    def feed(self, items: Iterable[Item]) -> list[Point]:
        """Apply *items* and return the points that became ready, in the order in which they did."""
        for item in items:
            event = item.event
            now_ns = self._time_of_tick(item) if isinstance(event, Tick) else item.received_ns
            if now_ns > self._now_ns:
                self._pass_time(now_ns)
            if isinstance(event, Metrics):
                self._apply_metrics(item, event)
            elif isinstance(event, Fill):
                self._apply_fill(item, event)
            else:
                self._apply_other(item)
        return self._take()

    def finish(self) -> list[Point]:
        """Emit everything open: nothing more will come."""
        self._emit_all()
        return self._take()

    def state(self) -> ViewState:
        """Return a snapshot that shares nothing with this view."""
        state = ViewState(
            now_ns=self._now_ns,
            ticked=self._ticked,
            attempt=self._attempt,
            open=list(self._open),
            horizon=self._horizon.state(),
            usual=self._usual.state(),
            contributors=self._contributors.state,
            counts=self.counts,
            forced=self.forced,
            keywords=self.keywords.state(),
            fills=self._fills.state(),
        )
        return _copy(state)

    def pending(self) -> dict[int, int]:
        """Return {rank: values in open points}."""
        pending: dict[int, int] = {}
        for point in self._open:
            for who, value in point.values.items():
                if value is not None:
                    rank = self._contributors.rank(who)
                    pending[rank] = pending.get(rank, 0) + 1
        return pending

    # What items say about time and ranks

    def _time_of_tick(self, item: Item) -> int:
        """Return the view time of a tick: when it was received, unless the clock was set back; then time goes on by its ticks."""
        now_ns, ticker, ticked_ns = item.received_ns, *self._ticked
        self._ticked = (item.producer, now_ns)
        if ticker == item.producer and now_ns < self._now_ns - self._late_after_ns:
            return self._now_ns + max(0, now_ns - ticked_ns)
        return now_ns

    def _pass_time(self, now_ns: int) -> None:
        """Emit what its deadline has passed for by *now_ns*."""
        self._now_ns = now_ns
        attempt = self._attempt
        if attempt is not None and not attempt.complete and now_ns >= attempt.since_ns + self._late_after_ns:
            unseen = attempt.unseen()
            attempt.complete = True
            self._release(unseen, list(self._open))
        while (point := self._open.oldest()) is not None and point.first_ns + self._late_after_ns <= now_ns:
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
            self._fills.end(item.producer)
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
            self._release((item.rank,), list(self._open))

    def _meet(self, item: Item) -> None:
        """A rank logs, which may be the first word of it."""
        attempt = self._attempt
        if attempt is None or item.attempt > attempt.number or (item.attempt == attempt.number and item.rank not in attempt.seen):
            self._hear(item, item.producer, item.role, 0)

    def _reach(self, item: Item, step: int) -> None:
        """A rank has come to *step*: points before it wait for it no longer."""
        attempt, rank = self._attempt, item.rank
        if attempt is None or item.attempt != attempt.number:
            return
        if self._fills:
            step = self._fills.passed(item.producer, step)
        before = attempt.reached.get(rank)
        if before is None or step > before:
            attempt.reached[rank] = step
            self._release((rank,), self._open.between(before, step))

    def _release(self, ranks: Iterable[int], points: list[OpenPoint]) -> None:
        """Let *points* wait for *ranks* no longer; emit those now ready."""
        for point in points:
            point.missing.difference_update(ranks)
            if not point.missing:
                self._emit_ready(point.key)

    # What values do

    def _apply_metrics(self, item: Item, event: Metrics) -> None:
        attempt = item.attempt
        counts = self._counts(item.rank)
        counts.read += len(event.values)
        who = self._contributors.number(item.role, item.rank)
        step = event.step if event.step is not None else self._contributors.auto_step(who, attempt, event.auto_step)
        is_trainer = who < OTHER_ROLES
        if is_trainer:
            self._meet(item)
        if event.sinks and self._sink is not None and self._sink not in event.sinks:
            counts.filtered += len(event.values)
        else:
            self._apply_values(event, attempt, step, who, counts)
        if type(event) is PendingMetrics:
            for filled in self._fills.expect(item, event, step):
                self._apply_metrics(item, filled)
        if is_trainer:
            # After its values: what it makes ready must not overtake them.
            self._reach(item, step)
        if self._open.cost > self._size:
            self._force()

    def _apply_fill(self, item: Item, event: Fill) -> None:
        """Take values that come after their events, and go on to where their rank has come meanwhile."""
        for filled in self._fills.take(item, event):
            self._apply_metrics(item, filled)
        if (step := self._fills.held(item.producer)) is not None:
            self._reach(item, step)

    def _apply_values(self, event: Metrics, attempt: int, step: int, who: int, counts: Counts) -> None:
        if event.log_kwargs is not None and self._sink is not None and (given := event.log_kwargs.get(self._sink)):
            self.keywords.add(attempt, step, who, given)
        self._awaited_in_event.clear()
        for key, value in event.values.items():
            if value is None:
                counts.filtered += 1
            point = self._open.get(step, key)
            if point is not None and point.attempt == attempt:
                self._contribute(point, who, counts, value, event.time_ns)
            else:
                self._apply_value(attempt, step, key, who, counts, value, event.time_ns)

    def _apply_value(self, attempt: int, step: int, key: str, who: int, counts: Counts, value: Value, time_ns: int) -> None:
        """Take a value that no open point waits for."""
        emitted = self._horizon.get(step, key)
        if emitted is None:
            if self._horizon.has_left(attempt, step, key):
                self._emit_apart(Point(attempt, step, LATE_PREFIX + key, value, time_ns, 1, {self._contributors.rank(who): 1}), counts)
            else:
                self._begin(attempt, step, key, who, value, time_ns)
        elif emitted.attempt < attempt:
            self._begin(attempt, step, key, who, value, time_ns)
        elif emitted.attempt == attempt:
            self._change(emitted, who, counts, value, time_ns)
        elif value is not None:
            counts.superseded += 1

    def _begin(self, number: int, step: int, key: str, who: int, value: Value, time_ns: int) -> None:
        """Open a point with its first value, or emit it if nobody else can contribute."""
        missing: set[int] = set()
        waits_for_all = False
        attempt = self._attempt
        if attempt is not None and number == attempt.number:
            usual = self._usual.get(key, number)
            if who in usual:
                missing = self._awaited(attempt, step, usual)
            elif who < OTHER_ROLES:
                waits_for_all = True
                missing = self._awaited(attempt, step, None)
            missing.discard(who)
        point = OpenPoint(number, step, key, self._now_ns, time_ns, {who: value}, missing, waits_for_all, new_cost(key, value))
        if missing:
            self._open.add(point)
        elif attempt is not None and number == attempt.number and self._open.has(key):
            self._open.add(point)
            self._emit_ready(key)
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
        if self._open.put(point, who, value) is not None:
            counts.superseded += 1
        point.time_ns = min(point.time_ns, time_ns)
        point.missing.discard(who)
        if not point.waits_for_all and who < OTHER_ROLES and who not in self._usual.get(point.key, point.attempt):
            # Somebody unexpected logs the key: the usual contributors are not to be relied on.
            point.waits_for_all = True
            assert self._attempt is not None
            point.missing |= self._attempt.awaited(point.step, None) - point.values.keys()
        if not point.missing:
            self._emit_ready(point.key)

    def _change(self, emitted: EmittedPoint, who: int, counts: Counts, value: Value, time_ns: int) -> None:
        """Emit a point again with a value that came late."""
        counts.late += 1
        if value is None:
            return
        candidates = {**emitted.values, who: value}
        reduced = self._rules.reduce(emitted.key, candidates)
        if reduced is None or who not in reduced.used:
            counts.filtered += 1
            return
        counts.emitted += 1
        emitted.time_ns = min(emitted.time_ns, time_ns)
        self._horizon.change(emitted, {used: _remembered(candidates[used]) for used in reduced.used})
        contributions = {self._contributors.rank(who): 1}
        place = (emitted.attempt, emitted.step, emitted.key)
        self._points.append(Point(*place, reduced.value, emitted.time_ns, len(reduced.used), contributions))
        self._learn(emitted.key, emitted.attempt, emitted.values.keys())
        self._emit_ready(emitted.key)

    def _emit_apart(self, point: Point, counts: Counts) -> None:
        """Emit a value whose point can no longer change under a key of its own."""
        counts.late += 1
        if point.value is not None:
            counts.emitted += 1
            self._points.append(point)

    # What becomes of points

    def _emit(self, point: OpenPoint) -> None:
        """Emit *point*, ready or not, behind those of its key at lower steps."""
        for leaving in self._open.up_to(point):
            self._open.remove(leaving)
            self._settle(leaving)
        self._emit_ready(point.key)

    def _emit_ready(self, key: str) -> None:
        """Emit the points of *key* that wait for nobody, up to the first one that does."""
        while (first := self._open.first(key)) is not None and not first.missing:
            self._open.remove(first)
            self._settle(first)

    def _learn(self, key: str, attempt: int, contributors: Collection[int]) -> None:
        """*contributors* have made a point of *key*: they are whom its open points wait for, as if these had been opened now."""
        former = self._usual.get(key, attempt)
        if not self._usual.remember(key, attempt, contributors) or self._attempt is None or attempt != self._attempt.number:
            return
        usual = self._usual.get(key, attempt)
        for point in self._open.of_key(key):
            if not point.waits_for_all:
                # Those who are usual no longer may have left out one step only: they are waited for where they were.
                point.missing |= self._attempt.awaited(point.step, usual - former) - point.values.keys()
            elif all(who in usual or who >= OTHER_ROLES for who in point.values):
                point.waits_for_all = False
                point.missing &= usual

    def _settle(self, point: OpenPoint) -> None:
        """Reduce *point* to its value, emit it and remember what late values need."""
        attempt, step, key, values = point.attempt, point.step, point.key, point.values
        self._learn(key, attempt, values.keys())
        reduced = self._rules.reduce(key, values)
        if reduced is None:
            return
        value, used, unused = reduced
        for who in unused:
            self._counts(self._contributors.rank(who)).filtered += 1
        contributions = self._contributors.per_rank(used)
        for rank, number in contributions.items():
            self.counts[rank].emitted += number
        if len(used) != len(values) or not is_number(value):
            values = {who: _remembered(values[who]) for who in used}
        self._horizon.put(EmittedPoint(attempt, step, key, point.time_ns, values))
        self._points.append(Point(attempt, step, key, value, point.time_ns, len(used), contributions))

    def _emit_all(self) -> None:
        while (point := self._open.oldest()) is not None:
            self._emit(point)

    def _force(self) -> None:
        """Emit the oldest points until the rest fits its bound."""
        while self._open.cost > self._size and (point := self._open.oldest()) is not None:
            self._emit(point)
            self.forced += 1

    def _take(self) -> list[Point]:
        points, self._points = self._points, []
        return points

    def _counts(self, rank: int) -> Counts:
        counts = self.counts.get(rank)
        if counts is None:
            counts = self.counts[rank] = Counts()
        return counts


def _remembered(value: Value) -> Value:
    """Return what is kept of an emitted value: of one that is no number only that it was none."""
    return value if is_number(value) else ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ViewState).decode


def _copy(state: ViewState) -> ViewState:
    # Through bytes: deep, quick, and what a cursor does.
    return _decode(_encode(state))


__all__ = ["Counts", "Point", "View", "ViewState"]
