"""The directory of a run is deleted while ranks log into it."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

from accelbus.rundir import RunDir
from tests.support.job import Job, wait_until

RANK = """
run = accelbus.init()
step = 0
say("up")
while not os.path.exists(os.environ["ROOT"] + "/stop"):
    run.log({"loss": float(step)}, step=step)
    step += 1
    time.sleep(0.002)
began = time.monotonic()
run.finish()
say(f"steps {step}")
say(f"finish {time.monotonic() - began}")
"""


def _delete(path: Path) -> None:
    """Others write there at the same time."""
    while path.exists():
        with contextlib.suppress(OSError):
            shutil.rmtree(path)


def test_a_run_whose_directory_is_deleted_goes_on_there_and_says_why(quick_job: Job) -> None:
    """Nobody is said to have taken over; ``run.json`` comes back, what follows is delivered, and the end takes no longer than usual."""
    job = quick_job
    (rank,) = job.start(RANK)
    wait_until(job.rows, what="rows")
    run_dir = RunDir(job.run_dir)
    before = run_dir.read_record()
    _delete(job.run_dir)
    wait_until(run_dir.record_path.exists, what="the run's record")
    wait_until(lambda: (job.run_dir / "jsonl" / "metrics.jsonl").exists() and job.rows(), what="rows")
    job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    assert run_dir.read_record() == before
    steps, seconds = (line.split()[1] for line in rank.lines[-2:])
    assert float(seconds) < 8
    wait_until(lambda: job.status().get("state") == "left", what="the bus process to leave")
    rows = [json.loads(line) for line in (job.run_dir / "jsonl" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == int(steps) - 1
    assert "was deleted" in rank.stderr
    assert "took over" not in rank.stderr
    assert {entry["rank"] for entry in job.status()["ranks"]} == {0}
    assert "Traceback" not in job.bus_log()
