"""What a person sees while the end of a run waits for a tracker."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.support.job import QUICK, Job, running_job

SCRIPT = """
import os, sys, time
import accelbus
from accelbus.tracking import GeneralTracker

class Slow(GeneralTracker):
    name = "slow"
    requires_logging_directory = False
    tracker = None

    def log(self, values, step=None):
        while not os.path.exists("shown"):
            time.sleep(0.01)

run = accelbus.init(log_with=[Slow()], inline=["slow"])
run.log({"loss": 1.0, "acc": 0.5}, step=1)
run.finish()
"""


@pytest.fixture
def job():
    with running_job(**QUICK, ACCELBUS_FINISH_TIMEOUT="60") as one:
        del one.environ["ACCELBUS_LOG_WITH"]
        yield one


def test_a_tracker_beside_training_is_named_while_it_is_waited_for(job: Job) -> None:
    """On a terminal, in one line that is gone at the end."""
    script = job.root / "script.py"
    script.write_text(SCRIPT)
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, str(script)], env={**os.environ, **job.environ}, stderr=theirs, cwd=job.root)
    os.close(theirs)
    output = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the process has ended
            break
        output += data
        if b"values to go" in output:
            (job.root / "shown").touch()
    os.close(ours)
    assert process.wait(60) == 0
    assert b"accelbus: waiting for slow (running, 2 values to go)" in output
    assert output.endswith(b"\r\x1b[K")
