"""The run record of real jobs: collected beside training, by the main rank, once per attempt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from accelbus.blobs import EXTENSION, load
from accelbus.config import Tuning
from accelbus.events import RunFacts
from accelbus.journal.merge import Item, JournalReader
from tests.support.job import QUICK, Job, running_job

SECRET = "hunter2-s3cret"
# On a busy machine a short run waits for its record; the tests of this module are about what is in it.
PATIENT = {**QUICK, "ACCELBUS_RUN_RECORD": "true", "ACCELBUS_FACTS_PATIENCE": "30"}


@pytest.fixture
def recorded() -> Iterator[Job]:
    """A job that makes a record and has time to."""
    with running_job(**PATIENT) as job:
        yield job


def facts_of(job: Job) -> list[Item]:
    reader = JournalReader(job.run_dir / "journal", tuning=Tuning())
    items = []
    while found := reader.read(1000):
        items += found
    return [item for item in [*items, *reader.finish()] if isinstance(item.event, RunFacts)]


def merged(items: list[Item]) -> dict[str, Any]:
    return {key: value for item in items for key, value in item.event.facts.items()}


def test_the_main_rank_records_once(recorded: Job) -> None:
    """Two parts, one of them at once; the other ranks record nothing."""
    ranks = recorded.run("run = accelbus.init(); run.log({'loss': 1}, step=1); run.finish()", ranks=2)
    assert [rank.process.returncode for rank in ranks] == [0, 0]
    items = facts_of(recorded)
    assert [item.rank for item in items] == [0, 0]
    assert "argv" in items[0].event.facts
    record = merged(items)
    assert record["argv"] == [str(recorded.root / "script0.py")]
    assert record["cwd"] == str(recorded.root)
    assert record["executable"] == sys.executable
    assert record["launcher"]["world_size"] == 2
    assert record["environment"]["WORLD_SIZE"] == "2"
    assert record["packages"]["msgspec"]
    assert {"cpu", "memory_bytes", "os", "git", "gpus", "torch", "python", "accelbus", "host", "pid"} <= record.keys()
    assert not any(rank.stderr for rank in ranks if "patience" in rank.stderr)


def test_it_is_in_the_run_directory_when_the_trainer_is_killed(recorded: Job) -> None:
    """What is known at once is safe from the first moment on."""
    (rank,) = recorded.start(
        """
        run = accelbus.init()
        while run.statistics().logged < 2:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    rank.wait()
    recorded.wait_for_end()
    assert merged(facts_of(recorded))["argv"]


def test_git_and_patch_of_the_script_s_tree(recorded: Job) -> None:
    """A patch too large for an event is a file, and complete; the environment of git is left alone."""
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, cwd=recorded.root, env=environ, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "trunk")
    (recorded.root / "model.py").write_text("")
    git("add", "model.py")
    git("commit", "-q", "-m", "first")
    git("remote", "add", "origin", f"https://me:{SECRET}@example.org/it.git")
    (recorded.root / "model.py").write_text("".join(f"layer {number}\n" for number in range(20_000)))
    recorded.run("accelbus.init().finish()")
    record = merged(facts_of(recorded))
    assert record["git"]["commit"] == git("rev-parse", "HEAD")
    assert (record["git"]["branch"], record["git"]["dirty"]) == ("trunk", True)
    assert record["git"]["remote"] == "https://example.org/it.git"
    assert record["patch"].code == EXTENSION
    patch = load(bytes(record["patch"].data), recorded.run_dir / "blobs")
    assert patch.count("\n+layer ") == 20_000


def test_no_secret_is_anywhere_in_the_run(recorded: Job) -> None:
    """Not from the environment, whatever is listed, nor from the command line."""
    script = recorded.root / "secret.py"
    script.write_text("import accelbus\naccelbus.init(record_env=['*']).finish()\n")
    rank = recorded.start_command(
        [sys.executable, "-c", "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"],
        "",
        RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
    )  # fmt: skip
    rank.wait()
    process = subprocess.run(
        [sys.executable, str(script), "--api-key", SECRET, f"--wandb.token={SECRET}", f"https://me:{SECRET}@host/"],
        env={**os.environ, **recorded.environ, "MY_API_KEY": SECRET, "NCCL_TOKEN": SECRET, "db_password": SECRET, "MY_CHOICE": "blue"},
        cwd=recorded.root,
        check=False,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    recorded.wait_for_end()
    record = merged(facts_of(recorded))
    assert record["environment"]["MY_CHOICE"] == "blue"
    assert record["argv"][1:] == ["--api-key", "***", "--wandb.token=***", "https://***@host/"]
    leaks = [path for path in recorded.run_dir.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert leaks == []


def test_programs_that_hang_delay_nothing(quick_job: Job) -> None:
    """Neither `init` nor training nor, beyond a second, the end; and nobody hears of it."""
    programs = quick_job.root / "bin"
    programs.mkdir()
    for name in ("git", "nvidia-smi"):
        (programs / name).write_text("#!/bin/sh\nexec sleep 3600\n")
        (programs / name).chmod(0o755)
    (rank,) = quick_job.run(
        """
        import threading
        began = time.monotonic()
        run = accelbus.init()
        say(time.monotonic() - began)
        began = time.monotonic()
        run.finish()
        say(time.monotonic() - began)
        say([thread.name for thread in threading.enumerate() if thread.name == "accelbus-facts"])
        """,
        PATH=f"{programs}:{os.environ['PATH']}",
        ACCELBUS_RUN_RECORD="true",
        ACCELBUS_FINISH_TIMEOUT="0",
    )
    assert rank.process.returncode == 0
    assert "accelbus.client.facts" not in rank.stderr
    assert float(rank.lines[1]) < 6.0
    assert rank.lines[2] == "[]"
    record = merged(facts_of(quick_job))
    assert record["packages"] is None or record["packages"]["msgspec"]
    assert (record["git"], record["gpus"]) == (None, None)
    assert not _left_over(str(programs))


def test_it_can_be_switched_off(quick_job: Job) -> None:
    """No event, no thread, no program."""
    (rank,) = quick_job.run(
        """
        import threading
        run = accelbus.init(run_record=False)
        say([thread.name for thread in threading.enumerate() if "facts" in thread.name])
        run.finish()
        """
    )
    assert rank.lines == ["[]"]
    assert facts_of(quick_job) == []


def test_each_attempt_has_its_own(recorded: Job) -> None:
    """A resumed run was perhaps made with other packages; the newest counts."""
    recorded.run("accelbus.init(attempt=0).finish()", NCCL_DEBUG="first")
    recorded.run("accelbus.init(attempt=1).finish()", NCCL_DEBUG="second")
    items = facts_of(recorded)
    assert [item.attempt for item in items] == [0, 0, 1, 1]
    assert items[2].event.facts["environment"]["NCCL_DEBUG"] == "second"


def test_a_forked_worker_and_an_attached_process_record_nothing(recorded: Job) -> None:
    """They are no runs of their own; forking while the record is being made does no harm."""
    (rank,) = recorded.run(
        """
        run = accelbus.init()
        for _ in range(5):
            if (pid := os.fork()) == 0:
                accelbus.attach().log({"child": 1})
                accelbus.finish()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        run.finish()
        """
    )
    assert rank.process.returncode == 0, rank.stderr
    assert [item.role for item in facts_of(recorded)] == ["trainer"] * 2


def test_training_goes_on_beside_it(recorded: Job) -> None:
    """While the search runs, a loop that gives away the GIL often is not held up for longer than a few switch intervals."""
    (rank,) = recorded.run(
        """
        import json, threading
        run = accelbus.init()
        worst, gaps = 0.0, 0
        while any(thread.name == "accelbus-facts" for thread in threading.enumerate()):
            began = time.perf_counter()
            time.sleep(0)
            gap = time.perf_counter() - began
            worst, gaps = max(worst, gap), gaps + (gap > 0.02)
        say(json.dumps([worst, gaps]))
        run.finish()
        """
    )
    worst, gaps = json.loads(rank.lines[0])
    # The machine may be busy with other things, too: what must not happen is that it is held up all the time.
    assert gaps < 50, (worst, gaps)


def _left_over(text: str) -> list[str]:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if text in line]
