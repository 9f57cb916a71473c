"""Where a job stands when it calls ``init`` is from where its trackers understand relative paths."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.job import Job
from tests.support.trackers import lines

ROOT = Path(__file__).parents[2]
TRACKER = "tests.support.trackers:ScriptedTracker"
INIT = f"""
run = accelbus.init(log_with={TRACKER!r}, init_kwargs={{{TRACKER!r}: {{"directory": os.environ["ROOT"] + "/tracker"}}}})
"""
FINISH = """
run.log({"loss": 1.0}, step=1)
run.finish()
"""


def seen(job: Job) -> list[list[str]]:
    """Return what the tracker was told of the directory: by delivery, and by its environment."""
    return lines(job.root / "tracker" / "directories")


def run(job: Job, script: str, **environ: str) -> None:
    (rank,) = job.run(script, ACCELBUS_FINISH_TIMEOUT="30", PYTHONPATH=str(ROOT), **environ)
    assert "Error" not in rank.stderr


def test_a_job_that_moves_before_init_is_where_it_moved_to(quick_job: Job) -> None:
    """Like ``dir=``, and as a tracker's own library would have it; the shell's PWD knows nothing of it."""
    run(quick_job, 'os.mkdir("inner"); os.chdir("inner")' + INIT + FINISH)
    there = str(quick_job.root / "inner")
    assert seen(quick_job) == [[there, there]]
    assert json.loads((quick_job.run_dir / "run.json").read_text())["directory"] == there


def test_a_job_that_moves_after_init_takes_no_tracker_along(quick_job: Job) -> None:
    """Also when the tracker is told later than that."""
    run(quick_job, INIT + 'os.mkdir("inner"); os.chdir("inner")' + FINISH)
    assert seen(quick_job) == [[str(quick_job.root), str(quick_job.root)]]


def test_a_tracker_beside_training_is_told_too(quick_job: Job) -> None:
    """Its environment is the trainer's, which nobody touches."""
    script = INIT.replace("init(", f"init(inline=[{TRACKER!r}], ")
    run(quick_job, 'os.mkdir("inner"); os.chdir("inner")' + script + FINISH, PWD="/")
    assert seen(quick_job) == [[str(quick_job.root / "inner"), "/"]]


def test_a_link_keeps_its_name(quick_job: Job, tmp_path: Path) -> None:
    """A home directory that is a link today is another disk tomorrow."""
    link = tmp_path / "home"
    link.symlink_to(quick_job.root)
    run(quick_job, INIT + FINISH, PWD=str(link))
    assert seen(quick_job) == [[str(link), str(link)]]
