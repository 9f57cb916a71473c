"""`finish` in a signal handler that interrupts `log`: what was logged is kept or counted, and the interrupted call returns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.job import QUICK, Job, jobs_at_once

SCRIPT = """
run = accelbus.init({arguments})
text = "x" * {size}
ended = False

def handler(number, frame):
    global ended
    say(f"safe {{run.finish('preempted')}}")
    ended = True
    {then}

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, {after})
step = 0
try:
    while not ended:
        run.log({{"step": step, "text": text}}, step=step)
        step += 1
finally:
    counts = run.statistics()
    say(f"steps {{step}}")
    say(f"logged {{counts.logged}}")
    say(f"pending {{counts.pending}}")
    say(f"closed {{counts.dropped.pop('closed', 0)}}")
    say(f"dropped {{counts.dropped}}")
    run.log({{"late": 1}})
"""
CASES = {
    f"{kind}, {size} bytes, {ends}, {trial}": SCRIPT.format(
        arguments=f"durability={kind!r}",
        size=size,
        after=0.01 + 0.0007 * trial,
        then="sys.exit(3)" if ends == "exits" else "pass",
    )
    for kind, size, trials in (("process", 10, 2), ("process", 3000, 2), ("memory", 10, 1))
    for ends in ("goes on", "exits")
    for trial in range(trials)
}


@pytest.fixture(scope="module")
def ended() -> Iterator[dict[str, Job]]:
    """One job per case, over and done."""
    # Room for all that a loop without a pause can log before the signal: dropping is not the question here.
    with jobs_at_once(CASES, **QUICK, ACCELBUS_SPOOL_BYTES=str(64 << 20)) as jobs:
        yield jobs


@pytest.mark.parametrize("name", CASES)
def test_what_a_finish_interrupts_is_kept_or_counted(ended: dict[str, Job], name: str) -> None:
    """Nothing raises but what the handler raises, everything is safe, and every call of `log` that returned is accounted for."""
    job = ended[name]
    (rank,) = job.ranks
    assert rank.process.returncode == (3 if "exits" in name else 0), rank.stderr
    assert "Traceback" not in rank.stderr
    said = dict(line.split(" ", 1) for line in rank.lines)
    assert (said["safe"], said["pending"], said["dropped"]) == ("True", "0", "{}")
    kept = int(said["logged"]) - 2  # the start and the end
    returned, closed = int(said["steps"]), int(said["closed"])
    # A call that the handler's exception ended has not returned, whether its event was committed before or not.
    assert kept + closed - returned in ((0, 1) if "exits" in name else (0,))
    job.check(
        {(key, step): value for step in range(kept) for key, value in (("step", step), ("text", "x" * int(name.split()[1])))},
        status="preempted",
    )
