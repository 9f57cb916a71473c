"""What the main rank of a real job prints: recorded, and for the user as if it were not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from accelbus.config import Tuning
from accelbus.events import ConsoleLines
from accelbus.journal.merge import Item, JournalReader
from tests.support.job import QUICK, Job, running_job


@pytest.fixture
def job() -> Iterator[Job]:
    with running_job(**QUICK, ACCELBUS_CONSOLE="true", ACCELBUS_CONSOLE_INTERVAL="0.1") as one:
        yield one


def printed(job: Job) -> list[Item]:
    reader = JournalReader(job.run_dir / "journal", tuning=Tuning())
    items = []
    while found := reader.read(1000):
        items += found
    return [item for item in [*items, *reader.finish()] if isinstance(item.event, ConsoleLines)]


def lines(job: Job, stream: str = "stdout") -> list[str]:
    return [line for item in printed(job) if item.event.stream == stream for line in item.event.lines]


def test_what_the_main_rank_prints_is_recorded(job: Job) -> None:
    """Both streams of rank 0, and nothing of the others."""
    job.run(
        """
        import logging
        handler = logging.StreamHandler()
        logging.getLogger("mine").addHandler(handler)
        run = accelbus.init()
        print("hello from", run.rank)
        logging.getLogger("mine").error("trouble of %d", run.rank)
        for step in range(3):
            print(f"\\rstep {step}", end="", file=sys.stderr)
        print(file=sys.stderr)
        run.finish()
        print("after")
        """,
        ranks=2,
    )
    assert lines(job) == ["hello from 0"]
    assert lines(job, "stderr")[:2] == ["trouble of 0", "step 2"]
    assert {item.rank for item in printed(job)} == {0}


def test_the_user_sees_the_same(job: Job) -> None:
    """Bytes, terminals, exit code, traceback: with and without, on a terminal."""
    script = job.root / "same.py"
    script.write_text(
        """
import os, subprocess, sys
import accelbus
run = accelbus.init(run_id=sys.argv[1])
print(sys.stdout.isatty(), sys.stderr.isatty(), sys.stdout.fileno(), sys.stdout.encoding, sys.stdout is sys.__stdout__, type(sys.stdout))
print("no end", end="")
sys.stdout.write("\\r10%\\r20%\\n")
sys.stdout.buffer.write(b"bytes\\n")
sys.stdout.flush()
os.write(1, b"descriptor\\n")
subprocess.run(["echo", "child"])
print("\\x1b[31mred\\x1b[0m", file=sys.stderr)
def fail():
    raise ValueError("as always")
fail()
"""
    )
    seen = [_on_a_terminal(job, script, console) for console in ("true", "false")]
    assert seen[0] == seen[1]
    code, output = seen[0]
    assert code == 1
    assert output.startswith(b"True True 1 utf-8 True")
    assert b"ValueError: as always" in output


def test_an_unhandled_exception_is_recorded(job: Job) -> None:
    """Its traceback is the line one looks for."""
    (rank,) = job.run("accelbus.init()\nraise ValueError('as always')")
    assert rank.process.returncode == 1
    assert lines(job, "stderr")[0] == "Traceback (most recent call last):"
    assert "ValueError: as always" in lines(job, "stderr")


def test_what_was_printed_survives_a_kill(job: Job) -> None:
    """But for the last moment."""
    (rank,) = job.start(
        """
        run = accelbus.init()
        print("early", flush=True)
        while run.statistics().logged < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    rank.wait()
    job.wait_for_end()
    assert lines(job) == ["early"]


def test_a_forked_worker_prints_as_before(job: Job) -> None:
    """Its lines are seen once and not recorded, its end is its own, and the parent goes on."""
    (rank,) = job.run(
        """
        run = accelbus.init()
        print("before", flush=True)
        for number in range(20):
            print("parent", number, flush=True)
            if (pid := os.fork()) == 0:
                print("child", number, flush=True)
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        print("after", flush=True)
        run.finish()
        """
    )
    assert rank.process.returncode == 0, rank.stderr
    assert [line for line in rank.lines if line.startswith("child")] == [f"child {number}" for number in range(20)]
    assert lines(job) == ["before", *[f"parent {number}" for number in range(20)], "after"]


def test_our_own_lines_are_not_recorded(job: Job) -> None:
    """What the pump reports, a tracker's address say, is printed and no part of what the training said."""
    (rank,) = job.run("run = accelbus.init(require=['jsonl']); time.sleep(1); print('mine'); run.finish()")
    assert "accelbus: jsonl:" in rank.stderr
    assert (lines(job), lines(job, "stderr")) == (["mine"], [])


def test_a_flood_hurts_nobody(job: Job) -> None:
    """The user sees all, metrics arrive, and the record says what it lacks."""
    (rank,) = job.run(
        """
        run = accelbus.init()
        for step in range(2000):
            print("x" * 500)
            run.log({"loss": step}, step=step)
        run.finish()
        print(run.statistics().console_left_out)
        """
    )
    assert rank.process.returncode == 0
    assert len(rank.lines) == 2001
    kept = [line for line in lines(job) if line.startswith("x")]
    missing = sum(int(line.split()[1]) for line in lines(job) if "not recorded" in line)
    assert 100 < len(kept) < 2000
    assert missing == int(rank.lines[-1]) == 2000 - len(kept)
    job.check({("loss", step): step for step in range(2000)}, status="finished")


def _on_a_terminal(job: Job, script: object, console: str) -> tuple[int, bytes]:
    """Run *script* with a terminal as its output; return exit code and all that was shown, without our own lines."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, **job.environ, "ACCELBUS_CONSOLE": console, "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen([sys.executable, str(script), f"console-{console}"], env=environ, stdout=theirs, stderr=theirs, cwd=job.root)
    os.close(theirs)
    output = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the last one who had it open is gone
            break
        if not data:
            break
        output += data
    os.close(ours)
    shown = [line for line in output.split(b"\n") if b"accelbus" not in line or b"same.py" in line]
    return process.wait(60), b"\n".join(shown)
