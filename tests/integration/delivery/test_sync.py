"""Delivering what a run owes, beside whoever else does, and after whoever else did."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from accelbus.delivery.deliver import sync
from accelbus.delivery.ownership import Lease, claim, read_owner
from accelbus.delivery.status import SinkStatus, read_status
from accelbus.delivery.supervisor import Supervisor
from accelbus.errors import ConfigurationError, OwnershipError
from accelbus.events import Metrics
from accelbus.reader.audit import audit
from tests.support.deliveries import QUICK, TRACKERS, Run, group_is_gone, kill, until

ROOT = Path(__file__).parents[3]


def synced(run: Run, **options: Any) -> SinkStatus:
    """Deliver and return the state of the first sink."""
    return sync(run.dir, tuning=QUICK, timeout=30, **options)[options.get("sinks", run.sinks)[0]]


class TestOnce:
    def test_a_closed_run_is_delivered_and_finished(self, tmp_path):
        """As if the bus process had done it."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(30))
        run.end()
        run.close("failed")
        status = synced(run)
        assert (status.state, status.run_status) == ("finished", "failed")
        assert [row["step"] for row in run.durable()] == list(range(30))
        assert run.calls("finishes") == ["failed"]
        run.check_books(status)

    def test_the_lease_is_released_although_one_is_being_renewed(self, tmp_path, monkeypatch):
        """Whoever comes next need not wait until it expires."""
        released = threading.Event()
        release, renew = Lease.release, Lease.renew

        def release_and_tell(lease: Lease) -> None:
            release(lease)
            released.set()

        def renew_late(lease: Lease) -> bool:
            released.wait(0.2)
            return renew(lease)

        monkeypatch.setattr(Lease, "release", release_and_tell)
        monkeypatch.setattr(Lease, "renew", renew_late)
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(1)
        run.close()
        assert synced(run).state == "finished"
        owner = read_owner(run.dir.sink(run.sinks[0]))
        assert owner is not None
        assert owner.released

    def test_it_is_safe_to_repeat(self, tmp_path):
        """The second time there is nothing to do, and the tracker is not even started."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(3))
        run.close()
        first = synced(run)
        second = synced(run)
        assert len(run.calls("starts")) == 1
        assert second.state == "finished"
        assert second.values == first.values
        assert second.url == first.url

    def test_a_dead_run_that_nobody_closed_is_delivered_to_the_end(self, tmp_path):
        """Points that waited for a rank that will never come included; and again safe to repeat."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(3))
        run.log(3, ranks=(0,))
        status = synced(run)
        assert status.state == "up_to_date"
        assert status.values.pending == 0
        assert run.merged()[3] == {"loss": 3.0, "acc": 0.5}
        assert synced(run).state == "up_to_date"
        assert len(run.calls("starts")) == 1

    def test_a_run_synced_while_it_lives_is_finished_later(self, tmp_path):
        """What comes after is delivered by the next one, nothing twice, and late ranks change their points."""
        run = Run(tmp_path, "ExactTracker")
        run.start()
        run.log(0, 1)
        run.log(2, ranks=(0,))
        synced(run)
        run.log(2, ranks=(1,))
        run.log(3)
        run.end()
        run.close()
        status = synced(run)
        assert status.state == "finished"
        assert run.merged() == run.expected(0, 1, 2, 3)
        assert [row["step"] for row in run.durable()] == [0, 1, 2, 2, 3]
        run.check_books(status)

    def test_a_closed_run_gets_its_status_after_a_sync_of_the_open_one(self, tmp_path):
        """The tracker was closed without a word on how the run ended; now it learns it."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(0)
        synced(run)
        run.close("killed")
        assert synced(run).state == "finished"
        assert run.calls("finishes") == [None, "killed"]

    @pytest.mark.parametrize("late", ["superseded", "filtered"])
    def test_values_that_lead_nowhere_after_the_end_are_not_owed_for_ever(self, tmp_path, late):
        """An older attempt's, or ones that no tracker takes: the tracker is not started for them, and the books are closed over them."""
        run = Run(tmp_path, "BufferedTracker", ranks=1)
        run.start()
        run.start(attempt=1)
        run.log(*range(3), attempt=1)
        run.close()
        synced(run)
        if late == "superseded":
            run.log(1, attempt=0)
        else:
            run.write(0, [Metrics(time.time_ns(), 7, {"nothing": None})], attempt=1)
        run.close()
        assert audit(run.dir).pending_values > 0
        assert synced(run).state == "finished"
        found = audit(run.dir)
        assert (found.pending_values, found.problems) == (0, [])
        assert len(run.calls("starts")) == 1

    def test_values_that_a_view_holds_open_wake_a_finished_tracker(self, tmp_path):
        """A dead run that was synced, then got a value of one rank out of two: nobody else will come for it."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(3))
        synced(run)
        run.log(3, ranks=(0,))
        status = synced(run)
        assert (status.state, status.values.pending) == ("up_to_date", 0)
        assert run.merged()[3] == {"loss": 3.0, "acc": 0.5}

    def test_a_later_attempt_starts_from_what_finish_left(self, tmp_path):
        """What a tracker writes at the end of an attempt is behind its cursor: it is not cut off when the run is resumed."""
        run = Run(tmp_path, "ClosingTracker")
        run.start()
        run.log(1)
        run.end()
        run.close("failed")
        synced(run)
        run.start(attempt=1)
        run.log(2, attempt=1)
        run.end(attempt=1)
        run.close()
        assert synced(run).run_status == "finished"
        assert [row.get("status") or row["step"] for row in run.durable()] == [1, "failed", 2, "finished"]

    def test_another_tracker_gets_everything_from_the_beginning(self, tmp_path):
        """Adding a tracker later is a reader that starts at the beginning."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(5))
        run.close()
        synced(run)
        other = f"{TRACKERS}:ScriptedTracker"
        run.record.init_kwargs[other] = {"directory": str(tmp_path / "other")}
        run.dir.write_record(run.record)
        sync(run.dir, [other], tuning=QUICK)
        rows = [json.loads(line)["step"] for line in (tmp_path / "other" / "durable.jsonl").read_text().splitlines()]
        assert rows == list(range(5))

    def test_a_timeout_leaves_the_rest_owed(self, tmp_path):
        """Interrupting is safe: the workers are gone, the cursors stay."""
        run = Run(tmp_path, "ScriptedTracker", hangs_at=(2,))
        run.start()
        run.log(*range(5))
        run.close()
        status = sync(run.dir, tuning=QUICK, timeout=1.5)[run.sink]
        assert status.state == "stopped"
        assert group_is_gone(status.pid)

    def test_a_run_without_trackers_says_so(self, tmp_path):
        """Instead of doing nothing in silence."""
        with pytest.raises(ConfigurationError, match="no tracker"):
            sync(Run(tmp_path).dir, tuning=QUICK)

    def test_the_last_state_stays_in_the_run_directory(self, tmp_path):
        """For ``status`` when all processes are gone."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(0)
        run.close()
        status = synced(run)
        assert read_status(run.dir.sink(run.sink)) == status


class TestFollow:
    async def test_it_stays_until_the_run_is_closed(self, tmp_path):
        """And returns by itself then."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(3))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, functools.partial(synced, run, follow=True))
            await until(lambda: len(run.durable()) == 3, "the first rows")
            run.log(*range(3, 6))
            await until(lambda: len(run.durable()) == 6, "the next rows")
            run.end()
            run.close()
        assert run.calls("finishes") == ["finished"]


@contextlib.asynccontextmanager
async def supervised(run: Run, **tuning: Any):
    supervisor = Supervisor(run.dir, run.record, tuning=msgspec.structs.replace(QUICK, **tuning))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        yield supervisor
        await supervisor.stop()


class TestOwners:
    async def test_a_live_owner_is_named_and_left_alone(self, tmp_path):
        """``sync`` beside a live worker starts nothing."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(3))
        async with supervised(run) as supervisor:
            await until(lambda: len(run.durable()) == 3, "delivery")
            with pytest.raises(OwnershipError, match=f"bus process {os.getpid()}"):
                await anyio.to_thread.run_sync(functools.partial(synced, run))
            run.log(*range(3, 6))
            await until(lambda: len(run.durable()) == 6, "delivery goes on")
            assert supervisor.states()[run.sink].restarts == 0
        assert len(run.calls("starts")) == 1

    async def test_taking_over_ends_the_other_worker(self, tmp_path):
        """The older owner is fenced until the sink is let go, and not for as long as a lease lasts; together they deliver everything, and nothing
        twice.
        """
        run = Run(tmp_path, "ExactTracker", seconds_per_call=0.005)
        run.start()
        run.log(*range(200))
        async with supervised(run, lease_expires=60.0) as supervisor:
            await until(lambda: len(run.calls("calls.jsonl")) > 20, "the first rows")
            pid = supervisor.states()[run.sink].pid
            status = await anyio.to_thread.run_sync(functools.partial(synced, run, take_over=True))
            assert status.values.delivered == 800
            assert group_is_gone(pid)
            assert [row["step"] for row in run.durable()] == list(range(200))
            await until(lambda: supervisor.states()[run.sink].generation == 3, "the older owner claims the free sink again")
            run.log(200)
            await until(lambda: len(run.durable()) == 201, "delivery goes on")

    async def test_the_bus_process_waits_for_a_sync_and_goes_on_after_it(self, tmp_path):
        """Whoever comes second waits for the lease."""
        run = Run(tmp_path, "BufferedTracker")
        run.start()
        run.log(*range(3))
        lease = claim(run.dir.sink(run.sink), tuning=QUICK, purpose="sync")
        async with supervised(run) as supervisor:
            await until(lambda: supervisor.states()[run.sink].state == "waiting", "waiting")
            assert "sync process" in supervisor.states()[run.sink].last_error
            lease.release()
            await until(lambda: len(run.durable()) == 3, "delivery")

    async def test_an_expired_lease_is_taken_from_a_stopped_owner(self, tmp_path):
        """SIGSTOP of the bus process: its worker is ended, delivery goes on elsewhere, and it is fenced when it wakes."""
        run = Run(tmp_path, "ExactTracker")
        run.start()
        run.log(*range(5))
        bus = _start_supervisor(run)
        try:
            await until(lambda: len(run.durable()) == 5, "delivery")
            kill(bus.pid, signal.SIGSTOP)
            run.log(*range(5, 10))
            run.close()
            assert await _synced_in_the_end(run)
            kill(bus.pid, signal.SIGCONT)
            assert [row["step"] for row in run.durable()] == list(range(10))
            owner = read_owner(run.dir.sink(run.sink))
            assert owner is not None
            assert owner.purpose == "sync"
        finally:
            bus.kill()
            bus.wait()

    async def test_a_killed_bus_process_takes_its_worker_along(self, tmp_path):
        """Within a second, wherever the worker is; and nobody has to wait for a lease."""
        run = Run(tmp_path, "BufferedTracker", hangs_at=(5,))
        run.start()
        run.log(*range(10))
        bus = _start_supervisor(run)
        try:
            await until(lambda: run.calls("hangs-5"), "the hang")
            status = read_status(run.dir.sink(run.sink))
            assert status is not None
        finally:
            bus.kill()
            bus.wait()
        await until(lambda: group_is_gone(status.pid), "the worker's end", timeout=2.0)
        claim(run.dir.sink(run.sink), tuning=QUICK, purpose="sync").release()

    async def test_a_stopped_worker_of_a_killed_bus_process_does_not_disturb_the_next(self, tmp_path):
        """It cannot leave by itself, so it is ended before the tracker's files are touched."""
        run = Run(tmp_path, "ExactTracker")
        run.start()
        run.log(*range(5))
        bus = _start_supervisor(run)
        try:
            await until(lambda: len(run.durable()) == 5, "delivery")
            await until(lambda: (found := read_status(run.dir.sink(run.sink))) and found.pid, "its status")
            status = read_status(run.dir.sink(run.sink))
            assert status is not None
            kill(status.pid, signal.SIGSTOP)
        finally:
            bus.kill()
            bus.wait()
        run.log(*range(5, 10))
        run.close()
        result = await anyio.to_thread.run_sync(functools.partial(synced, run))
        assert result.state == "finished"
        await until(lambda: group_is_gone(status.pid), "the end of the stopped worker")
        assert [row["step"] for row in run.durable()] == list(range(10))


def _start_supervisor(run: Run) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.support.supervise", str(run.dir.path)], cwd=ROOT)


async def _synced_in_the_end(run: Run) -> bool:
    """Deliver as soon as the lease allows it."""
    with anyio.move_on_after(20):
        while True:
            with contextlib.suppress(OwnershipError):
                return (await anyio.to_thread.run_sync(functools.partial(synced, run))).state == "finished"
            await anyio.sleep(0.05)
    return False
