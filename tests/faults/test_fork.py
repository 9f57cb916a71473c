"""Forked and spawned children: the run belongs to the process that opened it, until a child attaches."""

from __future__ import annotations

import textwrap

import pytest

from tests.support.job import Job
from tests.support.scripts import script

STEPS = 50
PARENT_LOGS = """
for step in range(50):
    run.log({"loss": step * 0.5}, step=step)
"""
LOSSES = {("loss", step): step * 0.5 for step in range(STEPS)}


@script(
    """
run = accelbus.init(config={"lr": 0.1})
run.log({"before": 1.0}, step=0)
pid = os.fork()
if pid == 0:
    for step in range(3):
        run.log({"loss": -1.0}, step=step)
        run.log({"child": object()}, step="no step")
    accelbus.log({"child": 1})
    run.log_config({"child": 1})
    assert run.flush(0.1)
    assert run.finish()
    say(f"child dropped {run.statistics().dropped}")
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
"""
    + PARENT_LOGS
    + "run.finish()"
)
def test_a_forked_child_is_inert_and_the_parent_unharmed(done: Job) -> None:
    """What the child logs is not kept, and said once; its `finish` and its end do nothing to the parent's run."""
    (rank,) = done.ranks
    assert rank.lines == ["child dropped {'forked': 7}"]
    assert rank.stderr.count("belongs to another process") == 1
    done.check({**LOSSES, ("before", 0): 1.0}, status="finished")


@script(
    """
ends = ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)", "sys.exit(1)", "1 / 0", "run.finish()"]
run = accelbus.init()
for number, end in enumerate(ends):
    for step in range(1000 * number, 1000 * (number + 1)):
        run.log({"early": step}, step=step)
    pid = os.fork()
    if pid == 0:
        exec(end)
        break
    os.waitpid(pid, 0)
else:
"""
    + textwrap.indent(PARENT_LOGS, "    ")
)
def test_however_forked_children_end_nothing_is_sent_twice_and_the_run_goes_on(done: Job) -> None:
    """Events that were in the ring at the fork are the parent's to send; its lock, its socket and its hooks stay with it."""
    books = done.check({**LOSSES, **{("early", step): step for step in range(6000)}}, status="finished")
    assert books.duplicates == 0
    assert len(books.producers) == 1


def test_a_child_that_outlives_its_parent_does_not_keep_the_run_open(quick_job: Job) -> None:
    """The spool's lock is not inherited: a killed parent counts as gone although its child still has its files."""
    (rank,) = quick_job.start(
        """
run = accelbus.init()
"""
        + PARENT_LOGS
        + """
if os.fork() == 0:
    wait_for(os.environ["ROOT"] + "/stop")
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    rank.process.wait(30)
    quick_job.check(LOSSES, status="killed")
    quick_job.signal_file("stop")


@script(
    """
run = accelbus.init()
pid = os.fork()
if pid == 0:
    child = accelbus.attach()
    assert accelbus.run is child
    for step in range(50):
        child.log({"child": step}, step=step)
    child.finish()
    os._exit(0)
"""
    + PARENT_LOGS
    + """
os.waitpid(pid, 0)
run.finish()
"""
)
def test_a_forked_child_that_attaches_is_a_producer_of_the_run(done: Job) -> None:
    """`attach()` finds the run the process was forked with; the parent's status is the run's."""
    books = done.check({**LOSSES, **{("child", step): step for step in range(50)}}, status="finished")
    assert [(producer.role, producer.status) for producer in books.producers] == [("trainer", "finished"), ("worker", "finished")]


@script(
    """
run = accelbus.init()
pid = os.fork()
if pid == 0:
    child = accelbus.attach()
    for step in range(50):
        child.log({"child": step}, step=step)
    os._exit(0)
"""
    + PARENT_LOGS
    + """
os.waitpid(pid, 0)
run.finish()
"""
)
def test_an_attached_child_that_vanishes_loses_nothing(done: Job) -> None:
    """`os._exit` runs no hook; the bus process brings in what is in the child's spool, and the run's status is its trainers'."""
    books = done.check({**LOSSES, **{("child", step): step for step in range(50)}}, status="finished")
    assert [(producer.role, producer.status) for producer in books.producers] == [("trainer", "finished"), ("worker", "killed")]


WORKERS = """
import multiprocessing

def load(run, number):
    run.log({"inert": 1.0}, step=0)
    assert run.statistics().dropped == {"forked": 1}, run.statistics()
    own = accelbus.attach(run, role="loader")
    for step in range(50):
        own.log({f"worker{number}": step}, step=step)
    if number == 1:
        raise ValueError("a broken sample")
    if number == 2:
        sys.exit(2)

if __name__ == "__main__":
    run = accelbus.init()
    context = multiprocessing.get_context(METHOD)
    workers = [context.Process(target=load, args=(run, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for step in range(50):
        run.log({"loss": step * 0.5}, step=step)
    for worker in workers:
        worker.join()
    say(str([worker.exitcode for worker in workers]))
    run.finish()
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_multiprocessing_behave_alike_however_they_are_started(quick_job: Job, method: str) -> None:
    """A run that was passed to a worker is inert there; attaching makes a producer whose end is observed without `finish`."""
    (rank,) = quick_job.run(WORKERS.replace("METHOD", repr(method)))
    assert rank.process.returncode == 0, rank.stderr
    assert rank.lines == ["[0, 1, 2]"]
    expected = {(f"worker{number}", step): step for number in range(3) for step in range(50)}
    books = quick_job.check({**LOSSES, **expected}, status="finished")
    assert sorted((producer.role, producer.status) for producer in books.producers) == [
        ("loader", "failed"), ("loader", "failed"), ("loader", "finished"), ("trainer", "finished"),
    ]  # fmt: skip


@script(
    """
import multiprocessing

def train(number):
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    run = accelbus.init()
    for step in range(50):
        run.log({"loss": step * 0.5 + number}, step=step)

accelbus.init(mode="disabled")
context = multiprocessing.get_context("fork")
ranks = [context.Process(target=train, args=(number,)) for number in range(2)]
for one in ranks:
    one.start()
for one in ranks:
    one.join()
""",
    alone=True,
)
def test_ranks_that_a_notebook_forks_are_ranks(done: Job) -> None:
    """A launcher that forks functions: each child opens the run as its rank, and falls off its function's end."""
    done.check({("loss", step): step * 0.5 + 0.5 for step in range(50)}, status="finished")


@script("""
        import subprocess
        environment = dict(os.environ)
        run = accelbus.init()
        run.log({"loss": 0.0}, step=0)
        child = "import os; print(sorted(os.listdir('/proc/self/fd'))[:4])"
        say(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, close_fds=False).stdout.strip())
        assert dict(os.environ) == environment
        run.finish()
    """)
def test_a_program_started_by_a_rank_has_nothing_of_the_run(done: Job) -> None:
    """No descriptor, signal disposition or variable of ours reaches it."""
    (rank,) = done.ranks
    assert rank.lines == ["['0', '1', '2', '3']"]
    done.check({("loss", 0): 0.0}, status="finished")


CHILD = """
import os, sys
sys.path[:0] = os.environ["PATHS"].split(os.pathsep)
import accelbus
with accelbus.init() as run:
    for step in range(50):
        run.log({"child": step}, step=step)
"""


@script(
    f"""
import subprocess
run = accelbus.init()
for step in range(25):
    run.log({{"loss": step * 0.5}}, step=step)
child = subprocess.run([sys.executable, "-c", {CHILD!r}], env={{**os.environ, "PATHS": os.pathsep.join(sys.path)}}, capture_output=True, text=True)
assert child.returncode == 0, child.stderr
say(child.stderr)
for step in range(25, 50):
    run.log({{"loss": step * 0.5}}, step=step)
run.finish()
"""
)
def test_a_program_that_a_rank_starts_does_not_take_its_place(done: Job) -> None:
    """It has the rank's environment, so it finds itself to be the rank; it logs to the run as a worker, and the rank goes on."""
    (rank,) = done.ranks
    assert "is rank 0 of run job: this process joins it as a worker" in "".join(rank.lines)
    assert "refused" not in rank.stderr
    books = done.check({**LOSSES, **{("child", step): step for step in range(50)}}, status="finished")
    assert [(producer.role, producer.attempt) for producer in books.producers] == [("trainer", 0), ("worker", 0)]


@script(
    f"""
import subprocess
run = accelbus.init()
for step in range(50):
    run.log({{"loss": step * 0.5}}, step=step)
run.finish()
child = subprocess.run([sys.executable, "-c", {CHILD!r}], env={{**os.environ, "PATHS": os.pathsep.join(sys.path)}}, capture_output=True, text=True)
assert child.returncode == 0, child.stderr
"""
)
def test_a_rank_that_starts_its_successor_and_leaves_is_replaced(done: Job) -> None:
    """Only a living ancestor keeps its place."""
    books = done.check({**LOSSES, **{("child", step): step for step in range(50)}}, status="finished")
    assert [producer.role for producer in books.producers] == ["trainer", "trainer"]
