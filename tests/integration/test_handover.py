"""What trackers find in their environment: the main rank's, whichever rank started the bus process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accelbus import control
from tests.support.job import QUICK, running_job, wait_until

REPOSITORY = Path(__file__).parents[2]
GALLERY = "tests.support.gallery:GalleryTracker"
SECRET = "swordfish-7f3a"


@pytest.fixture
def job():
    """A job whose tracker writes down its variables."""
    with running_job(**QUICK, PYTHONPATH=str(REPOSITORY)) as one:
        one.environ |= {"ACCELBUS_LOG_WITH": GALLERY, "ACCELBUS_INIT_KWARGS": json.dumps({GALLERY: {"directory": str(one.root / "out")}})}
        yield one


def environments(job):
    path = job.root / "out" / "environ.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


SCRIPT = """
    rank = int(os.environ["RANK"])
    if rank == 0:
        wait_for(os.environ["ROOT"] + "/go")
        os.environ["GALLERY_MODE"] = "set by the script"
    else:
        os.environ["GALLERY_MODE"] = "another rank's"
    run = accelbus.init()
    say("ready")
    run.log({"loss": 1.0}, step=1)
    wait_for(os.environ["ROOT"] + "/end")
    run.finish()
"""


def test_the_main_ranks_variables_rule_whoever_started_the_bus_process(job):
    """Also those that its script has set before init; and what it has not set is not set."""
    others = job.start(SCRIPT, 1, first=1, world_size=2, GALLERY_KEY="another rank's")
    others[0].said("ready")
    wait_until(job.bus_pid, what="a bus process")
    (main,) = job.start(SCRIPT, 1, world_size=2)
    job.signal_file("go")
    main.said("ready")
    wait_until(lambda: environments(job), what="a tracker")
    job.signal_file("end")
    job.wait_for_end()
    (environ,) = environments(job)
    assert (environ["GALLERY_MODE"], environ["GALLERY_KEY"]) == ("set by the script", None)


def test_a_new_bus_process_is_told_again_and_credentials_are_nowhere_on_disk(job):
    """Its trackers get the main rank's variables too; no file of the run, the spool or the node has them, nor a command line."""
    (rank,) = job.start(SCRIPT, GALLERY_KEY=SECRET)
    job.signal_file("go")
    rank.said("ready")
    wait_until(lambda: environments(job), what="a tracker")
    job.kill_bus()
    wait_until(lambda: len(environments(job)) > 1, what="another one")
    assert {environ["GALLERY_KEY"] for environ in environments(job)} == {SECRET}
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in job.processes()]
    assert not any(SECRET.encode() in command for command in commands)
    job.signal_file("end")
    rank.wait()
    (job.root / "out" / "environ.jsonl").unlink()
    holders = [path for path in job.root.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert holders == []
    job.wait_for_end()


def test_trackers_start_without_a_main_rank(job):
    """One that never comes is not waited for long."""
    (rank,) = job.start(SCRIPT, 1, first=1, world_size=2, ACCELBUS_SETTINGS_GRACE="0.3", GALLERY_KEY="k")
    rank.said("ready")
    wait_until(lambda: environments(job), what="a tracker")
    assert environments(job)[0]["GALLERY_KEY"] == "k"
    job.signal_file("end")
    rank.wait()


def test_a_handover_says_nothing_about_itself():
    """Not even in a traceback or a log line."""
    assert SECRET not in repr(control.Handover({"KEY": SECRET}, {"x": SECRET.encode()}))
