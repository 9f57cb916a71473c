"""Who takes part in a run: ranks that never come, come late or go first, and producers of other roles."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.job import Job, Rank, wait_until

REPOSITORY = Path(__file__).parents[2]
SLOW = "tests.support.slow_tracker:SlowlyFinishingTracker"

LOG_TEN = """
run = accelbus.init()
for step in range(10):
    run.log({"loss": 1.0 + run.rank}, step=step)
"""


def test_a_rank_that_never_joins_holds_nothing_for_long(quick_job: Job) -> None:
    """Its peers' points come out after `late_after`, and the run is closed after the grace although it is not complete."""
    (rank,) = quick_job.start(LOG_TEN + "wait_for(os.environ['ROOT'] + '/seen')", world_size=2)
    quick_job.wait_for_rows(10)
    quick_job.signal_file("seen")
    assert rank.wait() == 0, rank.stderr
    books = quick_job.check({("loss", step): 1.0 for step in range(10)}, status="finished")
    assert [producer.rank for producer in books.producers] == [0]


def test_a_rank_that_joins_after_the_others_have_finished_is_merged(quick_job: Job) -> None:
    """The run is opened again, by a new bus process if need be; points that were emitted change."""
    (first,) = quick_job.start(LOG_TEN + "run.finish()\nwait_for(os.environ['ROOT'] + '/over')", world_size=2)
    quick_job.wait_for_rows(10)
    quick_job.check({("loss", step): 1.0 for step in range(10)}, status="finished")
    (second,) = quick_job.start(LOG_TEN.replace("range(10)", "range(12)"), first=1, world_size=2)
    assert second.wait() == 0, second.stderr
    quick_job.signal_file("over")
    assert first.wait() == 0, first.stderr
    expected = {("loss", step): 1.5 for step in range(10)} | {("loss", step): 2.0 for step in (10, 11)}
    books = quick_job.check(expected, status="finished")
    assert [(producer.rank, producer.attempt) for producer in books.producers] == [(0, 0), (1, 0)]


def test_rank_0_killed_first_takes_nobody_with_it(quick_job: Job) -> None:
    """It had started the bus process and its settings rule; the others and the run go on, and the run was killed."""
    ranks = quick_job.start(
        """
run = accelbus.init()
for step in range(10):
    run.log({"loss": 1.0 + run.rank}, step=step)
say("ready")
if run.rank:
    wait_for(os.environ["ROOT"] + "/killed")
    for step in range(10, 30):
        run.log({"loss": 1.0 + run.rank}, step=step)
    run.finish()
else:
    time.sleep(60)
""",
        ranks=3,
    )
    for rank in ranks:
        rank.said("ready")
    quick_job.wait_for_rows(10)
    bus = quick_job.bus_pid()
    ranks[0].kill()
    assert ranks[0].wait() == -signal.SIGKILL
    quick_job.signal_file("killed")
    quick_job.wait_for_rows(30)
    assert quick_job.bus_pid() == bus
    assert [rank.wait() for rank in ranks[1:]] == [0, 0]
    expected = {("loss", step): 2.0 for step in range(10)} | {("loss", step): 2.5 for step in range(10, 30)}
    books = quick_job.check(expected, status="killed")
    assert [producer.status for producer in books.producers] == ["killed", "finished", "finished"]


EVALUATE = """
run = accelbus.init(role="evaluator")
for step in range(0, 10, 5):
    run.log({"accuracy": step / 10, "loss": 100.0}, step=step)
"""


def test_an_evaluator_adds_its_keys_and_never_holds_a_step(quick_job: Job) -> None:
    """It is started by hand while training runs, logs every fifth step, and opens no attempt."""
    (trainer,) = quick_job.start(LOG_TEN + "wait_for(os.environ['ROOT'] + '/evaluated')\nrun.log({'loss': 7.0}, step=10)")
    quick_job.wait_for_rows(10)
    (evaluator,) = quick_job.start(EVALUATE.replace(', "loss": 100.0', "") + "wait_for(os.environ['ROOT'] + '/evaluated')", alone=True)
    quick_job.wait_for_rows(12)
    quick_job.signal_file("evaluated")
    assert [rank.wait() for rank in (trainer, evaluator)] == [0, 0]
    expected = {("loss", step): 1.0 for step in range(10)} | {("loss", 10): 7.0, ("accuracy", 0): 0.0, ("accuracy", 5): 0.5}
    books = quick_job.check(expected, status="finished")
    assert [(producer.role, producer.attempt) for producer in books.producers] == [("trainer", 0), ("evaluator", 0)]


def test_an_evaluator_that_comes_first_does_not_count_as_an_attempt(quick_job: Job) -> None:
    """The trainers that come later are the first attempt; after a restart of theirs, theirs is the newest."""
    expected = {("accuracy", 0): 0.0, ("accuracy", 5): 0.5}
    (evaluator,) = quick_job.run(EVALUATE.replace(', "loss": 100.0', ""), alone=True)
    assert evaluator.process.returncode == 0, evaluator.stderr
    quick_job.check(expected, status="finished")
    for value in (1.0, 5.0):
        (trainer,) = quick_job.run(LOG_TEN.replace("1.0", str(value)), alone=True)
        assert trainer.process.returncode == 0, trainer.stderr
    books = quick_job.check(expected | {("loss", step): 5.0 for step in range(10)}, status="finished")
    assert [(producer.role, producer.attempt) for producer in books.producers] == [("trainer", 0), ("evaluator", 0), ("trainer", 1)]


def test_an_evaluator_may_outlive_the_trainers(quick_job: Job) -> None:
    """The run is closed when the last producer has ended; its status is its trainers'."""
    (trainer,) = quick_job.start(LOG_TEN + "raise ValueError('diverged')")
    (evaluator,) = quick_job.start(
        "run = accelbus.init(role='evaluator')\nwait_for(os.environ['ROOT'] + '/over')\nrun.log({'accuracy': 1.0}, step=0)", alone=True
    )
    assert trainer.wait() == 1
    quick_job.wait_for_rows(10)
    quick_job.signal_file("over")
    assert evaluator.wait() == 0, evaluator.stderr
    quick_job.check({("loss", step): 1.0 for step in range(10)} | {("accuracy", 0): 1.0}, status="failed")


def test_a_second_start_of_a_rank_replaces_the_first(quick_job: Job) -> None:
    """The older process is refused, not disturbed: what it logs goes on into its own attempt, and the newer attempt's values win."""
    script = LOG_TEN + "say('ready')\nwait_for(os.environ['ROOT'] + '/go')\nrun.log({'loss': 9.0, 'old': 1.0}, step=5)"
    (older,) = quick_job.start(script)
    older.said("ready")
    quick_job.wait_for_rows(10)
    (newer,) = quick_job.start(LOG_TEN.replace("1.0", "3.0"))
    assert newer.wait() == 0, newer.stderr
    quick_job.wait_for_rows(20)
    quick_job.signal_file("go")
    assert older.wait() == 0, older.stderr
    assert "refused" in older.stderr
    books = quick_job.check({("loss", step): 3.0 for step in range(10)} | {("old", 5): 1.0})
    assert [(producer.rank, producer.attempt) for producer in books.producers] == [(0, 0), (0, 1)]


REPLACED = LOG_TEN + "say('ready')\nwait_for(os.environ['ROOT'] + '/go')\nrun.log({'loss': 9.0, 'old': 1.0}, step=5)\n"
WITHOUT_A_WORD = "os.kill(os.getpid(), signal.SIGKILL)"


def replaced(job: Job, end: str = "") -> Rank:
    """Start a rank, replace it, and return it when its successor has finished; it goes on at the word ``go``."""
    (older,) = job.start(REPLACED + end)
    older.said("ready")
    job.wait_for_rows(10)
    (newer,) = job.start(LOG_TEN.replace("1.0", "3.0"))
    assert newer.wait() == 0, newer.stderr
    wait_until(lambda: state_of(job, "jsonl") == "finished", what="the end of the run")
    return older


def state_of(job: Job, sink: str) -> str | None:
    return job.status().get("sinks", {}).get(sink, {}).get("state")


def test_a_replaced_rank_that_ends_after_the_run_was_closed_is_delivered(quick_job: Job) -> None:
    """Its last events come into the journal behind the end of the run, when its sinks have been finished and have looked for the last time."""
    older = replaced(quick_job)
    quick_job.signal_file("go")
    assert older.wait() == 0, older.stderr
    assert "refused" in older.stderr
    books = quick_job.check({("loss", step): 3.0 for step in range(10)} | {("old", 5): 1.0}, status="finished")
    assert [producer.status for producer in books.producers] == ["finished", "finished"]


def test_a_replaced_rank_that_is_killed_after_the_run_was_closed_is_delivered(quick_job: Job) -> None:
    """What it left in its spool is salvaged by a bus process that has stayed for it, and delivered before that leaves."""
    older = replaced(quick_job, WITHOUT_A_WORD)
    quick_job.signal_file("go")
    assert older.wait() == -signal.SIGKILL
    quick_job.check({("loss", step): 3.0 for step in range(10)} | {("old", 5): 1.0}, status="finished")


def test_events_that_come_while_a_tracker_is_being_finished_are_delivered(quick_job: Job) -> None:
    """One tracker was finished before, one is at it, and both had read the journal to its end; both get them."""
    out = quick_job.root / "out"
    quick_job.environ |= {
        "PYTHONPATH": str(REPOSITORY),
        "ACCELBUS_LOG_WITH": f"jsonl,{SLOW}",
        "ACCELBUS_INIT_KWARGS": json.dumps({SLOW: {"directory": str(out)}}),
    }
    older = replaced(quick_job, WITHOUT_A_WORD)
    wait_until((out / "finishes").exists, what="a tracker that is being finished")
    quick_job.signal_file("go")
    assert older.wait() == -signal.SIGKILL
    wait_until(lambda: not list(quick_job.spools.glob("*.spool")), what="the salvage")
    (out / "may_finish").touch()
    quick_job.check({("loss", step): 3.0 for step in range(10)} | {("old", 5): 1.0}, status="finished")
    assert '"old": 1.0' in (out / "durable.jsonl").read_text()


def test_ranks_that_name_the_directory_differently_share_one_bus_process(quick_job: Job) -> None:
    """One of them comes through a link: it is the same run, and one process merges it."""
    quick_job.runs.mkdir()
    (quick_job.root / "link").symlink_to(quick_job.runs)
    ranks = quick_job.start(
        """
        by = "link" if os.environ["RANK"] == "1" else "runs"
        os.environ["ACCELBUS_DIR"] = os.path.join(os.environ["ROOT"], by)
        """
        + LOG_TEN.replace("\n", "\n        ")
        + """
        wait_for(os.environ["ROOT"] + "/seen")
        run.finish()
        """,
        ranks=2,
    )
    quick_job.wait_for_ranks(2)
    assert len(list(quick_job.sockets.iterdir())) == 1
    quick_job.signal_file("seen")
    for rank in ranks:
        assert rank.wait() == 0, rank.stderr
    quick_job.check({("loss", step): 1.5 for step in range(10)}, status="finished")


@pytest.mark.parametrize("where", ["tmpfs", "disk", "memory"])
def test_status_says_where_the_spool_of_a_rank_lies(quick_job: Job, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring on disk explains a slow `log`, one in memory what a SIGKILL loses; both are in the table and in its JSON."""
    (rank,) = quick_job.start(
        f"""
        from accelbus import host
        import accelbus.client.current
        host.is_in_memory = lambda _: {where!r} == "tmpfs"
        run = accelbus.init(durability={"memory" if where == "memory" else "process"!r})
        run.log({{"loss": 1.0}}, step=0)
        assert run.statistics().spool == {where!r}
        wait_for(os.environ["ROOT"] + "/seen")
        run.finish()
        """
    )
    quick_job.wait_for_ranks(1)
    assert quick_job.status()["ranks"][0]["spool"] == where
    monkeypatch.setenv("ACCELBUS_SPOOL_DIR", str(quick_job.spools))
    said = subprocess.run(
        [sys.executable, "-m", "accelbus", "status", "-v", str(quick_job.run_dir)], capture_output=True, text=True, check=False
    )
    flat = " ".join(said.stdout.split())
    assert ("spool on disk" in flat, "spool in memory" in flat) == (where == "disk", where == "memory"), said
    quick_job.signal_file("seen")
    assert rank.wait() == 0, rank.stderr
    quick_job.check({("loss", 0): 1.0}, status="finished")
