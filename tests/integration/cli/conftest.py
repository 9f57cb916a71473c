"""The command line as a process, beside a job of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support.job import Job


class Printed(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def command(job: Job, *arguments: str) -> subprocess.Popen[str]:
    """Start a command in a shell that knows where runs are, and nothing else of the job."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ACCELBUS_")}
    script = "import sys; from accelbus.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**environ, "ACCELBUS_STATE_DIR": str(job.runs), "PYTHONPATH": os.pathsep.join([os.getcwd(), environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def accelbus(quick_job: Job) -> Callable[..., Printed]:
    """Return a function that runs a command line to its end."""

    def run_command(*arguments: str, timeout: float = 60.0) -> Printed:
        process = command(quick_job, *arguments)
        out, err = process.communicate(timeout=timeout)
        return Printed(process.returncode, out, err)

    return run_command
