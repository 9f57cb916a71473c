"""Signals that reach training: the process ends, or goes on, exactly as it would without us, and nothing is lost."""

from __future__ import annotations

import os
import signal

from tests.support.job import Job, wait_until

LOOP = """
run = accelbus.init()
say("ready")
step = 0
try:
    while not os.path.exists(os.environ["ROOT"] + "/stop"):
        run.log({"loss": step * 0.5}, step=step)
        step += 1
        time.sleep(0.001)
finally:
    say(f"steps {step}")
"""


def steps_of(job: Job) -> int:
    """Return how many steps the only rank says it has logged."""
    (line,) = [line for line in job.ranks[0].lines if line.startswith("steps ")]
    return int(line.split()[1])


def losses(steps: int) -> dict[tuple[str, int], float]:
    return {("loss", step): step * 0.5 for step in range(steps)}


def test_sigterm_ends_a_rank_without_a_handler_as_sigterm(quick_job: Job) -> None:
    """The rank makes its events safe, then dies of the signal; the run was preempted."""
    (rank,) = quick_job.start("""
        run = accelbus.init()
        for step in range(100):
            run.log({"loss": step * 0.5}, step=step)
        say("ready")
        while True:
            time.sleep(60)
    """)
    rank.said("ready")
    rank.kill(signal.SIGTERM)
    assert rank.wait() == -signal.SIGTERM, rank.stderr
    quick_job.check(losses(100), status="preempted")


def test_sigterm_goes_on_to_the_jobs_own_handler_and_training_goes_on(quick_job: Job) -> None:
    """The handler runs once, with the usual arguments; what is logged after it is kept too."""
    (rank,) = quick_job.start(
        """
def handler(number, frame):
    say(f"handler {number} {frame is not None}")
    run.log({"checkpoint": 1}, step=0)

signal.signal(signal.SIGTERM, handler)
"""
        + LOOP
    )
    rank.said("ready")
    rank.kill(signal.SIGTERM)
    rank.said(f"handler {signal.SIGTERM.value} True")
    quick_job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    quick_job.check({**losses(steps_of(quick_job)), ("checkpoint", 0): 1}, status="preempted")


def test_a_handler_that_exits_decides_the_exit_code(quick_job: Job) -> None:
    """`sys.exit(143)` after SIGTERM is what a shell would say of the signal: preempted, not failed."""
    (rank,) = quick_job.start("signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))\n" + LOOP)
    rank.said("ready")
    rank.kill(signal.SIGTERM)
    assert rank.wait() == 128 + signal.SIGTERM, rank.stderr
    quick_job.check(losses(steps_of(quick_job)), status="preempted")


def test_a_handler_installed_after_init_is_left_alone(quick_job: Job) -> None:
    """The job's handler replaces ours; it may end the process as it likes."""
    (rank,) = quick_job.start("""
        run = accelbus.init()
        def handler(number, frame):
            run.finish(status="preempted")
            os._exit(9)
        signal.signal(signal.SIGTERM, handler)
        run.log({"loss": 0.0}, step=0)
        say("ready")
        while True:
            time.sleep(60)
    """)
    rank.said("ready")
    rank.kill(signal.SIGTERM)
    assert rank.wait() == 9, rank.stderr
    quick_job.check(losses(1), status="preempted")


def test_a_handler_that_calls_ours_does_so_once_also_after_another_init(quick_job: Job) -> None:
    """The job chains to what it found; a second run does not chain the other way round."""
    (rank,) = quick_job.start("""
        accelbus.init()
        before = signal.getsignal(signal.SIGTERM)
        def handler(number, frame):
            say("handler")
            before(number, frame)
        signal.signal(signal.SIGTERM, handler)
        run = accelbus.init()
        run.log({"loss": 0.0}, step=0)
        say("ready")
        while True:
            time.sleep(60)
    """)
    rank.said("ready")
    rank.kill(signal.SIGTERM)
    assert rank.wait() == -signal.SIGTERM, rank.stderr
    assert rank.lines == ["ready", "handler"]
    quick_job.check(losses(1), status="preempted")


def test_an_ignored_sigterm_stays_ignored_in_the_job_and_in_what_it_starts(quick_job: Job) -> None:
    """Nothing is installed over SIG_IGN: a handler would not be inherited by programs that the job starts."""
    (rank,) = quick_job.start(
        """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
        + LOOP
        + """
assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
child = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)"
say(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip())
"""
    )
    rank.said("ready")
    rank.kill(signal.SIGTERM)
    quick_job.signal_file("stop")
    assert rank.wait() == 0, rank.stderr
    assert "True" in rank.lines
    quick_job.check(losses(steps_of(quick_job)), status="finished")


def test_ctrl_c_to_the_process_group_ends_the_ranks_and_not_the_bus_process(quick_job: Job) -> None:
    """KeyboardInterrupt, traceback and exit code are Python's own; the bus process goes on to deliver everything."""
    ranks = quick_job.start(LOOP, ranks=2, group=True)
    for rank in ranks:
        rank.said("ready")
    bus = wait_until(quick_job.bus_pid)
    os.killpg(ranks[0].pid, signal.SIGINT)
    for rank in ranks:
        assert rank.wait() == -signal.SIGINT, rank.stderr
        assert "KeyboardInterrupt" in rank.stderr
    assert quick_job.bus_pid() == bus
    steps = max(int(rank.lines[-1].split()[1]) for rank in ranks)
    quick_job.check(losses(steps), status="preempted")


def test_ctrl_c_in_the_middle_of_finish_loses_nothing(quick_job: Job) -> None:
    """Who is impatient at the end gets the prompt back; the bus process brings in what is left."""
    (rank,) = quick_job.start(
        """
        import threading
        run = accelbus.init()
        for step in range(100):
            run.log({"loss": step * 0.5}, step=step)
        wait_for(os.environ["ROOT"] + "/stopped")

        def interrupt_finish():
            frame = None
            while frame is None or "finish" not in names(frame):
                frame = sys._current_frames()[threading.main_thread().ident]
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        def names(frame):
            return {frame.f_code.co_name, *(names(frame.f_back) if frame.f_back else ())}

        threading.Thread(target=interrupt_finish, daemon=True).start()
        run.finish()
        """,
        ACCELBUS_SPILL_AFTER="60",
    )
    bus = quick_job.kill_bus(signal.SIGSTOP)
    quick_job.signal_file("stopped")
    assert rank.wait(4) == -signal.SIGINT, rank.stderr
    os.kill(bus, signal.SIGCONT)
    quick_job.check(losses(100), status="finished")


def test_a_timer_whose_handler_logs_interrupts_log_without_harm(quick_job: Job) -> None:
    """The handler's events and the interrupted ones all survive, each once."""
    quick_job.run("""
        import itertools
        run = accelbus.init()
        ticks, counter = 0, itertools.count()
        def tick(number, frame):
            # A handler may be interrupted by the next one.
            global ticks
            own = next(counter)
            run.log({"tick": own}, step=own)
            ticks = own + 1
        signal.signal(signal.SIGALRM, tick)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        deadline = time.monotonic() + 10
        step = 0
        while ticks < 100 or step < 5000:
            run.log({"loss": step * 0.5}, step=step)
            step += 1
            assert time.monotonic() < deadline
        signal.setitimer(signal.ITIMER_REAL, 0)
        say(f"ticks {next(counter)}")
        say(f"steps {step}")
        run.finish()
    """)
    (rank,) = quick_job.ranks
    assert rank.process.returncode == 0, rank.stderr
    ticks = int(rank.lines[0].split()[1])
    quick_job.check({**losses(steps_of(quick_job)), **{("tick", tick): tick for tick in range(ticks)}}, status="finished")


def test_sigterm_during_a_signal_handlers_log_ends_in_order(quick_job: Job) -> None:
    """SIGTERM may interrupt `log` itself, at any instruction: the process still ends, as SIGTERM, with everything in the run."""
    (rank,) = quick_job.start("""
        run = accelbus.init()
        say("ready")
        step = 0
        while True:
            run.log({"loss": step * 0.5}, step=step)
            step += 1
            if step == 2_000:
                say("many")
    """)
    rank.said("many")
    rank.kill(signal.SIGTERM)
    assert rank.wait() == -signal.SIGTERM, rank.stderr
    quick_job.wait_for_end()
    steps = len(quick_job.points())
    assert steps >= 2_000
    quick_job.check(losses(steps), status="preempted")


def test_sigterm_to_everything_at_once_still_delivers(quick_job: Job) -> None:
    """A batch system signals every process of the job: ranks end as preempted, the bus process stays for them and for the trackers."""
    ranks = quick_job.start(LOOP, ranks=2)
    for rank in ranks:
        rank.said("ready")
    quick_job.wait_for_rows(10)
    for pid in [*(rank.pid for rank in ranks), *quick_job.processes()]:
        os.kill(pid, signal.SIGTERM)
    for rank in ranks:
        assert rank.wait() == -signal.SIGTERM, rank.stderr
    quick_job.wait_for_end()
    steps = 1 + max(step for _, step in quick_job.points())
    books = quick_job.check(losses(steps), status="preempted")
    assert max(producer.logged for producer in books.producers) == steps + 2
