"""Trackers without which a run must not start: one answer for all ranks."""

from __future__ import annotations

from tests.support.job import Job

TRY = """
    try:
        accelbus.init()
        say("started")
        accelbus.finish()
    except accelbus.RequiredTrackerError as error:
        say(f"refused: {error}")
"""


def test_every_rank_starts_when_the_required_tracker_has(job: Job) -> None:
    """`init` returns once the tracker has started, in each rank."""
    ranks = job.run(TRY, ranks=2, ACCELBUS_REQUIRE="jsonl")
    assert [rank.lines for rank in ranks] == [["started"], ["started"]]


def test_no_rank_starts_when_the_required_tracker_does_not(job: Job) -> None:
    """All raise, with the tracker's own reason."""
    job.run_dir.mkdir(parents=True)
    (job.run_dir / "jsonl").write_text("a file where the tracker needs a directory")
    ranks = job.run(TRY, ranks=2, ACCELBUS_REQUIRE="jsonl", ACCELBUS_REQUIRE_TIMEOUT="2", ACCELBUS_LINGER="0")
    assert all(rank.lines[0].startswith("refused: require=['jsonl']: jsonl has not started") for rank in ranks)


def test_settings_that_differ_between_ranks_are_named(job: Job) -> None:
    """Rank 0's rule; the others are told."""
    job.start("run = accelbus.init(tags=['a']); wait_for(os.environ['ROOT'] + '/go'); run.finish()", world_size=2)
    (other,) = job.start("run = accelbus.init(tags=['b']); run.flush(); say('flushed'); run.finish()", first=1, world_size=2)
    other.said("flushed")
    job.signal_file("go")
    main = job.ranks[0]
    main.wait()
    assert "rank 1 was started with tags=('b',); rank 0's ('a',) is used" in main.stderr
