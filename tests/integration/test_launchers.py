"""Whole jobs under the real torchrun: which run they are, and what a restart makes of it."""

from __future__ import annotations

import socket
import sys

from accelbus.config import Tuning
from accelbus.events import RunClosed, RunStart
from accelbus.journal.merge import JournalReader
from tests.support.job import Job, Rank


def torchrun(job: Job, script: str, *arguments: str, **environ: str) -> Rank:
    """Start *script* under torchrun with two ranks, as if every launch had the same port."""
    # The agents would fight over one port; the ranks are made to believe that it is the same.
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port, *arguments]
    script = "import os\nos.environ['MASTER_PORT'] = '29500'\n" + script
    return job.start_command(command, script, OMP_NUM_THREADS="1", ACCELBUS_RUN_ID="", **environ)


STEPS = """
def train(run, steps, value):
    for step in steps:
        run.log({"loss": value + run.rank}, step=step)

import accelbus
"""


def test_two_launches_at_once_with_one_port_and_no_id_are_two_runs(quick_job: Job) -> None:
    """Neither the port nor the rendezvous id `none` tells them apart; their runs do not mix."""
    launches = [torchrun(quick_job, STEPS + f"train(accelbus.init(), range(20), {value})") for value in (1.0, 2.0)]
    for launch in launches:
        assert launch.wait() == 0, launch.stderr
    quick_job.wait_for_end()
    found = []
    runs = list(quick_job.runs.iterdir())
    assert len(runs) == 2
    for run in runs:
        quick_job.run_id = run.name
        (value,) = set(quick_job.points().values())
        quick_job.check({("loss", step): value for step in range(20)}, status="finished")
        found.append(value)
    assert sorted(found) == [1.5, 2.5]


def test_an_elastic_restart_is_one_run_with_two_attempts(quick_job: Job) -> None:
    """The steps of both attempts, the newest one's value where both have it; trackers see one run and are not closed in between."""
    launch = torchrun(
        quick_job,
        STEPS
        + """
import os, sys, time
run = accelbus.init()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    train(run, range(20), 1.0)
    run.flush()
    open(os.path.join(os.environ["ROOT"], f"logged{run.rank}"), "w").close()
    while not all(os.path.exists(os.path.join(os.environ["ROOT"], f"logged{rank}")) for rank in range(2)):
        time.sleep(0.01)
    if run.rank == 1:
        raise ValueError("a broken link")
    time.sleep(60)
train(run, range(15, 30), 2.0)
""",
        "--max-restarts",
        "1",
        ACCELBUS_RESTART_GRACE="30",
    )
    assert launch.wait() == 0, launch.stderr
    quick_job.run_id = next(path.name for path in quick_job.runs.iterdir())
    books = quick_job.check({("loss", step): 1.5 if step < 15 else 2.5 for step in range(30)}, status="finished")
    assert [(producer.attempt, producer.rank, producer.status) for producer in books.producers] == [
        (0, 0, "preempted"), (0, 1, "failed"), (1, 0, "finished"), (1, 1, "finished"),
    ]  # fmt: skip
    assert list(quick_job.runs.iterdir()) == [quick_job.run_dir]
    assert len(quick_job.rows()) == 35
    items = JournalReader(quick_job.run_dir / "journal", tuning=Tuning()).read(10_000)
    kinds = [type(item.event) for item in items if item.attempt == 1 or isinstance(item.event, RunClosed)]
    assert kinds.index(RunStart) < kinds.index(RunClosed)


def test_a_rank_that_fails_is_not_held_back_by_ranks_that_wait_for_it(quick_job: Job) -> None:
    """In a container the main rank waits for its trackers; torchrun stops the others only when it is gone."""
    launch = torchrun(
        quick_job,
        STEPS
        + """
import time
run = accelbus.init()
train(run, range(20), 1.0)
if run.rank == 0:
    raise ValueError("diverged")
time.sleep(60)
""",
        ACCELBUS_FINISH_TIMEOUT="50",
    )
    assert launch.wait(30) == 1, launch.stderr
    quick_job.run_id = next(path.name for path in quick_job.runs.iterdir())
    quick_job.check({("loss", step): 1.5 for step in range(20)}, status="failed")
    assert "accelbus sync" not in launch.stderr, launch.stderr
