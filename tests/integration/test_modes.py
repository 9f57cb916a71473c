"""Modes, and places that are missing or cannot be written."""

from __future__ import annotations

import pytest

from accelbus.reader.audit import audit
from tests.support.job import Job
from tests.support.scripts import script

LOG = """
for step in range(10):
    run.log({"loss": step * 0.5}, step=step)
run.log({"bad": object()}, step="no step")
run.finish()
"""
LOSSES = {("loss", step): step * 0.5 for step in range(10)}


@script(
    """
import threading
run = accelbus.init(config={"lr": 0.1}, log_with="nobody")
threads, children = threading.active_count(), open(f"/proc/self/task/{os.getpid()}/children").read()
"""
    + LOG
    + """
assert (threads, children) == (1, ""), (threads, children)
run.log_config({"momentum": 0.9})
assert run.config == {"lr": 0.1, "momentum": 0.9}
assert run.flush() and run.finish()
with accelbus.attach(run) as attached:
    attached.log({"loss": 1.0}, step=0)
assert run.statistics().dropped == {}
say(str(sorted(os.listdir(os.environ["ROOT"]))))
""",
    ACCELBUS_MODE="disabled",
)
def test_a_disabled_run_does_nothing_at_all(done: Job) -> None:
    """No thread, no file, no process, no import of the transport; everything may be called."""
    (rank,) = done.ranks
    assert rank.lines == ["['s', 'script0.py']"]
    assert rank.errors == []
    assert list(done.sockets.iterdir()) == []


@script("run = accelbus.init()" + LOG, ACCELBUS_MODE="offline", ACCELBUS_FINISH_TIMEOUT="30")
def test_an_offline_run_writes_its_journal_and_is_delivered_later(done: Job) -> None:
    """No tracker is started, and nobody waits for one; `sync` delivers to those the run asked for."""
    assert not list(done.run_dir.glob("sinks/*/cursor*"))
    books = audit(done.run_dir)
    assert (books.balanced, books.status, books.logged) == (True, "finished", 12)
    done.sync()
    done.check(LOSSES, status="finished")


@pytest.mark.parametrize("home", ["", "/nonexistent"])
def test_no_home_directory_is_needed(quick_job: Job, home: str) -> None:
    """Batch systems and containers leave it out or make it up."""
    (rank,) = quick_job.run(
        "if not os.environ['HOME']: del os.environ['HOME']\nrun = accelbus.init()" + LOG, HOME=home, XDG_RUNTIME_DIR="/nonexistent"
    )
    assert rank.process.returncode == 0, rank.stderr
    quick_job.check(LOSSES, status="finished")


# As root nothing is read-only: the effective user changes for as long as `init` looks around.
UNPRIVILEGED = """
import accelbus.client.current
os.makedirs("locked", exist_ok=True)
os.chmod(os.environ["ROOT"], 0o755)
os.chmod("locked", 0o555)
if os.geteuid() == 0:
    os.seteuid(65534)
"""


@script(
    UNPRIVILEGED
    + """
for place in ("locked/runs", None):
    try:
        if place is None:
            os.chdir("locked")
        accelbus.init(dir=place)
    except accelbus.ConfigurationError as error:
        say(str(error))
assert accelbus.run is None
""",
    alone=True,
    ACCELBUS_DIR="",
)
def test_a_run_directory_that_cannot_be_made_is_an_error_at_init(done: Job) -> None:
    """It names the directory and what to do; so it does where the working directory, the default, is read-only."""
    (rank,) = done.ranks
    assert len(rank.lines) == 2
    for line, place in zip(rank.lines, ("locked/runs/job", "locked/runs/job"), strict=True):
        assert place in line
        assert "ACCELBUS_DIR" in line


@script("import accelbus.client.current\nos.chdir('/proc')\nrun = accelbus.init()\nassert run.dir.is_absolute()" + LOG)
def test_a_read_only_working_directory_does_not_matter_when_runs_lie_elsewhere(done: Job) -> None:
    """Nothing is written where the script happens to run."""
    done.check(LOSSES, status="finished")


@script("run = accelbus.init(dir='here')\nos.chdir('/')" + LOG, ACCELBUS_DIR="")
def test_a_relative_run_directory_stays_where_it_was_at_init(done: Job) -> None:
    """Training may change the working directory afterwards."""
    done.runs = done.root / "here"
    done.check(LOSSES, status="finished")


def test_without_a_private_directory_for_sockets_init_says_so(quick_job: Job) -> None:
    """A directory that others may write to is no place for a socket; the message names the setting."""
    open_to_all = quick_job.root / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (rank,) = quick_job.run("accelbus.init()", ACCELBUS_SOCKET_DIR=str(open_to_all))
    assert rank.process.returncode == 1
    assert "ConfigurationError" in rank.stderr
    assert "ACCELBUS_SOCKET_DIR" in rank.stderr


@script("""
        before = (dict(os.environ), sys.getswitchinterval(), os.umask(0o022), os.getcwd())
        with accelbus.init() as run:
            run.log({"loss": 0.0}, step=0)
        assert before == (dict(os.environ), sys.getswitchinterval(), os.umask(0o022), os.getcwd())
    """)
def test_the_environment_is_left_as_it_was(done: Job) -> None:
    """Neither variables nor the switch interval, stdout or the file mode mask change."""
    (rank,) = done.ranks
    assert rank.lines == []
    done.check({("loss", 0): 0.0}, status="finished")


@script(
    """
from argparse import Namespace
from dataclasses import dataclass
@dataclass
class Inner:
    width: int = 3
@dataclass
class Config:
    lr: float = 0.5
    inner: Inner = Inner
seen = []
for number, config in enumerate(({1: "a", "b": {2: 3}}, Namespace(lr=0.5), Config(inner=Inner()), {"path": __import__("pathlib").Path("/a")})):
    given = accelbus.init(run_id=f"given{number}", config=config, mode="offline")
    given.finish()
    logged = accelbus.init(run_id=f"logged{number}", mode="offline")
    logged.log_config(config)
    logged.finish()
    assert given.config == logged.config != {}, (given.config, logged.config)
    disabled = accelbus.init(config=config, mode="disabled")
    assert disabled.config == given.config
run = accelbus.init()
"""
    + LOG
)
def test_init_takes_any_configuration_that_log_config_takes(done: Job) -> None:
    """Keys that are no text, namespaces, dataclasses, in every mode."""
    done.check(LOSSES, status="finished")


@script(
    """
import threading
sides = set(os.listdir("."))
run = accelbus.init(mode="disabled", log_with="jsonl")
say(f"{run.rank} {run.is_main} {run.id}")
for where in (run, run.get_tracker("jsonl"), accelbus.attach(run)):
    where.log({"loss": 1.0}, step=0)
assert run.url("jsonl") is None
assert run.get_tracker("jsonl").url is None
import pickle
inert = pickle.loads(pickle.dumps(run))
assert (inert.rank, inert.url("jsonl")) == (run.rank, None)
inert.get_tracker("jsonl").log({"loss": 1.0})
assert run.finish()
assert run.url("jsonl") is None
assert run.statistics().logged == 0
assert threading.active_count() == 1
assert set(os.listdir(".")) == sides
assert not os.listdir(os.environ["ACCELBUS_SOCKET_DIR"])
""",
    ranks=4,
)
def test_a_disabled_run_knows_its_rank_and_does_nothing(done: Job) -> None:
    """A script that asks whose turn it is, and where its curves are, works as it does online."""
    assert [rank.lines for rank in done.ranks] == [[f"{number} {number == 0} job"] for number in range(4)]
