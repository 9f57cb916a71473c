"""Limits of open files under which a bus process is started."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

from accelbus.aggregator.descriptors import NEEDED


def _run(soft: int, hard: int, *command: str) -> subprocess.CompletedProcess[str]:
    script = (
        "import os, resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    return subprocess.run([sys.executable, "-c", script, *command], check=False, capture_output=True, text=True, timeout=60)


def test_the_soft_limit_is_raised_to_the_hard_one():
    """What a shell allows by default is no reason to fail; whatever is started later may have as many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ours = 256 if hard == resource.RLIM_INFINITY else min(hard, 256)
    code = (
        "import json, resource; from accelbus.aggregator.descriptors import raise_limit; "
        "print(json.dumps([raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)]))"
    )
    done = _run(32, ours, "-c", code)
    assert json.loads(done.stdout) == [ours, [ours, ours]], done.stderr


def test_too_few_descriptors_are_said_in_one_line(tmp_path):
    """Before anything is opened: ZeroMQ would abort, and a rank would start the next process in vain."""
    run = tmp_path / "run-1"
    done = _run(16, 16, "-P", "-m", "accelbus.aggregator", str(run), "--node-dir", str(tmp_path / "node"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "run-1" in line
    assert "16 open files" in line
    assert str(NEEDED) in line
    assert not (tmp_path / "node").exists()
