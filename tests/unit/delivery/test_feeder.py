"""Rows, trackers that fail, and who is to blame."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from accelbus.config import Tuning
from accelbus.delivery.feeder import Feeder, back_off
from accelbus.delivery.ledger import OwedRow
from accelbus.tracking import Row

TUNING = Tuning()


def owed(step: int) -> OwedRow:
    return OwedRow(Row(step, {"loss": float(step)}, step), {0: 1})


class Tracker:
    """Takes rows, fails as told, and remembers; its calls take no time unless told."""

    def __init__(self, fails=lambda call, steps: None):
        self.fails = fails
        self.calls = 0
        self.steps: list[int] = []
        self.sizes: list[int] = []
        self.letters: list[tuple[int, str]] = []
        self.seconds = 0.0

    def log(self, rows):
        self.calls += 1
        steps = [row.row.step for row in rows]
        error = self.fails(self.calls, steps)
        if error is not None:
            raise error
        self.steps += steps
        self.sizes.append(len(rows))
        return self.seconds

    def give_up(self, row, reason):
        self.letters.append((row.row.step, reason))


class Bench:
    """A feeder with a clock that moves as far as the feeder wants to wait."""

    def __init__(self, tracker, **options):
        self.now = 0.0
        self.waits: list[float] = []
        self.tracker = tracker
        self.feeder = Feeder(tracker, tuning=options.pop("tuning", TUNING), monotonic=lambda: self.now, **options)

    def work(self, *, rounds=1000, is_last=False, until=lambda bench: bench.feeder.is_settled):
        for _ in range(rounds):
            wait = self.feeder.work(is_last=is_last)
            if until(self):
                return
            self.waits.append(wait)
            self.now += wait
        pytest.fail(f"not done after {rounds} rounds, {self.now} s")


def poisonous(*bad):
    return lambda call, steps: ValueError(f"bad {steps}") if set(bad) & set(steps) else None


class TestWorkingTracker:
    def test_rows_arrive_in_order_once(self):
        """The usual case."""
        bench = Bench(Tracker(), largest_call=64)
        bench.feeder.add([owed(step) for step in range(100)])
        bench.work()
        assert bench.tracker.steps == list(range(100))
        assert bench.now == 0.0

    def test_calls_grow_while_they_are_quick(self):
        """A batch interface is used to its full."""
        bench = Bench(Tracker(), largest_call=64)
        bench.feeder.add([owed(step) for step in range(300)])
        bench.work()
        assert max(bench.tracker.sizes) == 64

    def test_calls_shrink_while_they_are_slow(self):
        """So that no call of a healthy tracker meets its deadline."""
        bench = Bench(Tracker(), largest_call=64)
        bench.feeder.add([owed(step) for step in range(200)])
        bench.work()
        bench.tracker.sizes.clear()
        bench.tracker.seconds = 5.0
        bench.feeder.add([owed(step) for step in range(200)])
        bench.work()
        assert bench.tracker.sizes[-1] == 1

    def test_a_pause_comes_between_two_calls(self):
        """Commands are obeyed without waiting for the whole queue."""
        bench = Bench(Tracker())
        bench.feeder.add([owed(step) for step in range(10)])
        bench.feeder.work(should_pause=lambda: len(bench.tracker.steps) == 3)
        assert bench.tracker.steps == [0, 1, 2]
        assert not bench.feeder.is_settled

    def test_rows_with_different_keyword_arguments_go_in_different_calls(self):
        """A call has one set of them, all or none."""
        bench = Bench(Tracker(), largest_call=64)
        rows = [owed(step) for step in range(40)]
        bench.feeder.add([one._replace(row=one.row._replace(log_kwargs={"commit": one.row.step < 20})) for one in rows])
        bench.feeder._chunk = 64
        bench.work()
        assert bench.tracker.sizes == [20, 20]


class TestTransientFailures:
    def test_every_third_call_fails(self):
        """Nothing is lost, doubled, reordered or waited for long."""
        bench = Bench(Tracker(lambda call, steps: RuntimeError("now and then") if call % 3 == 0 else None), largest_call=64)
        bench.feeder.add([owed(step) for step in range(200)])
        bench.work()
        assert bench.tracker.steps == list(range(200))
        assert bench.tracker.letters == []
        assert bench.now < 5.0

    def test_one_call_in_three_fails_at_random(self):
        """A row may be unlucky many times; it is not taken for a bad row."""
        chance = random.Random(7)
        bench = Bench(Tracker(lambda call, steps: RuntimeError("chance") if chance.random() < 1 / 3 else None), largest_call=8)
        bench.feeder.add([owed(step) for step in range(2000)])
        bench.work()
        assert sorted(bench.tracker.steps) == list(range(2000))
        assert bench.tracker.letters == []

    def test_a_short_outage_is_waited_out(self):
        """With back-off, in order."""
        bench = Bench(Tracker())
        bench.tracker.fails = lambda call, steps: ConnectionError("away") if bench.now < 1.2 else None
        bench.feeder.add([owed(0)])
        bench.work()
        assert bench.tracker.steps == [0]
        assert bench.feeder.retries >= 2


class TestBadRows:
    @pytest.mark.parametrize("bad", [(0,), (50,), (50, 51), (10, 20, 30, 40)])
    def test_a_row_that_fails_while_others_work_is_a_dead_letter(self, bad):
        """With its reason, and the rest goes on."""
        bench = Bench(Tracker(poisonous(*bad)), largest_call=16)
        bench.feeder.add([owed(step) for step in range(100)])
        bench.work()
        assert sorted(bench.tracker.steps) == [step for step in range(100) if step not in bad]
        assert [step for step, _ in bench.tracker.letters] == list(bad)
        assert "ValueError" in bench.tracker.letters[0][1]
        assert bench.now < 10.0

    def test_the_last_row_is_given_up_only_when_the_run_is_over(self):
        """While the run goes on another row may come to compare it with."""
        bench = Bench(Tracker(poisonous(9)))
        bench.feeder.add([owed(step) for step in range(10)])
        bench.work(until=lambda bench: bench.now > 600)
        assert bench.tracker.letters == []
        assert not bench.feeder.is_blocked
        bench.work(is_last=True)
        assert [step for step, _ in bench.tracker.letters] == [9]

    def test_the_last_row_is_kept_while_its_error_is_the_networks(self):
        """OSError says little about the row."""
        bench = Bench(Tracker(lambda call, steps: ConnectionError("away") if steps == [9] else None))
        bench.feeder.add([owed(step) for step in range(10)])
        bench.work(is_last=True, until=lambda bench: bench.now > 600)
        assert bench.tracker.letters == []

    def test_a_row_set_aside_is_judged_when_the_next_rows_come(self):
        """A live run brings the evidence later."""
        bench = Bench(Tracker(poisonous(0)))
        bench.feeder.add([owed(0)])
        bench.work(until=lambda bench: bench.now > 5)
        assert bench.feeder.wants_rows
        for step in range(1, 15):
            bench.feeder.add([owed(step)])
            bench.feeder.work()
        assert bench.tracker.steps == list(range(1, 15))
        assert [step for step, _ in bench.tracker.letters] == [0]

    def test_a_dead_letter_that_cannot_be_written_is_kept(self):
        """A full disk is no reason to lose a row."""
        bench = Bench(Tracker(poisonous(3)))
        full = [True]
        written = bench.tracker.give_up

        def give_up(row, reason):
            if full[0]:
                raise OSError(28, "No space left on device")
            written(row, reason)

        bench.tracker.give_up = give_up
        bench.feeder.add([owed(step) for step in range(30)])
        bench.work(until=lambda bench: bench.now > 100)
        assert not bench.feeder.is_settled
        full[0] = False
        bench.feeder.add([owed(30)])
        bench.work()
        assert [step for step, _ in bench.tracker.letters] == [3]


class TestBreaker:
    def test_it_opens_when_different_rows_fail_and_gives_nothing_up(self):
        """An outage of an hour costs no row, and few calls."""
        bench = Bench(Tracker())
        bench.tracker.fails = lambda call, steps: RuntimeError("down") if bench.now < 3600 else None
        bench.feeder.add([owed(step) for step in range(100)])
        bench.work(until=lambda bench: bench.feeder.is_blocked)
        assert not bench.feeder.wants_rows
        assert bench.feeder.failing == TUNING.breaker_failures
        bench.work(until=lambda bench: bench.now >= 3600)
        assert bench.tracker.calls < 1000
        assert max(bench.waits) <= TUNING.retry_max * 1.2
        bench.work()
        assert bench.tracker.steps == list(range(100))
        assert bench.tracker.letters == []
        assert not bench.feeder.is_blocked

    def test_a_bad_row_does_not_keep_it_open(self):
        """When the outage is over, the others prove the bad one guilty."""
        bench = Bench(Tracker())
        bench.tracker.fails = lambda call, steps: RuntimeError("down") if bench.now < 100 or steps == [0] else None
        bench.feeder.add([owed(step) for step in range(50)])
        bench.work()
        assert bench.tracker.steps == list(range(1, 50))
        assert [step for step, _ in bench.tracker.letters] == [0]


class TestDeadlyRows:
    def test_a_row_that_ended_workers_is_not_tried_again_while_others_work(self):
        """A hang or a crash costs a worker each time."""
        bench = Bench(Tracker(), deaths={"0:5": 3}, one_by_one=True)
        bench.feeder.add([owed(step) for step in range(10)])
        bench.work()
        assert bench.tracker.steps == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert [step for step, _ in bench.tracker.letters] == [5]
        assert set(bench.tracker.sizes) == {1}

    def test_one_death_is_not_held_against_a_row(self):
        """Somebody may have killed the worker for its memory."""
        bench = Bench(Tracker(), deaths={"0:5": 1}, one_by_one=True)
        bench.feeder.add([owed(step) for step in range(10)])
        bench.work()
        assert bench.tracker.steps == list(range(10))

    def test_a_death_beside_a_bad_row_is_not_held_against_a_row(self):
        """It is set aside while the bad row is judged, and then tried."""
        bench = Bench(Tracker(poisonous(3)), deaths={"0:5": 1}, one_by_one=True)
        bench.feeder.add([owed(step) for step in range(30)])
        bench.work()
        assert sorted(bench.tracker.steps) == [step for step in range(30) if step != 3]
        assert [step for step, _ in bench.tracker.letters] == [3]

    def test_many_deadly_rows_open_the_breaker(self):
        """A tracker that kills its worker whatever it gets is not the rows' fault."""
        bench = Bench(Tracker(), deaths={f"0:{step}": 3 if step == 0 else 1 for step in range(5)}, one_by_one=True)
        bench.feeder.add([owed(step) for step in range(10)])
        bench.feeder.work()
        assert bench.feeder.is_blocked
        assert bench.tracker.calls == 0
        bench.work()
        assert sorted(bench.tracker.steps) == list(range(10))
        assert bench.tracker.letters == []

    def test_a_deadly_last_row_is_given_up_in_the_end(self):
        """When the run is over and it has ended many workers."""
        bench = Bench(Tracker(), deaths={"0:5": 100}, one_by_one=True)
        bench.feeder.add([owed(5)])
        bench.work(is_last=True)
        assert [step for step, _ in bench.tracker.letters] == [5]


class TestChaos:
    @pytest.mark.parametrize("seed", range(8))
    def test_every_row_ends_up_in_one_place(self, seed):
        """Whatever mixture of chance, outages and bad rows: delivered at least once or a dead letter, never both, never neither."""
        chance = random.Random(seed)
        bad = {chance.randrange(300) for _ in range(4)}
        outages = sorted(chance.uniform(0, 200) for _ in range(4))

        bench = Bench(Tracker(), largest_call=32)

        def fails(call, steps):
            bench.now += 0.02
            if bad & set(steps):
                return ValueError("bad")
            if outages[0] < bench.now < outages[1] or outages[2] < bench.now < outages[3]:
                return RuntimeError("down")
            return RuntimeError("chance") if chance.random() < 0.1 else None

        bench.tracker.fails = fails
        for first in range(0, 300, 30):
            bench.feeder.add([owed(step) for step in range(first, first + 30)])
            bench.work(until=lambda bench: bench.feeder.wants_rows)
        bench.work(is_last=True)
        assert Counter(bench.tracker.steps) == Counter({step: 1 for step in range(300) if step not in bad})
        assert {step for step, _ in bench.tracker.letters} == bad


def test_back_off_doubles_up_to_its_bound():
    """With jitter, so that many sinks do not knock at the same time."""
    waits = [back_off(failures, TUNING) for failures in range(1, 12)]
    assert 0.4 <= waits[0] <= 0.6
    assert 0.8 <= waits[1] <= 1.2
    assert all(wait <= TUNING.retry_max * 1.2 for wait in waits)
    assert back_off(10_000, TUNING) <= TUNING.retry_max * 1.2
