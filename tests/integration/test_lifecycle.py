"""One process and its runs: opened, used from threads, finished, opened again."""

from __future__ import annotations

from tests.support.job import Job
from tests.support.scripts import script


@script(
    """
        first = accelbus.init()
        for step in range(10):
            first.log({"loss": 1.0}, step=step)
        second = accelbus.init()
        assert accelbus.run is second
        assert first.id != second.id
        for step in range(10):
            accelbus.log({"loss": 2.0}, step=step)
        accelbus.finish()
        say(first.id)
        say(second.id)
        """,
    ACCELBUS_RUN_ID="",
)
def test_init_twice_finishes_the_first_run_and_opens_another(done: Job) -> None:
    """A notebook cell that runs again starts a new run; the first one is complete."""
    (rank,) = done.ranks
    assert sorted(rank.lines) == sorted(path.name for path in done.runs.iterdir())
    for run_id, loss in zip(rank.lines, (1.0, 2.0), strict=True):
        done.run_id = run_id
        done.check({("loss", step): loss for step in range(10)}, status="finished")


@script("""
        for value, steps in ((1.0, range(10)), (2.0, range(5, 15))):
            run = accelbus.init()
            for step in steps:
                run.log({"loss": value}, step=step)
        run.finish()
    """)
def test_init_twice_with_one_id_continues_the_run_as_its_next_attempt(done: Job) -> None:
    """What the second one logs again replaces what the first one logged."""
    points = {("loss", step): 1.0 if step < 5 else 2.0 for step in range(15)}
    books = done.check(points, status="finished")
    assert [producer.attempt for producer in books.producers] == [0, 1]


@script("""
        import threading
        run = accelbus.init()
        for step in range(10):
            run.log({"loss": 1.0}, step=step)
        results = []
        threads = [threading.Thread(target=lambda: results.append((run.finish(), run.statistics().pending))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [(True, 0)] * 8, results
        assert run.finish()
        assert run.finish(status="failed")
    """)
def test_finish_twice_and_from_several_threads_at_once_is_one_finish(done: Job) -> None:
    """Every call returns when the events are safe; none does it again."""
    books = done.check({("loss", step): 1.0 for step in range(10)}, status="finished")
    assert books.logged == 12


@script("""
        import threading
        def train():
            with accelbus.init() as run:
                for step in range(10):
                    run.log({"loss": 1.0}, step=step)
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    """)
def test_a_run_opened_and_finished_in_a_thread_is_like_any_other(done: Job) -> None:
    """Signal handlers can only be installed in the main thread; everything else works."""
    done.check({("loss", step): 1.0 for step in range(10)}, status="finished")


@script("""
        import threading
        run = accelbus.init()
        for step in range(2000):
            run.log({"loss": 1.0}, step=step)
        begun = threading.Event()
        def finish():
            begun.set()
            run.finish()
            say("finished")
        threading.Thread(target=finish, daemon=True).start()
        begun.wait()
    """)
def test_exit_waits_for_a_finish_that_another_thread_has_begun(done: Job) -> None:
    """A daemon thread would be cut off in the middle of it."""
    books = done.check({("loss", step): 1.0 for step in range(2000)}, status="finished")
    assert books.producers[0].state == "finished"


@script("""
        run = accelbus.init()
        run.log({"loss": 1.0}, step=0)
        run.finish()
        for step in range(3):
            run.log({"late": 1.0}, step=step)
        run.log({"late": object()})
        accelbus.log("no mapping", step="no step")
        say(str(run.statistics().dropped))
        say(str(run.statistics().logged))
    """)
def test_log_after_finish_is_counted_and_warned_about_once(done: Job) -> None:
    """Neither an exception nor a value in the run."""
    (rank,) = done.ranks
    assert rank.lines == ["{'closed': 5}", "3"]
    assert rank.stderr.count("after finish") == 1
    done.check({("loss", 0): 1.0}, status="finished")


@script("""
        assert accelbus.run is None
        assert accelbus.finish()
        for call in (lambda: accelbus.log({"loss": 1.0}), accelbus.attach):
            try:
                call()
            except accelbus.NotInitializedError as error:
                say(str(error))
    """)
def test_log_before_init_raises_and_says_what_to_do(done: Job) -> None:
    """The one programming error that cannot be counted anywhere."""
    (rank,) = done.ranks
    assert "accelbus.init(project)" in rank.lines[0]
    assert "accelbus.init()" in rank.lines[1]


@script("""
        import threading
        run = accelbus.init()
        def work(number):
            for step in range(1000):
                run.log({f"thread{number}": step}, step=step)
        sys.setswitchinterval(1e-5)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert run.flush()
        assert run.statistics().pending == 0
        run.finish()
    """)
def test_many_threads_log_at_once(done: Job) -> None:
    """Every event of every thread, each once."""
    done.check({(f"thread{number}", step): step for number in range(8) for step in range(1000)}, status="finished")


@script("""
        import threading
        sys.setswitchinterval(1e-5)
        run = accelbus.init()
        calls, stop = [0] * 8, False
        def work(number):
            while not stop:
                run.log({f"thread{number}": calls[number]}, step=calls[number])
                calls[number] += 1
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        while sum(calls) < 2000:
            time.sleep(0.001)
        assert run.finish()
        stop = True
        for thread in threads:
            thread.join()
        statistics = run.statistics()
        say(str(statistics.logged - 2))
        assert statistics.logged - 2 + statistics.dropped["closed"] == sum(calls), (statistics, calls)
    """)
def test_threads_that_log_while_the_run_is_finished_lose_nothing_uncounted(done: Job) -> None:
    """Each call is either in the run or counted as closed, and none raises."""
    (rank,) = done.ranks
    done.wait_for_end()
    points = done.points()
    assert len(points) == int(rank.lines[0])
    done.check({(key, step): step for key, step in points}, status="finished")


@script(
    """
        import pathlib, threading
        def left():
            return len(os.listdir("/proc/self/fd")), threading.active_count()
        before = None
        for number in range(6):
            with accelbus.init() as run:
                run.log({"loss": 1.0}, step=number)
            before = before or left()
        assert left() == before, (left(), before)
        children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        zombies = [child for child in children if ") Z " in pathlib.Path(f"/proc/{child}/stat").read_text()]
        assert len(zombies) <= 1, zombies
        """,
    PYTHONDEVMODE="1",
    PYTHONWARNINGS="error",
)
def test_runs_opened_one_after_the_other_leave_nothing_behind_in_the_process(done: Job) -> None:
    """No thread, no descriptor, no child that nobody waited for, and no warning, not even in development mode."""
    (rank,) = done.ranks
    assert "Warning" not in rank.stderr, rank.stderr
    done.check({("loss", number): 1.0 for number in range(6)}, status="finished")


def test_a_finished_run_is_resumed_by_its_id(quick_job: Job) -> None:
    """A second attempt: the trackers go on where they were, and repeated steps have the newer values."""
    for value, steps in ((1.0, range(20)), (2.0, range(15, 30))):
        (rank,) = quick_job.run(
            f"""
            run = accelbus.init(config={{"lr": {value}}})
            for step in range({steps.start}, {steps.stop}):
                run.log({{"loss": {value}}}, step=step)
            run.finish()
            """,
            ACCELBUS_RESUME="never" if value == 1.0 else "must",
        )
        assert rank.process.returncode == 0, rank.stderr
    books = quick_job.check({("loss", step): 1.0 if step < 15 else 2.0 for step in range(30)}, status="finished")
    assert [producer.attempt for producer in books.producers] == [0, 1]
    assert len(quick_job.rows()) == 35  # the first attempt's rows are kept, and nothing was written twice


def test_a_run_is_not_resumed_by_mistake(quick_job: Job) -> None:
    """`resume="never"` refuses an id that is there, `resume="must"` one that is not."""
    quick_job.run("accelbus.init().finish()", ACCELBUS_MODE="offline")
    for resume, run_id in (("never", "job"), ("must", "other")):
        (rank,) = quick_job.run("accelbus.init()", ACCELBUS_RESUME=resume, ACCELBUS_RUN_ID=run_id)
        assert rank.process.returncode == 1
        assert f"resume='{resume}'" in rank.stderr
        assert f"{run_id!r}" in rank.stderr
    assert [path.name for path in quick_job.runs.iterdir()] == ["job"]
