"""Large values and files: slow disks, full disks, kills."""

from __future__ import annotations

from accelbus.reader.audit import audit
from tests.support.job import Job, wait_until

PAGES = """
    import threading
    page = accelbus.Html("x" * 100_000)
    gate, sync = threading.Event(), os.fsync

    def slow(descriptor):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if "/blobs" in name:
            gate.wait(30)
        sync(descriptor)
    os.fsync = slow
"""


def test_a_disk_that_is_slow_with_files_delays_no_number(quick_job: Job) -> None:
    """With ``durability="disk"`` nothing after an image counts as safe until the image is on disk; all of it is delivered meanwhile."""
    (rank,) = quick_job.start(
        f"""{PAGES}
    run = accelbus.init(durability="disk")
    run.log({{"before": 1.0}}, step=0)
    assert run.flush(20)
    began = time.monotonic()
    run.log({{"page": page, "loss": 1.0}}, step=1)
    run.log({{"loss": 2.0}}, step=2)
    assert time.monotonic() - began < 1
    assert not run.flush(1.0)
    assert run.statistics().spilled == 0, run.statistics()
    say("logged")
    wait_for(os.path.join(os.environ["ROOT"], "go"))
    gate.set()
    assert run.flush(10)
    run.finish()
    """,
        ACCELBUS_SPILL_AFTER="30",
    )
    rank.said("logged")
    wait_until(lambda: quick_job.points().get(("loss", 2)) == 2.0, what="the numbers")
    (quick_job.root / "go").touch()
    assert rank.wait() == 0, rank.stderr
    quick_job.wait_for_end()
    books = audit(quick_job.run_dir)
    assert books.balanced, books.problems


def test_a_rank_killed_before_its_files_are_on_disk_loses_none(quick_job: Job) -> None:
    """They are with the system when ``log`` returns."""
    (rank,) = quick_job.start(
        f"""{PAGES}
    run = accelbus.init(durability="disk")
    for step in range(5):
        run.log({{"page": page, "loss": float(step)}}, step=step)
    say("logged")
    time.sleep(60)
    """
    )
    rank.said("logged")
    rank.kill()
    rank.wait()
    quick_job.wait_for_end()
    points = quick_job.points()
    assert {step: value for (key, step), value in points.items() if key == "loss"} == {step: float(step) for step in range(5)}
    assert len(list((quick_job.run_dir / "jsonl" / "files").iterdir())) == 5
    assert audit(quick_job.run_dir).balanced


def test_what_a_slow_disk_does_not_take_is_dropped_and_numbers_are_not(quick_job: Job) -> None:
    """Files that wait are bounded; the call does not wait, the numbers beside them arrive, and it is counted."""
    (rank,) = quick_job.start(
        f"""{PAGES}
    run = accelbus.init()
    began = time.monotonic()
    for step in range(10):
        run.log({{"page": page, "loss": float(step)}}, step=step)
    assert time.monotonic() - began < 5
    say(dict(run.statistics().dropped))
    gate.set()
    run.finish()
    """,
        ACCELBUS_BLOB_BACKLOG_BYTES="350000",
    )
    assert rank.wait() == 0, rank.stderr
    assert rank.lines == ["{'blob_full': 7}"]
    assert "350000 bytes of large values wait for the disk already" in rank.stderr
    quick_job.wait_for_end()
    assert {step for (key, step) in quick_job.points() if key == "loss"} == set(range(10))
    assert len(list((quick_job.run_dir / "jsonl" / "files").iterdir())) == 3


def test_a_large_file_of_another_file_system_is_there_when_the_run_is_finished(quick_job: Job) -> None:
    """Its copy goes on behind training, and ``finish`` waits for it; it may be deleted right after the call."""
    (rank,) = quick_job.start(
        """
    from accelbus.blobs import copying
    copying.COPIED_BYTES, copying._clone = 1000, lambda source, target: False
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")
    os.link = refuse
    with open("weights.bin", "wb") as file:
        file.write(b"w" * 3_000_000)
    with accelbus.init() as run:
        run.log_artifact("weights.bin", name="weights", step=1)
        os.remove("weights.bin")
    """
    )
    assert rank.wait() == 0, rank.stderr
    quick_job.wait_for_end()
    (copy,) = (quick_job.run_dir / "jsonl" / "artifacts").rglob("weights.bin")
    assert copy.read_bytes() == b"w" * 3_000_000
