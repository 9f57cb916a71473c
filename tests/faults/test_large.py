"""Large and odd things that people log."""

from __future__ import annotations

import pytest

from accelbus.reader.audit import audit
from tests.support.job import Job, wait_until


@pytest.fixture
def job(quick_job: Job) -> Job:
    return quick_job


def test_what_is_large_arrives_whole(job: Job) -> None:
    """Ten thousand keys in a call, texts of any size, a thousand metrics: each value arrives, whatever way it took."""
    (rank,) = job.start(
        """
        run = accelbus.init()
        deadline = time.monotonic() + 30
        while not run.statistics().connected:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.log({f"key{number}": number / 4 for number in range(10_000)}, step=1)
        for step, size in enumerate((40_000, 60_000, 400_000, 900_000, 1_100_000, 2_000_000, 5_000_000), 2):
            run.log({"text": chr(96 + step) * size, "size": size}, step=step)
        run.log({f"metric{number}": number for number in range(1000)}, step=9)
        run.log({"list": [0.5] * 60_000}, step=10)
        run.log({"k" * 100_000: 1.5}, step=11)
        assert run.flush(20)
        statistics = run.statistics()
        assert not statistics.dropped, statistics
        assert not statistics.spilled and statistics.hellos == 1, statistics
        run.finish()
    """,
        ACCELBUS_SPILL_AFTER="5",
    )
    assert rank.wait() == 0, rank.stderr
    points = {(f"key{number}", 1): number / 4 for number in range(10_000)}
    for step, size in enumerate((40_000, 60_000, 400_000, 900_000, 1_100_000, 2_000_000, 5_000_000), 2):
        points |= {("text", step): chr(96 + step) * size, ("size", step): size}
    points |= {(f"metric{number}", 9): number for number in range(1000)} | {("list", 10): [0.5] * 60_000}
    (long_key,) = (
        (key for key, step in job.points() if step == 11) if wait_until(lambda: any(step == 11 for _, step in job.points())) else ()
    )
    assert long_key.startswith("k" * 1000)
    job.check(points | {(long_key, 11): 1.5}, status="finished")


def test_odd_steps_and_keys_are_kept_or_counted(job: Job) -> None:
    """A step beyond 64 bits is counted and its values go to the last one; keys may be any text."""
    (rank,) = job.start("""
        run = accelbus.init()
        run.log({"loss": 1.0}, step=2**63 - 1)
        run.log({"late": 2.0}, step=2**63)
        run.log({"later": 3.0}, step=2**70)
        run.log({"ключ/λ": 1.0, "😀": 2.0, "line\\u2028end": 3.0, "nul\\0": 4.0, "": 5.0, "\\ud800": 6.0, 7: 7.0, "quo\\"te": 8.0}, step=1)
        run.log({"loss": 9.0}, step=-5)
        say(dict(run.statistics().dropped))
        run.finish()
    """)
    assert rank.wait() == 0, rank.stderr
    assert rank.lines == ["{'bad_step': 2}"]
    job.wait_for_end()
    points = job.points()
    last = 2**63 - 1
    assert {key: value for (key, step), value in points.items() if step == last} == {"loss": 1.0, "late": 2.0, "later": 3.0}
    assert points["loss", -5] == 9.0
    odd = {key: value for (key, step), value in points.items() if step == 1}
    assert sorted(odd.values()) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], odd
    assert (odd["ключ/λ"], odd["😀"], odd["line\u2028end"], odd['quo"te']) == (1.0, 2.0, 3.0, 8.0)
    assert audit(job.run_dir).balanced


def test_a_large_value_whose_file_is_gone_is_missed_by_name_and_costs_nothing_else(job: Job) -> None:
    """Readers say what was lost where it would have been."""
    (rank,) = job.start(
        """
        run = accelbus.init(log_with=())
        run.log({"text": "x" * 200_000, "loss": 1.0}, step=1)
        run.log({"loss": 2.0}, step=2)
        run.finish()
        """,
        ACCELBUS_LOG_WITH="",
        ACCELBUS_MODE="offline",
    )
    assert rank.wait() == 0, rank.stderr
    job.wait_for_end()
    for path in job.run_dir.glob("blobs/*"):
        path.unlink()
    books = audit(job.run_dir)
    assert books.balanced, books.problems
    assert books.values == 3
