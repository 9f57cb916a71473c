"""A bench that loses points, or misses the work of a child, says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench import cpu
from bench.readers import Found, check

EXPECTED = {(0, "loss"): 1.0, (1, "loss"): 0.5}


@pytest.mark.parametrize(
    "found, complaint",
    [
        ([Found(0, "loss", 1.0)], "1 of 2 points are missing"),
        ([Found(0, "loss", 1.0), Found(1, "loss", 0.5), Found(1, "loss", 0.5)], "there twice"),
        ([Found(0, "loss", 1.0), Found(1, "loss", 0.5), Found(2, "loss", 0.5)], "nobody logged"),
        ([Found(0, "loss", 1.0), Found(1, "loss", 0.6)], "expected 0.5"),
    ],
)
def test_what_was_not_stored_as_it_was_logged_is_an_error(found, complaint):
    """Missing, doubled, foreign and changed points are named."""
    with pytest.raises(AssertionError, match=complaint):
        check(found, EXPECTED, "tracker")


def test_what_was_stored_as_it_was_logged_is_right():
    """Up to the precision of 32-bit floats."""
    check([Found(0, "loss", 1.0), Found(1, "loss", 0.5 * (1 + 1e-7))], EXPECTED, "tracker")


@pytest.mark.skipif(sys.platform != "linux", reason="the work of living children is in /proc")
def test_work_of_children_counts_while_they_live_and_afterwards():
    """Once, also when they are reaped."""
    before = cpu.seconds()
    work = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        living = cpu.seconds() - before
        child.communicate(b"\n")
    reaped = cpu.seconds() - before
    assert 0.28 < living < 0.6
    assert living - 0.05 < reaped < living + 0.2
