"""The bus process: told to end, started twice, stopped; and what ranks do meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from accelbus.client.launch import node_directory
from accelbus.config import Tuning
from accelbus.reader.audit import audit
from accelbus.rundir import RunDir
from tests.support.job import Job, wait_until

RANK = """
run = accelbus.init()
step = 0
say("up")
while not os.path.exists(os.environ["ROOT"] + "/stop"):
    run.log({f"loss{run.rank}": float(step)}, step=step)
    step += 1
    time.sleep(0.002)
run.finish()
say(f"steps {step}")
"""


@pytest.fixture
def job(quick_job: Job) -> Job:
    return quick_job


def expected(*ranks: tuple[int, int]) -> dict[tuple[str, int], float]:
    """Points of ranks, given as (rank, steps)."""
    return {(f"loss{rank}", step): float(step) for rank, steps in ranks for step in range(steps)}


def spilled(job: Job) -> int:
    """Return how many bytes ranks have written to the run directory themselves."""
    return sum(path.stat().st_size for path in job.run_dir.glob("journal/spill-*/*.seg"))


def steps_of(rank: object) -> int:
    return int(rank.lines[-1].split()[1])  # type: ignore[attr-defined]


def serving(job: Job) -> int:
    """Return the bus process that reports."""
    return int(wait_until(lambda: job.status().get("bus", {}).get("pid", 0), what="a report"))


def test_sigterm_lets_the_bus_process_serve_its_ranks_and_deliver_before_it_goes(job: Job) -> None:
    """The scheduler's signal comes before the ranks' last events; a grace that began with it would have ended before them."""
    job.environ["ACCELBUS_DRAIN_GRACE"] = "0.5"
    (rank,) = job.start(RANK)
    rank.said("up")
    bus = serving(job)
    os.kill(bus, signal.SIGTERM)
    wait_until(lambda: "SIGTERM" in job.bus_log(), what="word of it")
    before = len(job.rows())
    wait_until(lambda: len(job.rows()) > before + 400, what="0.8 s of rows after the signal")
    assert serving(job) == bus
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    job.check(expected((0, steps_of(rank))), status="finished")
    assert job.bus_log().count("serving run") == 1, job.bus_log()


def test_a_second_sigterm_ends_the_bus_process_at_once_and_keeps_everything(job: Job) -> None:
    """Somebody is in a hurry: the next bus process goes on where the journal ends."""
    (rank,) = job.start(RANK)
    rank.said("up")
    bus = serving(job)
    for _ in range(2):
        os.kill(bus, signal.SIGTERM)
        wait_until(lambda: "SIGTERM" in job.bus_log())
    wait_until(lambda: not os.path.exists(f"/proc/{bus}") or serving(job) != bus, 5, "its end")
    wait_until(lambda: serving(job) != bus, what="the next one")
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    job.check(expected((0, steps_of(rank))), status="finished")


def test_of_two_bus_processes_one_stays(job: Job) -> None:
    """The lock is taken before the socket: the other one leaves, and nobody notices."""
    (rank,) = job.start(RANK)
    rank.said("up")
    bus = serving(job)
    node = node_directory(RunDir(job.run_dir), Tuning(socket_dir=str(job.sockets)))
    command = [sys.executable, "-m", "accelbus.aggregator", str(job.run_dir), "--node-dir", str(node)]
    for second in [subprocess.Popen(command, env={**os.environ, **job.environ}) for _ in range(2)]:
        assert second.wait(20) == 0
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    job.check(expected((0, steps_of(rank))), status="finished")
    assert job.status()["bus"]["pid"] == bus
    assert job.bus_log().count("serving run") == 1, job.bus_log()


def test_a_rank_killed_before_a_stopped_bus_process_heard_of_it_is_found(job: Job) -> None:
    """Its spool lies among the others; nothing was ever said about it."""
    (witness,) = job.start(RANK, world_size=2)
    witness.said("up")
    bus = serving(job)
    os.kill(bus, signal.SIGSTOP)
    (victim,) = job.start(
        """
        run = accelbus.init()
        for step in range(100):
            run.log({"loss1": float(step)}, step=step)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        first=1,
        world_size=2,
        ACCELBUS_SPILL_AFTER="100",
    )
    assert victim.wait() == -signal.SIGKILL
    os.kill(bus, signal.SIGCONT)
    wait_until(lambda: ("loss1", 99) in job.points(), what="the last event of the victim")
    job.signal_file("stop")
    assert witness.wait() == 0, witness.stderr
    job.check(expected((0, steps_of(witness)), (1, 100)), status="killed")


def test_ranks_do_not_notice_what_happens_to_a_worker(job: Job) -> None:
    """A killed worker is replaced at once, a stopped one when its silence is noticed; everything is delivered once."""
    job.environ["ACCELBUS_SILENCE_DEADLINE"] = "1"
    (rank,) = job.start(RANK)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        before = len(job.rows())
        wait_until(lambda before=before: len(job.rows()) > before + 100, what="rows")
        (worker,) = job.worker_pids()
        os.kill(worker, number)
        wait_until(lambda worker=worker: [pid for pid in job.worker_pids() if pid != worker], what="another worker")
    before = len(job.rows())
    wait_until(lambda: len(job.rows()) > before + 100, what="more rows")
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    job.check(expected((0, steps_of(rank))), status="finished")
    assert len(job.rows()) == steps_of(rank)


def test_memory_durability_delivers_and_counts_what_a_kill_takes(job: Job) -> None:
    """Events live in the process: an orderly end loses nothing, a SIGKILL what was not sent, and the books say how many."""
    ranks = job.start(
        """
        run = accelbus.init(durability="memory")
        assert run.statistics().spool == "memory"
        for step in range(3000):
            run.log({f"loss{run.rank}": float(step)}, step=step)
        if run.rank == 1:
            assert run.flush()
            time.sleep(0.5)
            for step in range(3000, 3010):
                run.log({"loss1": float(step)}, step=step)
            os.kill(os.getpid(), signal.SIGKILL)
        run.finish()
        """,
        ranks=2,
    )
    assert [rank.wait() for rank in ranks] == [0, -signal.SIGKILL], [rank.stderr for rank in ranks]
    job.wait_for_end()
    points = job.points()
    assert expected((0, 3000), (1, 3000)).items() <= points.items() <= expected((0, 3000), (1, 3010)).items()
    books = audit(job.run_dir)
    assert books.status == "killed"
    # What the pump had not looked at yet nobody knows of; what it had taken is counted as lost.
    assert sum(producer.journal + producer.lost for producer in books.producers) >= 6003


FULL = {
    "ACCELBUS_SPOOL_BYTES": "262144",
    "ACCELBUS_SPOOL_MIN_BYTES": "262144",
    "ACCELBUS_SPILL_BYTES": "100000",
    "ACCELBUS_BLOCK_TIMEOUT": "0.02",
}


@pytest.mark.parametrize("policy", ["drop_newest", "block", "raise"])
def test_when_ring_and_spill_are_full_the_policy_decides_and_every_event_is_counted(job: Job, policy: str) -> None:
    """Kept and dropped make what was logged, exactly; lifecycle events find room all the same, and the books balance."""
    (rank,) = job.start(
        """
        run = accelbus.init()
        run.log({"loss0": -1.0}, step=0)
        assert run.flush()
        wait_for(os.environ["ROOT"] + "/stopped")
        step, raised, longest = 0, 0, 0.0
        while sum(run.statistics().dropped.values()) < 20:
            step += 1
            before = time.perf_counter()
            try:
                run.log({"loss0": float(step), "text": "x" * 300}, step=step)
            except accelbus.errors.QueueFullError:
                raised += 1
            longest = max(longest, time.perf_counter() - before)
        run.log_config({"seen": step})
        statistics = run.statistics()
        say(f"{step} {raised} {longest} {statistics.logged} {dict(statistics.dropped)}")
        wait_for(os.environ["ROOT"] + "/go")
        run.finish()
        """,
        ACCELBUS_ON_FULL=policy,
        ACCELBUS_SILENT_AFTER="100",
        **FULL,
    )
    bus = serving(job)
    wait_until(lambda: job.status()["ranks"] and job.status()["ranks"][0]["acked"] >= 2, what="an ack")
    os.kill(bus, signal.SIGSTOP)
    job.signal_file("stopped")
    wait_until(lambda: rank.lines or rank.process.poll() is not None, 60, "the ranks's count")
    os.kill(bus, signal.SIGCONT)
    job.signal_file("go")
    assert rank.wait() == 0, rank.stderr
    steps, raised, longest, logged, dropped = rank.lines[0].split(" ", 4)
    reason = {"drop_newest": "full", "block": "blocked", "raise": "full"}[policy]
    assert dropped == f"{{'{reason}': 20}}"
    assert int(raised) == (20 if policy == "raise" else 0)
    assert int(logged) == int(steps) - 20 + 3
    assert float(longest) < 0.5
    job.wait_for_end()
    books = audit(job.run_dir)
    assert books.balanced, books.problems
    assert books.is_settled
    assert books.dropped == {reason: 20}
    assert books.values == 2 * (int(steps) - 20) + 1
    found = [step for key, step in job.points() if key == "loss0"]
    assert len(found) == int(steps) - 20 + 1


def test_nothing_is_lost_while_the_bus_process_is_stopped(job: Job) -> None:
    """Ranks write to the run directory themselves; afterwards the stopped one goes on with what it had."""
    (rank,) = job.start(RANK)
    wait_until(lambda: job.status().get("bus", {}).get("events", 0) > 50, what="events of the rank")
    bus = serving(job)
    os.kill(bus, signal.SIGSTOP)
    before = spilled(job)
    wait_until(lambda: spilled(job) > before + 5000, what="spills")
    os.kill(bus, signal.SIGCONT)
    before = len(job.rows())
    wait_until(lambda: len(job.rows()) > before + 200, what="rows of what came after")
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    books = job.check(expected((0, steps_of(rank))), status="finished")
    assert books.duplicates
