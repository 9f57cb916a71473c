"""Every way a training process can end: nothing is lost, the run has the true status, and the exit code is what it would have been."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.job import QUICK, Job, jobs_at_once

STEPS = 20
TRAIN = f"""
run = accelbus.init()
for step in range({STEPS}):
    run.log({{"loss": step * 0.5}}, step=step)
"""
POINTS = {("loss", step): step * 0.5 for step in range(STEPS)}


class Ending(NamedTuple):
    """What a script does after its last step, and what comes of it."""

    code: str
    exit_code: int
    status: str


ENDINGS = {
    "falls off the end": Ending("", 0, "finished"),
    "finish": Ending("run.finish()", 0, "finished"),
    "finish as failed": Ending("run.finish(status='failed')", 0, "failed"),
    "sys.exit()": Ending("sys.exit()", 0, "finished"),
    "sys.exit(0)": Ending("sys.exit(0)", 0, "finished"),
    "sys.exit(3)": Ending("sys.exit(3)", 3, "failed"),
    "sys.exit(True)": Ending("sys.exit(True)", 1, "failed"),
    "sys.exit(text)": Ending("sys.exit('no data')", 1, "failed"),
    "exit(3)": Ending("exit(3)", 3, "failed"),
    "sys.exit of an interrupted job": Ending("sys.exit(130)", 130, "preempted"),
    "sys.exit that was caught": Ending("try:\n    sys.exit(3)\nexcept SystemExit:\n    pass", 0, "finished"),
    "a caught exception": Ending("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", 0, "finished"),
    "an exception": Ending("raise ValueError('diverged')", 1, "failed"),
    "an exception after finish": Ending("run.finish()\nraise ValueError('in the evaluation')", 1, "finished"),
    "os._exit(0)": Ending("os._exit(0)", 0, "killed"),
    "os._exit(7)": Ending("os._exit(7)", 7, "killed"),
    "abort": Ending("os.abort()", -signal.SIGABRT, "killed"),
    "SIGKILL": Ending("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "killed"),
    "a with block": Ending("with run:\n    pass", 0, "finished"),
    "a with block that raises": Ending("with run:\n    raise ValueError", 1, "failed"),
    "a with block that exits": Ending("with run:\n    sys.exit(4)", 4, "failed"),
    "a with block whose exception is caught": Ending(
        "try:\n    with run:\n        raise ValueError\nexcept ValueError:\n    pass", 0, "failed"
    ),
}


@pytest.fixture(scope="module")
def ended() -> Iterator[dict[str, Job]]:
    """One job per ending, over and done."""
    with jobs_at_once({name: TRAIN + ending.code for name, ending in ENDINGS.items()}, **QUICK) as jobs:
        yield jobs


@pytest.mark.parametrize("name", ENDINGS)
def test_the_end_of_a_process_loses_nothing_and_is_told_as_it_was(ended: dict[str, Job], name: str) -> None:
    """The exit code is the script's own, the status is what happened, and every point is there."""
    job, ending = ended[name], ENDINGS[name]
    (rank,) = job.ranks
    assert rank.process.returncode == ending.exit_code, rank.stderr
    job.check(POINTS, status=ending.status)
