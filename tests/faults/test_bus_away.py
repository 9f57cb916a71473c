"""The bus process is not there, does not answer, or goes together with everything else."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from accelbus.reader.audit import audit
from tests.support.job import QUICK, Job, running_job, wait_until

STEPS = 200
LOG = """
for step in range(200):
    run.log({"loss": step * 0.5 + run.rank}, step=step)
"""
LOSSES = {("loss", step): step * 0.5 + 0.5 for step in range(STEPS)}
AWAY = {
    "no such program": "sys.executable = '/nonexistent/python'",
    "ends at once": "sys.executable = '/bin/false'",
    "dead endpoint": "os.environ['ACCELBUS_ENDPOINT'] = f'ipc://{os.environ[\"ROOT\"]}/nobody'",
    "address that the library refuses": "import accelbus.client.checks as checks; checks.check_endpoint = print; "
    "os.environ['ACCELBUS_ENDPOINT'] = 'foo://bar'",
    "no socket to be had": "os.environ['ACCELBUS_ENDPOINT'] = 'ipc:///nobody'; import zmq; zmq.Context.socket = lambda *_: exec('raise zmq.ZMQError(24)', {'zmq': zmq})",
}


@pytest.mark.parametrize("away", AWAY.values(), ids=AWAY.keys())
def test_a_bus_process_that_never_comes_costs_the_trackers_and_nothing_else(quick_job: Job, away: str) -> None:
    """Everything goes to the run directory, `finish` says so in time, and `sync` delivers it."""
    ranks = quick_job.run(
        away
        + """
run = accelbus.init()
"""
        + LOG
        + """
deadline = time.monotonic() + 20
while run.statistics().pending:
    assert time.monotonic() < deadline, run.statistics()
    time.sleep(0.01)
for step in range(200, 400):
    run.log({"loss": step * 0.5 + run.rank}, step=step)
began = time.monotonic()
assert run.finish()
assert time.monotonic() - began < 4, time.monotonic() - began
assert run.statistics().pending == 0
""",
        ranks=2,
        ACCELBUS_FINISH_TIMEOUT="60",
    )
    for rank in ranks:
        assert rank.process.returncode == 0, rank.stderr
        assert rank.stderr.count("the bus process") <= 1, rank.stderr
        assert rank.stderr.count("no bus process can be reached") <= 1, rank.stderr
        assert "Traceback" not in rank.stderr
    assert "accelbus sync" in ranks[0].stderr
    assert quick_job.points() == {}
    books = audit(quick_job.run_dir)
    assert books.balanced, books.problems
    assert (books.logged, books.pending_events) == (2 * 402, 0)
    quick_job.sync()
    quick_job.check({("loss", step): step * 0.5 + 0.5 for step in range(400)}, status="finished")


def test_a_stopped_bus_process_costs_nothing_but_time(quick_job: Job) -> None:
    """Training goes on; what nobody acks goes to the run directory; when it wakes up, everything is there once."""
    ranks = quick_job.start(
        """
run = accelbus.init()
step = 0
while not os.path.exists(os.environ["ROOT"] + "/stop"):
    run.log({"loss": float(step), "rank": run.rank}, step=step)
    step += 1
    time.sleep(0.001)
say(f"spilled {run.statistics().spilled}")
run.finish()
say(f"steps {step}")
""",
        ranks=2,
    )
    quick_job.wait_for_rows(100)
    bus = quick_job.kill_bus(signal.SIGSTOP)
    wait_until(lambda: len(list(quick_job.run_dir.glob("journal/spill-*"))) == 2, what="spills of both ranks")
    before = len(quick_job.rows())
    os.kill(bus, signal.SIGCONT)
    quick_job.wait_for_rows(before + 300)
    assert quick_job.bus_pid() == bus
    quick_job.signal_file("stop")
    for rank in ranks:
        assert rank.wait() == 0, rank.stderr
        assert rank.lines[0] != "spilled 0"
    quick_job.wait_for_end()
    steps = [int(rank.lines[1].split()[1]) for rank in ranks]
    points = {("loss", step): float(step) for step in range(max(steps))}
    points |= {("rank", step): 0.5 if step < min(steps) else float(steps.index(max(steps))) for step in range(max(steps))}
    quick_job.check(points, status="finished")


def test_ranks_may_end_while_the_bus_process_is_stopped(quick_job: Job) -> None:
    """`finish` is safe without it, in time; when it wakes up it closes the run and delivers everything."""
    ranks = quick_job.start(
        """
run = accelbus.init()
wait_for(os.environ["ROOT"] + "/stopped")
"""
        + LOG
        + """
assert run.finish()
""",
        ranks=2,
    )
    quick_job.wait_for_ranks(2)
    bus = quick_job.kill_bus(signal.SIGSTOP)
    quick_job.signal_file("stopped")
    for rank in ranks:
        assert rank.wait(20) == 0, rank.stderr
    assert audit(quick_job.run_dir).balanced
    os.kill(bus, signal.SIGCONT)
    quick_job.check(LOSSES, status="finished")


def test_everything_killed_at_once_and_the_node_wiped(quick_job: Job) -> None:
    """What `log` had returned for at least two seconds is in the run directory; `sync` delivers it; the audit names the rest."""
    ranks = quick_job.start(
        """
run = accelbus.init()
step = 0
while True:
    now = time.monotonic()
    run.log({"loss": step * 0.5 + run.rank}, step=step)
    say(f"{step} {now}")
    step += 1
    time.sleep(0.005)
""",
        ranks=2,
        **dict.fromkeys(QUICK, ""),  # the promise is about the intervals as they are
    )
    quick_job.wait_for_rows(400)
    killed_at = quick_job.kill_everything()
    shutil.rmtree(quick_job.spools)
    shutil.rmtree(quick_job.sockets)
    old, logged = 10**9, 0
    for rank in ranks:
        rank.wait()
        times = {int(step): float(at) for step, at in (line.split() for line in rank.lines if len(line.split()) == 2)}
        old = min(old, max(step for step, at in times.items() if at < killed_at - 2))
        logged = max(logged, max(times) + 1)
    quick_job.sockets.mkdir(mode=0o700)
    named = audit(quick_job.run_dir)
    quick_job.sync()
    quick_job.wait_for_end()
    steps = {step for _, step in quick_job.points()}
    assert steps == set(range(max(steps) + 1))
    assert old <= max(steps) < logged
    assert all(quick_job.points()["loss", step] == step * 0.5 + 0.5 for step in range(old + 1))
    books = audit(quick_job.run_dir)
    assert books.status == "killed"
    assert books.pending_events == 0
    assert books.lost == named.lost
    assert all(producer.logged == producer.journal + producer.lost for producer in books.producers)
    assert books.balanced == (books.lost == 0)


def test_what_a_dead_run_left_on_the_node_is_brought_in_by_the_next_bus_process_there(quick_job: Job) -> None:
    """Rank and bus process of one run are killed; another run on the node salvages the spool, and `sync` needs nothing of the node."""
    (rank,) = quick_job.start("run = accelbus.init()\nwait_for(os.environ['ROOT'] + '/stopped')" + LOG + "say('logged')\ntime.sleep(60)")
    quick_job.wait_for_ranks(1)
    bus = quick_job.kill_bus(signal.SIGSTOP)
    quick_job.signal_file("stopped")
    rank.said("logged")
    rank.kill()
    os.kill(bus, signal.SIGKILL)
    rank.wait()
    (spool,) = quick_job.spools.glob("*.spool")
    os.utime(spool, (0, 0))  # a young one is left to its own bus process, which may still be starting
    with running_job(**QUICK, ACCELBUS_SPOOL_DIR=str(quick_job.spools)) as other:
        other.start("accelbus.init()\nwait_for(os.environ['ROOT'] + '/over')")
        other.wait_for_ranks(1)
        wait_until(lambda: len(list(quick_job.spools.glob("*.spool"))) == 1, what="the other run's spool alone")
        other.signal_file("over")
        other.check({}, status="finished")
    shutil.rmtree(quick_job.spools)
    quick_job.sync()
    quick_job.check({("loss", step): step * 0.5 for step in range(STEPS)}, status="killed")
