"""`accelbus sync`, with real workers: safe to repeat, to interrupt, and beside others."""

from __future__ import annotations

import json
import signal

from accelbus.reader.audit import audit
from tests.integration.cli.conftest import command
from tests.support.job import wait_until

LOG_200 = """
    with accelbus.init() as run:
        for step in range(1, 201):
            run.log({"loss": 1 / step}, step=step)
"""
UNTIL_TOLD = """
    run = accelbus.init()
    for step in range(1, 201):
        run.log({"loss": 1 / step}, step=step)
    assert run.flush(30)
    say("logged")
    wait_for(os.environ["ROOT"] + "/go")
    for step in range(201, 301):
        run.log({"loss": 1 / step}, step=step)
    run.finish()
"""


def test_an_offline_run_is_delivered_later(quick_job, accelbus):
    """Nothing was started in the job; afterwards the run is owed, then delivered, and a second sync has nothing to do."""
    quick_job.run(LOG_200, ACCELBUS_MODE="offline")
    assert accelbus("status").code == 1
    printed = accelbus("sync", "job")
    assert printed.code == 0, printed
    assert printed.lines[0].startswith("jsonl: finished, 0 lost, ")
    rows = quick_job.rows()
    assert [row["step"] for row in rows] == list(range(1, 201))
    assert accelbus("sync", str(quick_job.run_dir)).code == 0
    assert quick_job.rows() == rows


def test_a_tracker_the_run_did_not_have_gets_everything(quick_job, accelbus):
    """From the beginning; it belongs to the run from then on."""
    quick_job.run(LOG_200)
    printed = accelbus("sync", "job", "--to", "tensorboard")
    assert printed.code == 0, printed
    assert [line.split(",")[0] for line in printed.lines[:2]] == ["jsonl: finished", "tensorboard: finished"]
    assert audit(quick_job.run_dir).sinks["tensorboard"].total.delivered == 200
    assert list((quick_job.run_dir / "tensorboard").rglob("*tfevents*"))


def test_an_unknown_tracker_is_refused_before_anything_is_done(quick_job, accelbus):
    """Code 2, with the known ones."""
    quick_job.run(LOG_200, ACCELBUS_MODE="offline")
    printed = accelbus("sync", "job", "--to", "tensorbord")
    assert (printed.code, printed.out) == (2, "")
    assert "unknown tracker 'tensorbord'" in printed.err
    assert "did you mean 'tensorboard'?" in printed.err
    assert not (quick_job.run_dir / "sinks" / "tensorbord").exists()


def test_a_tracker_that_is_not_installed_here_does_not_keep_the_others_waiting(quick_job, accelbus):
    """It is said, and still owed."""
    quick_job.run(LOG_200, ACCELBUS_MODE="offline")
    (record := quick_job.run_dir / "run.json").write_text(json.dumps({**json.loads(record.read_text()), "sinks": ["elsewhere", "jsonl"]}))
    printed = accelbus("sync", "job")
    assert printed.code == 1
    assert "elsewhere: unknown tracker 'elsewhere'" in printed.err
    assert printed.lines[0].startswith("elsewhere: 200 values owed, 0 lost")
    assert printed.lines[1].startswith("jsonl: finished, 0 lost")


def test_a_run_without_trackers_asks_for_one(quick_job, accelbus):
    """There is nothing to deliver to."""
    quick_job.run(LOG_200, ACCELBUS_MODE="offline", ACCELBUS_LOG_WITH="")
    (record := quick_job.run_dir / "run.json").write_text(json.dumps({**json.loads(record.read_text()), "sinks": []}))
    printed = accelbus("sync", "job")
    assert printed.code == 2
    assert "has no tracker to deliver to; name one with --to" in printed.err


def test_beside_a_live_worker_sync_says_who_delivers_and_leaves_it_alone(quick_job, accelbus):
    """The worker goes on; nothing is delivered twice."""
    (rank,) = quick_job.start(UNTIL_TOLD)
    rank.said("logged")
    wait_until(quick_job.worker_pids, what="a worker")
    worker = quick_job.worker_pids()
    printed = accelbus("sync", "job")
    assert f"jsonl: bus process {quick_job.bus_pid()} on " in printed.err
    assert "delivers and is left to it; --take-over replaces it" in printed.err
    assert quick_job.worker_pids() == worker
    quick_job.signal_file("go")
    quick_job.wait_for_end()
    assert [row["step"] for row in quick_job.rows()] == list(range(1, 301))
    assert audit(quick_job.run_dir).balanced


def test_following_delivers_until_the_run_ends(quick_job):
    """To a tracker of its own, beside the bus process's."""
    (rank,) = quick_job.start(UNTIL_TOLD)
    rank.said("logged")
    follower = command(quick_job, "sync", "job", "--to", "tensorboard", "--follow")
    delivered = lambda: audit(quick_job.run_dir).sinks["tensorboard"].total.delivered  # noqa: E731
    wait_until(lambda: (quick_job.run_dir / "sinks" / "tensorboard").exists() and delivered() == 200, what="what there was")
    assert follower.poll() is None
    quick_job.signal_file("go")
    out, err = follower.communicate(timeout=60)
    assert follower.returncode == 0, (out, err)
    assert out.splitlines()[1].startswith("tensorboard: finished, 0 lost")
    assert delivered() == 300
    quick_job.wait_for_end()


def test_taking_over_ends_the_other_deliverer(quick_job):
    """The bus process's worker stops; every row is there once, and the bus process leaves when the run is finished."""
    (rank,) = quick_job.start(UNTIL_TOLD, ACCELBUS_LEASE_EXPIRES="2", ACCELBUS_LEASE_INTERVAL="0.5")
    rank.said("logged")
    wait_until(quick_job.worker_pids, what="a worker")
    taker = command(quick_job, "sync", "job", "--take-over", "--follow")
    wait_until(lambda: "sync process" in audit(quick_job.run_dir).sinks["jsonl"].owner, what="the new owner")
    quick_job.signal_file("go")
    out, err = taker.communicate(timeout=60)
    assert taker.returncode == 0, (out, err)
    quick_job.wait_for_end()
    assert [row["step"] for row in quick_job.rows()] == list(range(1, 301))
    assert audit(quick_job.run_dir).balanced


def test_an_interrupted_sync_is_gone_on_with(quick_job, accelbus):
    """Ctrl-C: code 130, no traceback, no worker left; the next sync delivers the rest, each row once."""
    quick_job.run(
        """
        with accelbus.init() as run:
            for step in range(1, 5001):
                run.log({"loss": 1 / step, "accuracy": step, "lr": 0.1}, step=step)
        """,
        ACCELBUS_MODE="offline",
    )
    first = command(quick_job, "sync", "job")
    wait_until(lambda: len(quick_job.worker_pids()) == 1 and (quick_job.run_dir / "jsonl" / "metrics.jsonl").exists(), what="a worker")
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=30)
    assert (first.returncode, "Traceback" in err) == (130, False), (out, err)
    quick_job.wait_for_end()
    assert accelbus("sync", "job").code == 0
    assert [row["step"] for row in quick_job.rows()] == list(range(1, 5001))


def test_a_tracker_that_does_not_start_ends_with_the_timeout(quick_job, accelbus):
    """What it still owes is said, and the code is 1."""
    quick_job.run(LOG_200, ACCELBUS_MODE="offline")
    (quick_job.run_dir / "jsonl").write_text("a file where its directory should be")
    printed = accelbus("sync", "job", "--timeout", "2")
    assert printed.code == 1
    assert "trying again" in printed.err
    assert printed.lines[0].startswith("jsonl: 200 values owed, 0 lost")
    (quick_job.run_dir / "jsonl").unlink()
    assert accelbus("sync", "job").code == 0


def test_a_damaged_run_record_keeps_nothing_from_being_delivered(quick_job, accelbus):
    """It says what is not known any more; the trackers' directories and --to say where to."""
    quick_job.run(LOG_200, ACCELBUS_MODE="offline")
    (quick_job.run_dir / "run.json").write_bytes(b"{\x00")
    nobody = accelbus("sync", "job")
    assert nobody.code == 2
    assert "name one with --to" in nobody.err
    printed = accelbus("sync", "job", "--to", "jsonl")
    assert printed.code == 0, printed
    assert "is not a run record" in printed.err
    assert [row["step"] for row in quick_job.rows()] == list(range(1, 201))
    assert accelbus("sync", "job").lines[0].startswith("jsonl: finished, 0 lost, ")


def test_a_sync_without_time_leaves_what_is_known_of_a_finished_run(quick_job, accelbus):
    """Where to look, for example."""
    quick_job.run(LOG_200)
    line = accelbus("sync", "job").lines[0]
    assert "metrics.jsonl" in line
    assert accelbus("sync", "job", "--timeout", "0").lines[0] == line
    assert accelbus("status", "job").lines[0] == line
