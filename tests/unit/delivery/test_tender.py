"""A sink that is started again, because there is more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio

from accelbus.config import Tuning
from accelbus.delivery.channel import Command, WorkerSpec
from accelbus.delivery.repeating import DONE
from accelbus.delivery.status import SinkStatus
from accelbus.delivery.supervisor import Supervisor
from accelbus.rundir import RunDir, RunRecord
from tests.support.deliveries import until


class ScriptedWorker:
    """Says that it is finished, and leaves, when it is told to."""

    def __init__(self, report: Callable[[SinkStatus], None]) -> None:
        self.killed_for = ""
        self._report = report
        self.may_finish = anyio.Event()

    async def run(self) -> int:
        self._report(SinkStatus(sink="one", state="running"))
        await self.may_finish.wait()
        self._report(SinkStatus(sink="one", state="finished", leaving=DONE))
        return DONE

    async def send(self, command: Command) -> None:
        self.may_finish.set()

    def kill(self) -> None:
        self.may_finish.set()


async def test_a_sink_that_is_to_look_again_is_not_called_finished_before_it_has(tmp_path: Path) -> None:
    """Neither at once, nor by a worker that was about to finish: both had read the journal before there was more."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    workers: list[ScriptedWorker] = []

    def make(sink: str, spec: WorkerSpec, report: Callable[[SinkStatus], None]) -> ScriptedWorker:
        workers.append(ScriptedWorker(report))
        return workers[-1]

    record = RunRecord(run_id="run", project="project", sinks=("one",), mode="online", world_size=1)
    supervisor = Supervisor(run_dir, record, tuning=Tuning(), environ=os.environ, make_worker=make)

    def state() -> str:
        return supervisor.states()["one"].state

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        await until(lambda: len(workers) == 1 and state() == "running", "the first worker")
        workers[0].may_finish.set()
        await until(lambda: state() == "finished", "the end")
        supervisor.resume()
        assert state() == "starting"
        await until(lambda: len(workers) == 2 and state() == "running", "the second worker")
        supervisor.resume()
        seen = set()
        workers[1].may_finish.set()
        await until(lambda: seen.add(state()) or len(workers) == 3, "the third worker")
        assert "finished" not in seen
        workers[2].may_finish.set()
        await until(lambda: state() == "finished", "the end")
        await supervisor.stop()
