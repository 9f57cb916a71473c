"""One worker per sink on a host."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from accelbus.delivery.exclusion import exclude_others

HOLDER = """
import sys
from pathlib import Path
from accelbus.delivery.exclusion import exclude_others
exclude_others(Path(sys.argv[1]), patience=9, timeout=9)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock."""
    directory = tmp_path / "run" / "sinks" / "jsonl"
    directory.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process, directory
    process.kill()
    process.communicate()


def test_a_process_that_is_no_worker_of_the_run_is_not_killed(holder):
    """Pids are reused; whoever it is, it is waited for, and not for ever."""
    process, directory = holder
    with pytest.raises(TimeoutError, match="held by another process"):
        exclude_others(directory, patience=0.05, timeout=0.3)
    assert process.poll() is None


def test_the_lock_goes_with_its_process(holder):
    """However that ends."""
    process, directory = holder
    process.kill()
    began = time.monotonic()
    exclude_others(directory, patience=9, timeout=9)
    assert time.monotonic() - began < 5
