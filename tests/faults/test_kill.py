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


def test_a_relative_spool_directory_is_the_one_it_was_at_init(quick_job: Job) -> None:
    """The bus process stands elsewhere, and so may the script later, when it starts another bus process: what is left is found."""
    (rank,) = quick_job.start(
        """
        run = accelbus.init()
        os.chdir("/")
        for step in range(100):
            run.log({"loss": step * 0.5}, step=step)
        run.flush()
        while not run.statistics().connected:
            time.sleep(0.01)
        say("connected")
        wait_for(os.environ["ROOT"] + "/killed")
        for step in range(100, 10_000):
            run.log({"loss": step * 0.5}, step=step)
        while not run.statistics().connected or run.statistics().hellos < 2:
            time.sleep(0.01)
        for step in range(10_000, 20_000):
            run.log({"loss": step * 0.5}, step=step)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        ACCELBUS_SPOOL_DIR="here/spools",
    )
    rank.said("connected")
    quick_job.kill_bus()
    quick_job.signal_file("killed")
    assert rank.wait() == -signal.SIGKILL, rank.stderr
    assert (quick_job.root / "here" / "spools").is_dir()
    quick_job.wait_for_end()
    assert quick_job.points() == {("loss", step): step * 0.5 for step in range(20_000)}
    assert audit(quick_job.run_dir).balanced


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
