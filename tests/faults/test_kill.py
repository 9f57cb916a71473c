"""SIGKILL of every process, one at a time."""

from __future__ import annotations

import signal

from accelbus.reader.audit import audit
from tests.support.job import Job


def test_a_rank_killed_right_after_its_ten_thousandth_log_loses_nothing(job: Job) -> None:
    """The event is in the spool before `log` returns; the bus process brings in what the dead rank left."""
    (rank,) = job.start("""
        run = accelbus.init()
        for step in range(10_000):
            run.log({"loss": step * 0.5}, step=step)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert rank.wait() == -signal.SIGKILL
    job.wait_for_end()
    assert job.points() == {("loss", step): step * 0.5 for step in range(10_000)}
    assert audit(job.run_dir).balanced
    assert job.status()["status"] == "killed"


def test_the_bus_process_killed_five_times_loses_and_doubles_nothing(job: Job) -> None:
    """Ranks never notice; the next incarnation goes on where the journal ends."""
    ranks = job.start(
        """
        run = accelbus.init()
        step = 0
        while not os.path.exists(os.environ["ROOT"] + "/stop"):
            run.log({"loss": float(step), "rank": run.rank}, step=step)
            step += 1
            time.sleep(0.001)
        run.finish()
        say(f"steps {step}")
        """,
        ranks=2,
    )
    seen = {job.kill_bus() for _ in range(5)}
    assert len(seen) == 5
    job.signal_file("stop")
    for rank in ranks:
        assert rank.wait() == 0, rank.stderr
    job.wait_for_end()
    steps = [int(rank.lines[-1].split()[1]) for rank in ranks]
    points = job.points()
    assert {step for key, step in points if key == "loss"} == set(range(max(steps)))
    assert all(points["rank", step] == 0.5 for step in range(min(steps)))
    assert audit(job.run_dir).balanced
