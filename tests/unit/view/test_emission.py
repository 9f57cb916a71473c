"""When a point is emitted, and with what."""

from __future__ import annotations

import math

from accelbus.events import ConfigUpdate
from tests.support.views import (
    about,
    check_books,
    closed,
    end,
    item,
    joined,
    log,
    reopened,
    short,
    start,
    starts,
    tick,
    view,
)


class TestAsSoonAsPossible:
    def test_a_point_is_emitted_when_all_ranks_have_logged_it(self):
        """The mean comes with the last rank's value, not after a timeout."""
        merged = view()
        assert merged.feed([*starts(2), log(0, 1, {"loss": 1.0})]) == []
        (point,) = merged.feed([log(1, 1, {"loss": 2.0})])
        assert (point.step, point.key, point.value, point.n_ranks) == (1, "loss", 1.5, 2)
        assert point.contributions == {0: 1, 1: 1}

    def test_a_single_rank_waits_for_nobody(self):
        """With a world of one rank every value is a point at once."""
        merged = view()
        assert short(merged.feed([start(0, 1), log(0, 1, {"a": 1, "b": 2.5})])) == [(1, "a", 1), (1, "b", 2.5)]

    def test_a_key_of_one_rank_is_waited_for_only_the_first_time(self):
        """What only rank 0 logs is emitted at once from the second step on."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"lr": 0.1})])
        assert short(merged.feed([log(1, 2, {"other": 1.0})])) == [(1, "lr", 0.1)]
        assert short(merged.feed([log(0, 2, {"lr": 0.2})])) == [(2, "lr", 0.2)]

    def test_a_rank_that_went_past_the_step_is_not_waited_for(self):
        """Steps of a rank only grow, so a later step says that the earlier one is complete."""
        merged = view()
        merged.feed([*starts(3), log(0, 1, {"loss": 1.0}), log(1, 1, {"loss": 3.0})])
        assert short(merged.feed([log(2, 2, {"loss": 9.0})])) == [(1, "loss", 2.0)]

    def test_ranks_that_passed_before_the_first_value_are_not_waited_for(self):
        """A slow rank's own key does not wait for ranks that are ahead."""
        merged = view()
        merged.feed([*starts(2), log(0, 10, {"loss": 1.0})])
        assert short(merged.feed([log(1, 5, {"slow": 1.0})])) == [(5, "slow", 1.0)]

    def test_an_unusual_contributor_makes_the_point_wait_for_all(self):
        """When rank 1 logs what only rank 0 used to log, the others may as well."""
        merged = view()
        merged.feed([*starts(3), log(0, 1, {"k": 1.0}), log(1, 1, {"x": 1.0}), log(2, 1, {"x": 1.0}), tick(5.0)])
        assert short(merged.feed([log(1, 2, {"k": 1.0}, at=5.0)])) == []
        assert short(merged.feed([log(0, 2, {"k": 2.0}, at=5.0)])) == []
        assert short(merged.feed([log(2, 2, {"k": 3.0}, at=5.0)])) == [(2, "k", 2.0)]

    def test_points_come_in_the_order_in_which_they_became_ready(self):
        """A slow step does not hold back a later one of another key."""
        merged = view()
        points = merged.feed([*starts(2), log(0, 1, {"a": 1.0}), log(0, 2, {"b": 1.0}), log(1, 1, {"a": 1.0}), log(1, 2, {"b": 2.0})])
        assert short(points) == [(1, "a", 1.0), (2, "b", 1.5)]


class TestDeadlines:
    def test_a_missing_rank_is_waited_for_two_seconds_of_journal_time(self):
        """The deadline counts from the first value, and any item moves time."""
        merged = view()
        assert merged.feed([*starts(2), log(0, 1, {"loss": 1.0}, at=10.0), tick(11.9)]) == []
        assert short(merged.feed([tick(12.0)])) == [(1, "loss", 1.0)]

    def test_a_deadline_is_met_before_the_item_that_reveals_it_is_applied(self):
        """A value that comes after the deadline is late, whoever brings the news of the time."""
        merged = view()
        points = merged.feed([*starts(2), log(0, 1, {"loss": 1.0}, at=10.0), log(1, 1, {"loss": 3.0}, at=12.5)])
        assert short(points) == [(1, "loss", 1.0), (1, "loss", 2.0)]
        assert merged.counts[1].late == 1

    def test_a_receive_time_that_goes_back_changes_nothing(self):
        """Rows of several writers interleave; time in the view only grows."""
        merged = view()
        merged.feed([*starts(2), tick(100.0)])
        assert merged.feed([log(0, 1, {"loss": 1.0}, at=50.0), tick(101.0)]) == []
        assert short(merged.feed([tick(102.0)])) == [(1, "loss", 1.0)]

    def test_a_clock_that_was_set_back_does_not_stop_time(self):
        """The next bus process's ticks go on counting, however far its clock is behind what was written before."""
        merged = view()
        merged.feed([*starts(2), tick(1000.0)])
        assert merged.feed([tick(100.0), log(0, 1, {"loss": 1.0}, at=100.0), tick(101.5)]) == []
        merged = reopened(merged)
        assert short(merged.feed([tick(102.0)])) == [(1, "loss", 1.0)]

    def test_a_rank_that_was_never_seen_holds_nothing_after_a_while(self):
        """All ranks of an attempt are expected, but only for ``late_after`` from its beginning."""
        merged = view()
        merged.feed([start(0, 8, at=0.0), tick(3.0)])
        assert short(merged.feed([log(0, 1, {"loss": 1.0}, at=3.0)])) == [(1, "loss", 1.0)]

    def test_open_points_stop_waiting_for_ranks_that_never_came(self):
        """Points opened within the first seconds need not wait for their own deadline."""
        merged = view()
        merged.feed([start(0, 2, at=0.0), log(0, 1, {"loss": 1.0}, at=1.9)])
        assert short(merged.feed([tick(2.0)])) == [(1, "loss", 1.0)]


class TestRanksThatAreGone:
    def test_dead_silent_lost_and_finished_ranks_hold_nothing(self):
        """Each of these states releases what waited for the rank, and later points do not wait for it."""
        for state in ("dead", "silent", "lost", "finished"):
            merged = view()
            merged.feed([*starts(2), log(0, 1, {"loss": 1.0})])
            assert short(merged.feed([about(1, state, 1.1)])) == [(1, "loss", 1.0)], state
            assert short(merged.feed([log(0, 2, {"loss": 2.0})])) == [(2, "loss", 2.0)], state

    def test_a_rank_that_said_goodbye_holds_nothing(self):
        """RunEnd is the producer's own last word."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"loss": 1.0})])
        assert short(merged.feed([end(1, 1.1)])) == [(1, "loss", 1.0)]

    def test_a_silent_rank_that_speaks_again_is_waited_for_again(self):
        """A bus process says so; a value alone may come from a backlog."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"loss": 1.0}), log(1, 1, {"loss": 1.0}), about(1, "silent", 2.0), about(1, "alive", 3.0)])
        assert merged.feed([log(0, 2, {"loss": 2.0}, at=3.0)]) == []
        assert short(merged.feed([log(1, 2, {"loss": 4.0}, at=3.0)])) == [(2, "loss", 3.0)]

    def test_word_about_a_former_producer_of_the_rank_is_not_about_the_rank(self):
        """The rank's new process in the same attempt is waited for, although the old one is dead."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"loss": 1.0})])
        replaced = start(1, 2)._replace(producer=b"another process!")
        assert merged.feed([replaced, about(1, "dead", 1.1)]) == []

    def test_other_roles_never_hold_a_step(self):
        """An evaluator neither waits for the trainers nor do they wait for it."""
        merged = view()
        merged.feed([*starts(2), start(0, 1, role="evaluator")])
        assert short(merged.feed([log(0, 100, {"val": 0.5}, role="evaluator")])) == [(100, "val", 0.5)]
        assert short(merged.feed([log(0, 1, {"loss": 1.0}), log(1, 1, {"loss": 3.0})])) == [(1, "loss", 2.0)]

    def test_an_evaluator_and_a_trainer_of_the_same_rank_are_two_contributors(self):
        """Rank 0 of another role does not overwrite rank 0."""
        merged = view()
        points = merged.feed([start(0, 1), start(0, 1, role="evaluator"), log(0, 1, {"k": 1.0}), log(0, 1, {"k": 3.0}, role="evaluator")])
        assert short(points) == [(1, "k", 1.0), (1, "k", 2.0)]
        assert points[-1].n_ranks == 2

    def test_ranks_announced_by_the_bus_process_are_expected(self):
        """ProducerJoined counts like RunStart, which may come later or never."""
        merged = view()
        merged.feed([joined(0, 2, 0.0), joined(1, 2, 0.0), tick(5.0)])
        assert merged.feed([log(0, 1, {"loss": 1.0}, at=5.0)]) == []


class TestTheEnd:
    def test_a_closed_run_holds_nothing_back(self):
        """RunClosed emits everything open."""
        merged = view()
        merged.feed([*starts(3), log(0, 1, {"loss": 1.0}), log(1, 2, {"loss": 5.0})])
        assert short(merged.feed([closed(1.5)])) == [(1, "loss", 1.0), (2, "loss", 5.0)]

    def test_finish_emits_everything_open(self):
        """For readers that will not come back."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"loss": 1.0})])
        assert short(merged.finish()) == [(1, "loss", 1.0)]
        assert merged.finish() == []

    def test_a_run_goes_on_after_it_was_closed(self):
        """A resumed run's points are merged as before."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"loss": 1.0}), closed(2.0), *starts(2, at=10.0, attempt=1)])
        points = merged.feed([log(0, 2, {"loss": 1.0}, at=10.0, attempt=1), log(1, 2, {"loss": 2.0}, at=10.0, attempt=1)])
        assert short(points) == [(2, "loss", 1.5)]


class TestLateValues:
    def test_a_late_value_changes_its_point(self):
        """The point is emitted again with all contributions, and only the new value is accounted for."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"loss": 1.0}, at=1.0), tick(4.0)])
        (point,) = merged.feed([log(1, 1, {"loss": 2.0}, at=4.0)])
        assert (point.value, point.n_ranks, point.contributions) == (1.5, 2, {1: 1})
        assert merged.counts[1].late == 1
        check_books(merged)

    def test_a_new_key_at_an_old_step_is_not_late(self):
        """Only what was emitted can be late."""
        merged = view()
        merged.feed([start(0, 1), log(0, 100, {"loss": 1.0})])
        assert short(merged.feed([log(0, 50, {"val": 1.0})])) == [(50, "val", 1.0)]
        assert merged.counts[0].late == 0

    def test_beyond_the_horizon_a_late_value_gets_a_key_of_its_own(self):
        """An old point cannot change any more, and the value is not lost."""
        merged = view(late_horizon_points=2)
        merged.feed([start(0, 1), *(log(0, step, {"loss": float(step)}) for step in range(5))])
        (point,) = merged.feed([log(0, 1, {"loss": 9.0})])
        assert (point.key, point.step, point.value, point.contributions) == ("late/loss", 1, 9.0, {0: 1})
        check_books(merged)

    def test_a_step_that_was_never_logged_is_not_late_beyond_the_horizon(self):
        """An evaluator that finishes out of order writes ordinary points however old their steps are."""
        merged = view(late_horizon_points=1)
        merged.feed([start(0, 1), log(0, 100, {"val": 1.0}), log(0, 300, {"val": 1.0}), log(0, 400, {"other": 1.0})])
        assert short(merged.feed([log(0, 200, {"val": 2.0})])) == [(200, "val", 2.0)]

    def test_a_rank_that_logs_a_step_twice_means_the_last_value(self):
        """While the point is open the first value is superseded; it is never part of the mean."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"loss": 100.0}), log(0, 1, {"loss": 1.0})])
        assert short(merged.feed([log(1, 1, {"loss": 3.0})])) == [(1, "loss", 2.0)]
        assert merged.counts[0].superseded == 1
        check_books(merged)

    def test_a_rank_that_logs_a_step_again_after_it_was_emitted_changes_the_point(self):
        """The last value counts; the first was delivered, so both are accounted for as emitted."""
        merged = view()
        merged.feed([start(0, 1), log(0, 1, {"loss": 1.0})])
        assert short(merged.feed([log(0, 1, {"loss": 2.0})])) == [(1, "loss", 2.0)]
        assert (merged.counts[0].emitted, merged.counts[0].superseded) == (2, 0)
        check_books(merged)


class TestAttempts:
    def test_the_newest_attempt_wins(self):
        """After a resume at an earlier step, its points replace the old ones, without the old ranks' values."""
        merged = view()
        merged.feed([*starts(2), log(0, 5, {"loss": 1.0}), log(1, 5, {"loss": 1.0})])
        points = merged.feed(
            [*starts(2, at=5.0, attempt=1), log(0, 5, {"loss": 3.0}, at=5.0, attempt=1), log(1, 5, {"loss": 4.0}, at=5.0, attempt=1)]
        )
        assert [(point.attempt, point.value) for point in points] == [(1, 3.5)]

    def test_values_of_an_older_attempt_are_superseded_once_the_newer_emitted_the_point(self):
        """What is salvaged late from a killed rank does not overwrite its successor's work."""
        merged = view()
        merged.feed([*starts(1), *starts(1, attempt=1), log(0, 5, {"loss": 3.0}, attempt=1)])
        assert merged.feed([log(0, 5, {"loss": 1.0}, attempt=0)]) == []
        assert merged.counts[0].superseded == 1
        check_books(merged)

    def test_values_of_an_older_attempt_are_kept_where_the_newer_has_none(self):
        """The last steps of a killed attempt are points, whenever they are salvaged."""
        merged = view()
        merged.feed([*starts(1), *starts(1, attempt=1), log(0, 5, {"loss": 3.0}, attempt=1)])
        (point,) = merged.feed([log(0, 9, {"loss": 1.0}, attempt=0)])
        assert (point.attempt, point.step) == (0, 9)

    def test_a_new_attempt_ends_the_wait_for_the_old_one(self):
        """The old attempt's ranks are fenced: they hold nothing."""
        merged = view()
        merged.feed([*starts(2), log(0, 5, {"loss": 1.0})])
        assert short(merged.feed([start(0, 2, attempt=1)])) == [(5, "loss", 1.0)]

    def test_a_new_attempt_expects_all_its_ranks_again(self):
        """Who used to log a key is learnt per attempt."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"k": 1.0}), tick(9.0), *starts(2, at=9.0, attempt=1)])
        assert merged.feed([log(0, 2, {"k": 1.0}, at=9.0, attempt=1)]) == []

    def test_an_old_attempt_beyond_the_horizon_cannot_change_a_point(self):
        """Its value goes to ``late/`` where the newer attempt's point is too old to be seen."""
        merged = view(late_horizon_points=1)
        merged.feed([*starts(1), *starts(1, attempt=1), log(0, 5, {"loss": 3.0}, attempt=1), log(0, 6, {"loss": 3.0}, attempt=1)])
        assert short(merged.feed([log(0, 5, {"loss": 1.0}, attempt=0)])) == [(5, "late/loss", 1.0)]


class TestAutomaticSteps:
    def test_calls_without_a_step_are_counted(self):
        """A rank that never gives a step gets its call number."""
        merged = view()
        points = merged.feed([start(0, 1), log(0, None, {"a": 1.0}, auto_step=0), log(0, None, {"a": 2.0}, auto_step=1)])
        assert short(points) == [(0, "a", 1.0), (1, "a", 2.0)]

    def test_the_count_goes_on_over_attempts(self):
        """The second attempt's first call follows the first attempt's last, whether counting starts at 0 or at 1."""
        for first in (0, 1):
            merged = view()
            points = merged.feed(
                [
                    start(0, 1),
                    log(0, None, {"a": 1.0}, auto_step=first),
                    log(0, None, {"a": 2.0}, auto_step=first + 1),
                    start(0, 1, attempt=1),
                    log(0, None, {"a": 3.0}, auto_step=first, attempt=1),
                    log(0, None, {"a": 4.0}, auto_step=first + 1, attempt=1),
                ]
            )
            assert [point.step for point in points] == [first, first + 1, first + 2, first + 3]


class TestValues:
    def test_text_is_the_main_ranks(self):
        """Others' text is filtered and counted, not averaged and not lost from the books."""
        merged = view()
        points = merged.feed([*starts(2), log(1, 1, {"note": "one"}), log(0, 1, {"note": "zero"})])
        assert short(points) == [(1, "note", "zero")]
        assert points[0].contributions == {0: 1}
        assert merged.counts[1].filtered == 1
        check_books(merged)

    def test_the_lowest_rank_that_logs_text_is_the_main_one(self):
        """Rank 0 may have nothing to say."""
        merged = view()
        merged.feed([*starts(3), log(2, 1, {"note": "two"}), log(1, 1, {"note": "one"})])
        assert short(merged.feed([tick(9.0)])) == [(1, "note", "one")]

    def test_late_text_of_a_lower_rank_replaces(self):
        """And late text of a higher rank is filtered."""
        merged = view()
        merged.feed([*starts(3), log(1, 1, {"note": "one"}), tick(9.0)])
        assert short(merged.feed([log(2, 1, {"note": "two"}, at=9.0)])) == []
        assert short(merged.feed([log(0, 1, {"note": "zero"}, at=9.0)])) == [(1, "note", "zero")]
        assert merged.counts[2].filtered == 1
        check_books(merged)

    def test_lists_are_the_main_ranks(self):
        """A list is not averaged element by element."""
        merged = view()
        assert short(merged.feed([*starts(2), log(0, 1, {"l": [1, 2]}), log(1, 1, {"l": [3]})])) == [(1, "l", [1, 2])]

    def test_numbers_beside_text_follow_the_main_ranks_kind(self):
        """A key that is a number on rank 0 is a number."""
        merged = view()
        assert short(merged.feed([*starts(3), log(0, 1, {"k": 1.0}), log(1, 1, {"k": "x"}), log(2, 1, {"k": 3.0})])) == [(1, "k", 2.0)]
        check_books(merged)

    def test_none_is_filtered_and_still_says_that_the_rank_was_there(self):
        """Nothing waits for a rank that logged None, and a point of Nones only is no point."""
        merged = view()
        points = merged.feed([*starts(2), log(0, 1, {"a": None, "b": None}), log(1, 1, {"a": 2.0, "b": None})])
        assert short(points) == [(1, "a", 2.0)]
        assert [merged.counts[rank].filtered for rank in (0, 1)] == [2, 1]
        check_books(merged)

    def test_booleans_count_as_numbers(self):
        """The mean says how many ranks said yes."""
        merged = view()
        assert short(merged.feed([*starts(2), log(0, 1, {"ok": True}), log(1, 1, {"ok": False})])) == [(1, "ok", 0.5)]

    def test_nan_and_infinity_pass_through(self):
        """A diverged loss is news."""
        merged = view()
        points = merged.feed([*starts(2), log(0, 1, {"a": math.nan, "b": math.inf}), log(1, 1, {"a": 1.0, "b": 1.0})])
        assert math.isnan(points[0].value)
        assert points[1].value == math.inf

    def test_an_integer_of_one_rank_stays_exact(self):
        """2**53 + 1 would not survive a float."""
        merged = view()
        assert short(merged.feed([start(0, 1), log(0, 1, {"tokens": 2**53 + 1})])) == [(1, "tokens", 2**53 + 1)]

    def test_configuration_is_not_a_value(self):
        """The delivery merges it."""
        merged = view()
        assert merged.feed([start(0, 1), item(0, ConfigUpdate(0, {"lr": 1}), 1.0)]) == []

    def test_the_time_of_a_point_is_the_first_ranks(self):
        """So a late value does not move it."""
        merged = view()
        points = merged.feed([*starts(2), log(1, 1, {"a": 1.0}, at=1.5), log(0, 1, {"a": 1.0}, at=1.0)])
        assert points[0].time_ns == 10**9


class TestBounds:
    def test_open_points_are_bounded(self):
        """Beyond the bound the oldest are emitted early and counted, so the cursor stays small."""
        merged = view(view_bytes=1000)
        points = merged.feed([*starts(2), *(log(0, step, {f"key{step}": 1.0}) for step in range(100))])
        assert [point.step for point in points] == list(range(len(points)))
        assert merged.forced == len(points) > 80
        assert len(points) + sum(merged.pending().values()) == 100
        check_books(merged)

    def test_emitted_points_are_bounded_by_size(self):
        """Many ranks make a point large; the horizon shrinks instead of the cursor growing."""
        merged = view(view_bytes=2000)
        merged.feed([*starts(8), *(log(rank, step, {"loss": 1.0}) for step in range(100) for rank in range(8))])
        assert len(merged.state().horizon.points) < 20

    def test_a_text_that_was_emitted_is_not_kept(self):
        """Only that it was text matters to what comes late."""
        merged = view()
        merged.feed([start(0, 1), log(0, 1, {"note": "x" * 10000})])
        assert "x" not in str(merged.state())


class TestState:
    def test_a_view_goes_on_from_its_state(self):
        """Open points, emitted points and counts are as if nothing had happened."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"a": 1.0}), log(1, 1, {"a": 3.0}), log(0, 2, {"a": 5.0})])
        again = reopened(merged)
        assert short(again.feed([log(1, 2, {"a": 7.0}), log(1, 1, {"a": 5.0})])) == [(2, "a", 6.0), (1, "a", 3.0)]
        check_books(again)

    def test_a_state_is_a_snapshot(self):
        """Feeding on changes neither the state that was taken nor the view made from it."""
        merged = view()
        merged.feed([*starts(2), log(0, 1, {"a": 1.0})])
        state = merged.state()
        before = str(state)
        again = reopened(merged)
        merged.feed([log(1, 1, {"a": 1.0}), log(0, 2, {"a": 1.0})])
        assert str(state) == before
        assert short(again.feed([log(1, 1, {"a": 2.0})])) == [(1, "a", 1.5)]
