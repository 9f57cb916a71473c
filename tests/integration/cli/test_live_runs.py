"""How a run looks while its processes live, and after they were killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

from accelbus.reader.audit import audit
from tests.support.job import wait_until

ENDLESS = """
    run = accelbus.init()
    step = 0
    while not os.path.exists(os.environ["ROOT"] + "/stop"):
        step += 1
        run.log({"loss": 1 / step, "rank": run.rank}, step=step)
        if step == 200:
            say("going")
        time.sleep(0.001)
    run.finish()
"""


def test_status_of_a_run_that_goes_on(quick_job, accelbus):
    """Its bus process is asked; counted from the journal the books balance at any moment, whatever is under way."""
    for rank in quick_job.start(ENDLESS, ranks=2):
        rank.said("going")
    wait_until(lambda: accelbus("status", "job").lines[0].startswith(("jsonl: delivering", "jsonl: up to date")), what="rows")
    printed = accelbus("status", "job", "-v")
    assert printed.code == 0
    assert " 0 lost, " in printed.lines[0]
    assert printed.lines[0].endswith("/job/jsonl/metrics.jsonl")
    assert printed.lines[1].startswith("job: running, 2 ranks, ")
    assert f"(its bus process {quick_job.bus_pid()} on " in printed.lines[1]
    exact = json.loads(accelbus("status", "--exact", "--json").out)
    assert (exact["source"], exact["balanced"], exact["status"]) == ("journal", True, "running"), exact["problems"]
    assert [rank["state"] for rank in exact["ranks"]] == ["alive", "alive"]
    for _ in range(10):
        found = audit(quick_job.run_dir)
        assert found.balanced, found.problems
    exported = [json.loads(line) for line in accelbus("export", "job").out.splitlines()]
    assert {line["rank"] for line in exported} == {0, 1}
    quick_job.signal_file("stop")
    quick_job.wait_for_end()
    done = accelbus("status")
    assert (done.code, done.lines[0].split(",")[:2]) == (0, ["jsonl: finished", " 0 lost"])
    assert audit(quick_job.run_dir).balanced


def stop(pid: int) -> None:
    """Stop a process, and wait until it stands still."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", what="its stop")


def kill_everything(job) -> None:
    """Kill workers, bus process and ranks: as nearly at once as can be, and the workers first, so that they owe something."""
    pids = job.worker_pids() + job.processes() + [rank.pid for rank in job.ranks]
    for pid in dict.fromkeys(pids):
        os.kill(pid, signal.SIGKILL)
    for rank in job.ranks:
        rank.wait()
    job.wait_for_end()


def test_everything_killed_is_seen_and_delivered_by_sync(quick_job, accelbus):
    """What `log` had returned for is in the journal or in a spool: sync finds it, delivers it, and closes the run as killed."""
    for rank in quick_job.start(ENDLESS, ranks=2):
        rank.said("going")
    wait_until(lambda: len(quick_job.status().get("ranks", ())) == 2, what="a word of the bus process")
    kill_everything(quick_job)
    before = accelbus("status", "job")
    assert before.code == 1
    assert " owed, 0 lost" in before.lines[0]  # values, or events if none has come into the journal yet
    assert f"deliver the rest with: accelbus sync {quick_job.run_dir}" in before.lines[0]
    assert "job: open, 2 ranks, " in before.out
    assert " is gone; it last reported " in before.out
    assert "the books balance" in before.out

    synced = accelbus("sync", "job")
    assert synced.code == 0, (synced.out, synced.err)
    assert synced.lines[0].startswith("jsonl: finished, 0 lost, ")
    assert synced.lines[1].startswith("job: killed, 2 ranks, ")
    found = audit(quick_job.run_dir)
    assert found.balanced
    assert found.is_settled
    assert [one.status for one in found.producers] == ["killed", "killed"]
    assert list(quick_job.spools.glob("*.spool")) == []
    steps = {one.rank: one.logged - 1 for one in found.producers}  # all but the first event is a call of log
    assert {step for key, step in quick_job.points() if key == "loss"} == set(range(1, max(steps.values()) + 1))
    assert json.loads((quick_job.run_dir / "jsonl" / "status.json").read_text())["status"] == "killed"

    rows = quick_job.rows()
    assert accelbus("sync", "job").code == 0
    assert quick_job.rows() == rows


def test_what_was_wiped_with_the_node_is_named(quick_job, accelbus):
    """Spools gone, sockets gone: the rest is delivered, the numbers that are lost are said, and the code stays 1."""
    (rank,) = quick_job.start(
        """
        run = accelbus.init()
        for step in range(1, 501):
            run.log({"loss": 1 / step}, step=step)
        assert run.flush(30)
        say("safe")
        wait_for(os.environ["ROOT"] + "/stopped")
        for step in range(501, 601):
            run.log({"loss": 1 / step}, step=step)
        say("logged")
        time.sleep(60)
        """,
        ACCELBUS_SPILL_AFTER="600",
    )
    rank.said("safe")
    bus = quick_job.bus_pid()
    wait_until(lambda: any(line["acked"] >= 501 for line in quick_job.status().get("ranks", ())))
    stop(bus)
    quick_job.signal_file("stopped")
    rank.said("logged")
    kill_everything(quick_job)
    # What a heartbeat had said before the end.
    status = quick_job.status()
    status["ranks"][0]["logged"] = 601
    (quick_job.run_dir / "status.json").write_text(json.dumps(status))
    shutil.rmtree(quick_job.spools)

    synced = accelbus("sync", "job")
    assert synced.code == 1
    assert synced.lines[0].startswith("jsonl: finished, 100 lost, ")
    assert "rank 0, attempt 0: 100 of 601 events are lost (numbers 502-601); its process is gone and no spool holds them" in synced.out
    found = audit(quick_job.run_dir)
    assert not found.balanced
    assert (found.lost, found.pending_values, found.producers[0].missing) == (100, 0, [(502, 601)])
    assert {step for key, step in quick_job.points()} == set(range(1, 501))


def test_a_stopped_bus_process_is_said_to_be_silent(quick_job, accelbus):
    """It is there and does not report; the journal is counted instead, and sync leaves its sinks to it."""
    (rank,) = quick_job.start(ENDLESS)
    rank.said("going")
    bus = quick_job.bus_pid()
    wait_until(lambda: quick_job.status().get("ranks"))
    stop(bus)
    try:
        path = quick_job.run_dir / "status.json"
        status = json.loads(path.read_text())
        status["updated_ns"] -= 60 * 10**9
        path.write_text(json.dumps(status))
        printed = accelbus("status", "job")
        assert re.search(r"is there and has said nothing for \d+ s; counted from the journal", printed.out)
        assert "the books balance" in printed.out
    finally:
        os.kill(bus, signal.SIGCONT)
    quick_job.signal_file("stop")
    quick_job.wait_for_end()


def test_a_damaged_status_file_of_a_finished_run(quick_job, accelbus):
    """Everything is counted from the journal."""
    quick_job.run("accelbus.init().log({'x': 1}, step=1)")
    (quick_job.run_dir / "status.json").write_bytes(os.urandom(100))
    printed = accelbus("status", "job")
    assert (printed.code, printed.err) == (0, "")
    assert printed.lines[0].startswith("jsonl: finished, 0 lost")
    assert "status.json is damaged" in printed.out


def test_a_killed_rank_is_salvaged_from_its_file_alone(quick_job, accelbus):
    """The run's directory is gone with everything in it; a copy of the spool says which run it is of, and is enough."""
    (rank,) = quick_job.start(
        """
        import glob, shutil
        run = accelbus.init()
        for step in range(1, 301):
            run.log({"loss": 1 / step}, step=step)
        shutil.copy(glob.glob(os.environ["ACCELBUS_SPOOL_DIR"] + "/*.spool")[0], os.environ["ROOT"] + "/away.spool")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    rank.wait()
    for pid in quick_job.processes():
        os.kill(pid, signal.SIGKILL)
    quick_job.wait_for_end()
    shutil.rmtree(quick_job.run_dir)
    printed = accelbus("salvage", str(quick_job.root / "away.spool"))
    assert printed.code == 0, printed
    assert printed.out.endswith(f"301 events of rank 0 brought into {quick_job.run_dir}; left there\n")
    found = audit(quick_job.run_dir)
    assert (found.producers[0].logged, found.producers[0].missing) == (301, [])
    assert accelbus("sync", "job", "--to", "jsonl").code == 0
    assert {step for _, step in quick_job.points()} == set(range(1, 301))
