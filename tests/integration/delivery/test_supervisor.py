"""A supervisor and real worker processes, trackers that misbehave, and processes that are killed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from accelbus.delivery.status import SinkStatus
from accelbus.delivery.supervisor import Supervisor
from tests.support.deliveries import QUICK, Run, check_counts, group_is_gone, kill, until


class Served:
    """A run that is being delivered."""

    def __init__(self, run: Run, supervisor: Supervisor) -> None:
        self.run = run
        self.supervisor = supervisor
        self.notices: list[tuple[str, str, str]] = []

    @property
    def status(self) -> SinkStatus:
        status = self.supervisor.states()[self.run.sink]
        for rank, counts in status.ranks.items():
            check_counts(rank, counts)
        return status

    async def worker(self) -> int:
        """Return the pid of the worker, as soon as it has said it."""
        await until(lambda: self.status.pid, "a report of the worker")
        return self.status.pid

    async def state(self, *states: str) -> SinkStatus:
        await until(lambda: self.status.state in states, lambda: f"{states}, is {self.status}\n{self.run.worker_log()}")
        return self.status

    async def delivered(self, *steps: int) -> None:
        expected = self.run.expected(*steps)
        await until(lambda: self.run.merged() == expected, lambda: f"{expected}; is {self.status}\n{self.run.worker_log()}")

    async def finished(self) -> SinkStatus:
        """Close the run and wait for the sink; what every run must have come to by then."""
        self.run.end()
        self.run.close()
        status = await self.state("finished")
        assert {rank: counts.read for rank, counts in status.ranks.items()} == dict(self.run.logged)
        assert all(counts.pending == 0 for counts in status.ranks.values())
        self.run.check_books(status)
        return status


@contextlib.asynccontextmanager
async def serving(run: Run, **options: Any) -> AsyncIterator[Served]:
    tuning = msgspec.structs.replace(QUICK, **options.pop("tuning", {}))
    served: Served
    supervisor = Supervisor(run.dir, run.record, tuning=tuning, on_notice=lambda *notice: served.notices.append(notice), **options)
    served = Served(run, supervisor)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        yield served
        with anyio.fail_after(20):
            await supervisor.stop()


class TestDelivery:
    async def test_a_run_is_delivered_while_it_runs_and_finished_when_it_is_closed(self, tmp_path):
        """Points arrive merged; the tracker is told how the run ended."""
        run = Run(tmp_path, "ScriptedTracker")
        run.start()
        async with serving(run) as served:
            run.log(*range(10))
            await served.delivered(*range(10))
            run.log(*range(10, 20))
            status = await served.finished()
            assert run.merged() == run.expected(*range(20))
            assert status.values.delivered == 80
            assert run.calls("finishes") == ["finished"]
            assert len(run.calls("starts")) == 1
            assert ("info", f"{run.sink}: scripted://digits", run.sink) in served.notices

    async def test_every_sink_has_a_worker_of_its_own(self, tmp_path):
        """A tracker that hangs holds up nobody else."""
        run = Run(tmp_path, "BufferedTracker", "ScriptedTracker")
        run.record.init_kwargs[run.sinks[1]]["hangs_at"] = (3,)
        run.start()
        async with serving(run) as served:
            run.log(*range(10))
            await served.delivered(*range(10))
            await until(lambda: [row["step"] for row in run.durable(run.sinks[1])] == [0, 1, 2], "the hang")
            states = served.supervisor.states()
            assert states[run.sinks[0]].pid != states[run.sinks[1]].pid

    async def test_configuration_of_all_ranks_is_merged_and_updated(self, tmp_path):
        """The lowest rank rules; a later update is stored with everything so far."""
        run = Run(tmp_path, "ScriptedTracker")
        run.start()
        run.config(1, {"seed": 1, "only": "one"})
        run.config(0, {"seed": 0, "model": {"width": 3}})
        async with serving(run) as served:
            await until(lambda: run.calls("configs.jsonl"), "configuration")
            assert run.calls("configs.jsonl")[-1] == {"seed": 0, "only": "one", "model": {"width": 3}}
            run.config(0, {"lr": 0.1})
            await until(lambda: run.calls("configs.jsonl")[-1].get("lr"), "update")
            assert run.calls("configs.jsonl")[-1] == {"seed": 0, "only": "one", "model": {"width": 3}, "lr": 0.1}
            await served.finished()

    async def test_a_tracker_that_changes_what_it_is_given_changes_nothing(self, tmp_path):
        """A row that is tried again, and the configuration, are what was logged."""
        run = Run(tmp_path, "ScriptedTracker", raise_every=2, greedy=True)
        run.start()
        run.config(0, {"lr": 0.1})
        run.log(*range(5))
        async with serving(run) as served:
            run.config(0, {"seed": 1})
            await served.finished()
            assert run.merged() == run.expected(*range(5))
            assert {"lr": 0.1, "seed": 1} in run.calls("configs.jsonl")

    async def test_a_tracker_written_for_accelerate_works(self, tmp_path):
        """No hooks, no status, one call per row."""
        run = Run(tmp_path, "PlainTracker")
        run.start()
        run.log(*range(5))
        async with serving(run) as served:
            await served.finished()
            assert run.merged() == run.expected(*range(5))
            assert run.calls("finishes") == ["plain"]

    async def test_what_a_tracker_prints_disturbs_nothing(self, tmp_path):
        """Its stdout is a log file, its stdin is empty."""
        run = Run(tmp_path, "ScriptedTracker", noise=True)
        run.start()
        run.log(1)
        async with serving(run) as served:
            await served.finished()
        assert "a tracker prints what it likes" in (run.dir.logs / f"{run.sink}.log").read_text(errors="replace")

    async def test_drain_waits_for_what_is_in_the_journal_now(self, tmp_path):
        """And says whether it is durable."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        async with serving(run, tuning={"cursor_interval": 30.0}) as served:
            run.log(*range(50))
            assert await served.supervisor.drain(15.0)
            assert run.merged() == run.expected(*range(50))
            assert served.status.values.pending == 0

    async def test_drain_says_no_in_time(self, tmp_path):
        """A sink that cannot keep up is reported, not waited for."""
        run = Run(tmp_path, "ScriptedTracker", start_failures=1000)
        run.start()
        run.log(1)
        async with serving(run) as served:
            assert not await served.supervisor.drain(0.3)

    async def test_stop_leaves_the_rest_owed(self, tmp_path):
        """The tracker is not finished, the cursor is where it came to, the sink is free for the next."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(10))
        async with serving(run) as served:
            await served.state("up_to_date")
        assert served.status.state == "stopped"
        assert run.calls("finishes") == []
        run.log(*range(10, 15))
        async with serving(run) as served:
            await served.finished()
            assert [row["step"] for row in run.durable()] == list(range(15))

    async def test_a_finished_run_can_be_resumed(self, tmp_path):
        """Its sinks start again where they were."""
        run = Run(tmp_path, "ScriptedTracker")
        run.start()
        run.log(1)
        async with serving(run) as served:
            await served.finished()
            run.start(attempt=1)
            run.log(2, attempt=1)
            served.supervisor.resume()
            await served.delivered(1, 2)
            run.end(attempt=1)
            run.close("failed")
            await until(lambda: run.calls("finishes") == ["finished", "failed"], "second finish")


class TestWhetherARunMayBeThere:
    """``RunInfo.resumed``, of a tracker without checkpoints."""

    async def test_it_is_new_once_and_there_for_every_later_worker_and_attempt(self, tmp_path):
        """Also where the tracker has left nothing in the cursor."""
        run = Run(tmp_path, "ScriptedTracker")
        run.start()
        run.log(1)
        async with serving(run) as served:
            await served.finished()
            assert run.calls("resumed") == [False]
            run.start(attempt=1)
            run.log(2, attempt=1)
            served.supervisor.resume()
            await served.delivered(1, 2)
            assert run.calls("resumed") == [False, True]
            kill(run.calls("starts")[-1])
            await until(lambda: run.calls("resumed") == [False, True, True], "another worker")

    async def test_a_worker_killed_inside_its_first_start_may_have_made_it(self, tmp_path):
        """Its successor knows, before anything was logged."""
        run = Run(tmp_path, "ScriptedTracker", deaths_in_start=1)
        run.start()
        async with serving(run) as served:
            await served.state("up_to_date")
            assert run.calls("resumed") == [False, True]

    async def test_a_start_that_failed_may_have_made_it(self, tmp_path):
        """A connection that breaks after the server did its work."""
        run = Run(tmp_path, "ScriptedTracker", start_failures=1)
        run.start()
        async with serving(run) as served:
            await served.state("up_to_date")
            assert run.calls("resumed") == [False, True]

    async def test_a_damaged_cursor_says_so_too(self, tmp_path):
        """Everything is delivered again, to a run that is there."""
        run = Run(tmp_path, "ScriptedTracker")
        run.start()
        run.dir.sink(run.sink).mkdir(parents=True)
        (run.dir.sink(run.sink) / "cursor.msgpack").write_bytes(b"ABC1 not a cursor")
        async with serving(run) as served:
            await served.state("up_to_date")
            assert run.calls("resumed") == [True]

    async def test_what_is_written_before_the_start_moves_nothing(self, tmp_path):
        """A run with a backlog whose first worker dies in its start is delivered from its beginning."""
        run = Run(tmp_path, "ExactTracker", deaths_in_start=2)
        run.start()
        run.log(*range(10))
        async with serving(run) as served:
            await served.finished()
            assert [row["step"] for row in run.durable()] == list(range(10))


class TestFailingTrackers:
    async def test_one_call_in_three_raises(self, tmp_path):
        """Every row arrives once."""
        run = Run(tmp_path, "ScriptedTracker", raise_every=3)
        run.start()
        run.log(*range(100))
        async with serving(run) as served:
            status = await served.finished()
            assert [row["step"] for row in run.durable()] == list(range(100))
            assert status.retries > 30
            assert status.dead_letters == 0

    async def test_a_poisonous_row_goes_to_the_dead_letters(self, tmp_path):
        """With its reason; the others arrive."""
        run = Run(tmp_path, "ScriptedTracker", refuses=(5,))
        run.start()
        run.log(*range(40))
        async with serving(run) as served:
            status = await served.finished()
            assert run.merged() == run.expected(*[step for step in range(40) if step != 5])
            assert status.dead_letters == 1
            assert [counts.dead_lettered for counts in status.ranks.values()] == [2, 2]
        (letter,) = (run.dir.sink(run.sink) / "dead_letters.jsonl").read_text().splitlines()
        assert "not to my taste" in letter

    async def test_a_start_that_fails_for_a_while_is_repeated(self, tmp_path):
        """Without limit, in one process and in fresh ones; the user is told once."""
        run = Run(tmp_path, "ScriptedTracker", start_failures=5)
        run.start()
        run.log(*range(5))
        async with serving(run) as served:
            await served.finished()
            assert len(run.calls("starts")) == 6
            assert len(set(run.calls("starts"))) > 1
            assert run.merged() == run.expected(*range(5))
        warnings = [text for level, text, _ in served.notices if level == "warning"]
        assert len(warnings) == 1
        assert "no network yet" in warnings[0]

    async def test_a_breaker_opens_and_closes(self, tmp_path):
        """Nothing is given up while everything fails, and the user hears of both."""
        run = Run(tmp_path, "ScriptedTracker", refuses=tuple(range(100)))
        run.start()
        run.log(*range(20))
        async with serving(run) as served:
            status = await served.state("blocked")
            assert status.dead_letters == 0
            assert status.values.pending == 80
            assert any(level == "error" for level, _, _ in served.notices)

    async def test_a_flush_that_fails_moves_no_cursor(self, tmp_path):
        """Fresh workers try until it works; nothing is lost."""
        run = Run(tmp_path, "BufferedTracker", flush_failures=5)
        run.start()
        run.log(*range(20))
        async with serving(run) as served:
            await served.finished()
            assert run.merged() == run.expected(*range(20))

    async def test_a_finish_that_fails_is_repeated(self, tmp_path):
        """The run is not left open in the tracker."""
        run = Run(tmp_path, "ScriptedTracker", finish_failures=4)
        run.start()
        run.log(1)
        async with serving(run) as served:
            await served.finished()
            assert run.calls("finishes") == ["finished"] * 5

    async def test_an_unknown_tracker_is_reported_and_tried_again(self, tmp_path):
        """It may be installed while the run goes on; the run does not suffer."""
        run = Run(tmp_path, "NoSuchTracker")
        run.start()
        run.log(1)
        async with serving(run) as served:
            await served.state("retrying")
            await until(lambda: served.notices, "a notice")
            assert "NoSuchTracker" in served.notices[0][1]


class TestHangs:
    async def test_a_hanging_call_is_ended_by_its_deadline(self, tmp_path):
        """The worker is killed and the row repeated, here with success."""
        run = Run(tmp_path, "ScriptedTracker", hangs_at=(5,), hangs=1)
        run.start()
        run.log(*range(10))
        async with serving(run, tuning={"log_deadline": 0.5}) as served:
            status = await served.finished()
            assert status.restarts == 1
            assert run.merged() == run.expected(*range(10))
        assert any("log took longer" in text for _, text, _ in served.notices)

    async def test_a_row_that_always_hangs_is_a_dead_letter(self, tmp_path):
        """After some workers; the rest goes on."""
        run = Run(tmp_path, "ScriptedTracker", hangs_at=(5,))
        run.start()
        run.log(*range(20))
        async with serving(run, tuning={"log_deadline": 0.3}) as served:
            status = await served.finished()
            assert status.dead_letters == 1
            assert run.merged() == run.expected(*[step for step in range(20) if step != 5])

    @pytest.mark.parametrize("tracker", ["ScriptedTracker", "BufferedTracker", "FinishingTracker"])
    async def test_a_row_that_kills_its_worker_is_a_dead_letter(self, tmp_path, tracker):
        """A crash in C code is no exception; it costs some workers and one row."""
        run = Run(tmp_path, tracker, dies_at=(7,))
        run.start()
        run.log(*range(20))
        async with serving(run) as served:
            status = await served.finished()
            assert status.dead_letters == 1
            assert run.merged() == run.expected(*[step for step in range(20) if step != 7])

    async def test_a_configuration_that_always_hangs_is_left_out(self, tmp_path):
        """The values are worth more; they do not wait for it for ever."""
        run = Run(tmp_path, "ScriptedTracker", hangs_in_config=True)
        run.start()
        run.config(0, {"lr": 0.1})
        run.log(*range(5))
        async with serving(run, tuning={"log_deadline": 0.3}) as served:
            status = await served.finished()
            assert run.merged() == run.expected(*range(5))
            assert status.restarts > 1

    async def test_a_hanging_start_is_ended_by_its_deadline(self, tmp_path):
        """And said to the user long before."""
        run = Run(tmp_path, "ScriptedTracker", hangs_in_start=1)
        run.start()
        run.log(1)
        async with serving(run, tuning={"start_deadline": 1.5, "slow_notice": 0.3}) as served:
            await served.finished()
        assert any("not started after" in text for _, text, _ in served.notices)

    async def test_a_slow_call_is_reported_before_its_deadline(self, tmp_path):
        """A network that swallows everything looks like this."""
        run = Run(tmp_path, "ScriptedTracker", hangs_at=(2,))
        run.start()
        run.log(*range(5))
        async with serving(run, tuning={"slow_notice": 0.3}) as served:
            await until(lambda: any("has been in log for" in text for _, text, _ in served.notices), "a notice")
            assert served.status.restarts == 0

    async def test_a_tracker_that_exits_has_not_done_its_work(self, tmp_path):
        """``sys.exit(0)`` in a library is a death like any other."""
        run = Run(tmp_path, "ScriptedTracker", exits_at=(7,))
        run.start()
        run.log(*range(20))
        async with serving(run) as served:
            status = await served.finished()
            assert status.dead_letters == 1
            assert run.merged() == run.expected(*[step for step in range(20) if step != 7])

    @pytest.mark.parametrize("what", ["thread", "fork", "process"])
    async def test_what_a_tracker_leaves_behind_is_ended(self, tmp_path, what):
        """A thread that keeps the interpreter alive has a deadline; processes go with their worker."""
        run = Run(tmp_path, "ScriptedTracker", leaves_behind=what)
        run.start()
        run.log(*range(5))
        async with serving(run, tuning={"exit_deadline": 1.0}) as served:
            status = await served.finished()
            await until(lambda: group_is_gone(status.pid), "the end of the group")
            assert served.status.restarts == 0

    async def test_signals_to_a_whole_job_do_not_end_a_worker(self, tmp_path):
        """A batch system signals every process; the supervisor decides when its workers leave."""
        run = Run(tmp_path, "ScriptedTracker")
        run.start()
        run.log(*range(5))
        async with serving(run) as served:
            pid = (await served.state("up_to_date")).pid
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                kill(pid, number)
            run.log(*range(5, 10))
            await served.delivered(*range(10))
            assert (await served.finished()).restarts == 0

    async def test_a_stopped_worker_is_replaced(self, tmp_path):
        """SIGSTOP: it says nothing, so it is killed, and another one goes on."""
        run = Run(tmp_path, "ScriptedTracker")
        run.start()
        run.log(*range(5))
        async with serving(run, tuning={"silence_deadline": 0.6}) as served:
            await served.state("up_to_date")
            stopped = served.status.pid
            kill(stopped, signal.SIGSTOP)
            run.log(*range(5, 10))
            await served.delivered(*range(10))
            assert group_is_gone(stopped)
            assert (await served.finished()).restarts == 1


class TestPriority:
    async def test_a_worker_and_all_its_threads_give_way_to_training(self, tmp_path):
        """Also where the kernel schedules whole sessions, and a process's own niceness would say nothing."""
        run = Run(tmp_path, "ScriptedTracker")
        run.start()
        run.log(*range(5))
        async with serving(run, tuning={"worker_nice": 19}) as served:
            await until(lambda: len(run.durable()) == 5 and served.status.pid, "delivery")
            process = Path(f"/proc/{served.status.pid}")
            threads = [(process / "task" / task.name / "stat").read_text() for task in (process / "task").iterdir()]
            assert {int(stat.rpartition(")")[2].split()[16]) for stat in threads} == {19}
            if (session := process / "autogroup").exists():
                assert session.read_text().endswith(" nice 19\n")
            await served.finished()


class TestKilledWorkers:
    async def test_a_worker_killed_right_after_its_last_log_returned_loses_nothing(self, tmp_path):
        """What was only in the tracker's memory is fed again: the cursor never moved over it."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(300))
        async with serving(run, tuning={"cursor_interval": 30.0}) as served:
            await until(lambda: len(run.calls("calls.jsonl")) == 300, "300 calls")
            assert run.durable() == []
            kill(await served.worker())
            await until(lambda: len(run.calls("calls.jsonl")) == 600, "300 calls again")
            await served.finished()
            assert [row["step"] for row in run.durable()] == list(range(300))

    async def test_a_worker_killed_in_start_starts_again(self, tmp_path):
        """With the same tracker, from the same cursor."""
        run = Run(tmp_path, "BufferedTracker", deaths_in_start=2)
        run.start()
        run.log(*range(5))
        async with serving(run) as served:
            status = await served.finished()
            assert status.restarts == 2
            assert [row["step"] for row in run.durable()] == list(range(5))

    async def test_a_file_tracker_is_exactly_once_over_many_kills(self, tmp_path):
        """It is cut back to the cursor each time, so nothing is there twice."""
        run = Run(tmp_path, "ExactTracker", seconds_per_call=0.002)
        run.start()
        async with serving(run, tuning={"cursor_interval": 0.03}) as served:
            for first in range(0, 500, 100):
                run.log(*range(first, first + 100))
                await until(lambda first=first: len(run.calls("calls.jsonl")) > first + 20, "some calls")
                kill(await served.worker())
            status = await served.finished()
            assert status.restarts >= 4
            assert run.durable() == [{"step": step, "values": {"loss": step + 0.5, "acc": 0.5}} for step in range(500)]
            assert status.values.delivered == 2000

    async def test_a_finish_tracker_is_fed_again_from_the_start(self, tmp_path):
        """Nothing of it is durable before the end, and nothing counts as delivered."""
        run = Run(tmp_path, "FinishingTracker")
        run.start()
        run.log(*range(20))
        async with serving(run) as served:
            await until(lambda: len(run.calls("calls.jsonl")) == 20, "20 calls")
            assert served.status.values.delivered == 0
            kill(await served.worker())
            await until(lambda: len(run.calls("calls.jsonl")) == 40, "20 calls again")
            status = await served.finished()
            assert [row["step"] for row in run.durable()] == list(range(20))
            assert status.values.delivered == 80

    async def test_a_cursor_that_cannot_be_written_stops_nothing(self, tmp_path):
        """A full disk: delivery goes on, the cursor follows when there is room again."""
        run = Run(tmp_path, "ScriptedTracker")
        run.start()
        run.log(*range(5))
        async with serving(run) as served:
            await served.state("up_to_date")
            cursor = run.dir.sink(run.sink) / "cursor.msgpack"
            cursor.unlink()
            (cursor / "in the way").mkdir(parents=True)
            run.log(*range(5, 10))
            await served.delivered(*range(10))
            await until(lambda: "cannot be written" in run.worker_log(), "the complaint")
            (cursor / "in the way").rmdir()
            cursor.rmdir()
            await served.state("up_to_date")
            assert (await served.finished()).restarts == 0

    async def test_a_damaged_cursor_means_from_the_beginning(self, tmp_path):
        """Said, counted, and for a file tracker without a trace."""
        run = Run(tmp_path, "ExactTracker")
        run.start()
        run.log(*range(10))
        async with serving(run) as served:
            await served.state("up_to_date")
        (run.dir.sink(run.sink) / "cursor.msgpack").write_bytes(b"ABC1 not a cursor")
        async with serving(run) as served:
            status = await served.finished()
            assert status.cursor_resets == 1
            assert [row["step"] for row in run.durable()] == list(range(10))

    async def test_workers_end_with_their_supervisor(self, tmp_path):
        """Cancellation leaves no process behind, also none that a tracker started."""
        run = Run(tmp_path, "ScriptedTracker", hangs_at=(3,))
        run.start()
        run.log(*range(5))
        async with anyio.create_task_group() as tasks:
            supervisor = Supervisor(run.dir, run.record, tuning=QUICK)
            tasks.start_soon(supervisor.run)
            await until(lambda: len(run.durable()) == 3 and supervisor.states()[run.sink].pid, "the hang and a report of it")
            pid = supervisor.states()[run.sink].pid
            tasks.cancel_scope.cancel()
        await until(lambda: group_is_gone(pid), "the end of the group")


@pytest.mark.parametrize("tracker", ["ScriptedTracker", "BufferedTracker", "ExactTracker"])
async def test_the_books_balance_through_all_of_it(tmp_path, tracker):
    """Failures, dead letters, kills and late values together: at every report and at the end each value is in one place."""
    run = Run(tmp_path, tracker, raise_every=7, refuses=(33,), seconds_per_call=0.001)
    run.start()
    async with serving(run, tuning={"cursor_interval": 0.05}) as served:
        for first in range(0, 120, 30):
            run.log(*range(first, first + 30), ranks=(0,))
            run.log(*range(first, first + 30), ranks=(1,))
            run.log(first, ranks=(1,))
            await until(lambda first=first: len(run.calls("calls.jsonl")) > first, "progress")
            served.run.check_books(served.status)
            kill(await served.worker())
        status = await served.finished()
        assert status.values.read == sum(run.logged.values())
        assert status.values.delivered + status.values.dead_lettered + status.values.superseded == status.values.read
        assert run.merged() == run.expected(*[step for step in range(120) if step != 33])
