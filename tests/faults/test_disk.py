"""Disks that are full, fail or hang, under the journal and under the spools."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from accelbus.reader.audit import audit
from tests.support.disks import MIB, Disk, Limits, small_disk, sync_faults
from tests.support.job import Job, wait_until

RANK = """
run = accelbus.init()
step, slowest = 0, 0.0
say("up")
while not os.path.exists(os.environ["ROOT"] + "/stop"):
    before = time.perf_counter()
    run.log({"loss": float(step)}, step=step)
    slowest = max(slowest, time.perf_counter() - before)
    step += 1
    time.sleep(0.001)
statistics = run.statistics()
assert not statistics.dropped, statistics
run.finish()
say(f"steps {step}")
say(f"slowest {slowest}")
"""


@pytest.fixture
def job(quick_job: Job) -> Job:
    quick_job.environ["ACCELBUS_DISK_RETRY_INTERVAL"] = "0.1"
    return quick_job


def segments(job: Job, writer: str) -> list[Path]:
    return sorted(job.run_dir.glob(f"journal/{writer}-*/*.seg"))


@pytest.mark.parametrize("place", ["journal", "run directory", "limits"])
def test_a_full_disk_leaves_training_undisturbed_and_everything_comes_when_there_is_room(job: Job, place: str) -> None:
    """The ranks' spools keep what nobody can write; it is said once by each side, and nothing is lost or dropped."""
    with contextlib.ExitStack() as stack:
        disk: Disk
        if place == "limits":
            disk = Limits(lambda: [rank.pid, wait_until(job.bus_pid)])
        else:
            disk = stack.enter_context(small_disk(job.run_dir / "journal" if place == "journal" else job.runs, 32 * MIB))
        (rank,) = job.start(RANK)
        wait_until(job.rows, what="the first rows")
        disk.fill()
        wait_until(lambda: "cannot be written to the run directory" in rank.stderr, what="word of the rank")
        if place == "journal":
            wait_until(lambda: job.status()["bus"]["disk_failing"], what="word in the status")
            wait_until(lambda: job.status()["bus"]["disk_errors"] >= 3, what="three tries")
        delivered = len(job.rows())
        disk.clear()
        wait_until(lambda: len(job.rows()) > delivered + 100 and not job.status()["bus"]["disk_failing"], what="recovery")
        job.signal_file("stop")
        assert rank.wait() == 0, rank.stderr
        steps, slowest = int(rank.lines[1].split()[1]), float(rank.lines[2].split()[1])
        job.check({("loss", step): float(step) for step in range(steps)}, status="finished")
        assert slowest < 0.5
        assert rank.stderr.count("cannot be written") == 1, rank.stderr
        if place == "journal":
            assert job.bus_log().count("the journal cannot be written") == 1, job.bus_log()
            assert job.bus_log().count("the journal works again") == 1, job.bus_log()
        assert "Traceback" not in job.bus_log() + rank.stderr


def test_what_a_failed_sync_lost_is_written_again(job: Job) -> None:
    """Acked events whose pages the kernel forgot come into a new segment, before anything else is acked."""
    job.environ |= sync_faults("accelbus.aggregator", 4)
    (rank,) = job.start(RANK)
    wait_until(lambda: "the journal works again" in job.bus_log() and len(segments(job, "bus")) > 1, what="recovery")
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    steps = int(rank.lines[1].split()[1])
    job.check({("loss", step): float(step) for step in range(steps)}, status="finished")
    assert job.bus_log().count("cannot be synced") == job.bus_log().count("the journal works again") == 1, job.bus_log()


def test_a_spill_that_cannot_be_synced_stays_in_the_spool(job: Job) -> None:
    """A rank without a bus process writes to the run directory itself, and frees nothing that is not on disk."""
    job.environ |= sync_faults("script", 4) | {"ACCELBUS_ENDPOINT": f"ipc://{job.sockets}/nobody"}
    (rank,) = job.start(RANK)
    wait_until(lambda: "cannot be written to the run directory" in rank.stderr, what="word of the rank")
    wait_until(lambda: len(segments(job, "spill")) > 1, what="another segment")
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    books = audit(job.run_dir)
    assert books.balanced, books.problems
    assert books.producers[0].journal == int(rank.lines[1].split()[1]) + 2
    assert rank.stderr.count("cannot be written") == 1, rank.stderr


@pytest.mark.parametrize("durability", ["disk", "process"])
def test_an_ack_promises_what_the_durability_says(job: Job, durability: str) -> None:
    """With ``disk`` nothing is acked before a sync has returned; with ``process`` acks do not wait for the disk."""
    job.environ |= sync_faults("accelbus.aggregator", job.root / "go")
    job.environ |= {
        "ACCELBUS_DURABILITY": durability,
        "ACCELBUS_SPILL_AFTER": "100",
        "ACCELBUS_ACK_TIMEOUT": "100",
        "ACCELBUS_EXIT_TIMEOUT": "20",
    }
    (rank,) = job.start("""
        run = accelbus.init()
        for step in range(500):
            run.log({"loss": float(step)}, step=step)
        say("logged")
        wait_for(os.environ["ROOT"] + "/written")
        say(f"acked {run.flush(0.5)} {run.statistics().acked}")
        run.finish()
    """)
    wait_until(lambda: sum(path.stat().st_size for path in segments(job, "bus")) > 5000, what="events in the journal")
    job.signal_file("written")
    wait_until(lambda: len(rank.lines) > 1 or rank.process.poll(), what="the count of the rank")
    assert rank.lines[1] == ("acked False 0" if durability == "disk" else "acked True 501")
    job.signal_file("go")
    assert rank.wait() == 0, rank.stderr
    job.check({("loss", step): float(step) for step in range(500)}, status="finished")


def test_no_room_for_a_spool_is_said_and_costs_nothing_else(job: Job) -> None:
    """Smaller rings come first, then memory; what that means is said at ``init``."""
    with small_disk(job.root / "full", 2 * MIB) as disk:
        disk.fill()
        (rank,) = job.start(
            """
            run = accelbus.init()
            run.log({"loss": 1.0}, step=1)
            say(run.statistics().spool)
            """,
            ACCELBUS_SPOOL_DIR=str(job.root / "full"),
        )
        assert rank.wait() == 0, rank.stderr
        assert rank.lines == ["memory"]
        assert rank.stderr.count("no room for a spool") == 1, rank.stderr
        job.check({("loss", 1): 1.0}, status="finished")


def test_the_rings_of_eight_ranks_leave_three_quarters_of_a_containers_shared_memory(job: Job) -> None:
    """64 MiB for eight ranks, as Docker gives: rings shrink alike; those of another run there are not counted as room."""
    shared = job.root / "shm"
    with small_disk(shared, 64 * MIB):
        ranks = job.start(
            """
            run = accelbus.init()
            run.log({"loss": 1.0}, step=1)
            say(run.statistics().spool)
            wait_for(os.environ["ROOT"] + "/stop")
            """,
            ranks=8,
            ACCELBUS_SPOOL_DIR=str(shared),
        )
        for rank in ranks:
            rank.said("tmpfs")
        sizes = [path.stat().st_size for path in shared.glob("*.spool")]
        assert len(sizes) == 8
        assert set(sizes) == {2 * MIB + 8192}, sizes
        job.signal_file("stop")
        for rank in ranks:
            assert rank.wait() == 0, rank.stderr
        job.check({("loss", 1): 1.0}, status="finished")
        assert not list(shared.glob("*.spool"))
