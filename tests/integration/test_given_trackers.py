"""Trackers given as class, instance or name, by scripts whose classes nobody else can import; of our kind and of Accelerate's."""

from __future__ import annotations

import json

import pytest

from accelbus.reader.audit import audit
from tests.support.job import QUICK, Job, running_job, wait_until

TRACKER = """
    import csv, threading
    from accelbus import GeneralTracker

    class Lines(GeneralTracker):
        name = "lines"
        requires_logging_directory = False

        def __init__(self, path, extra=None):
            super().__init__()
            self.path, self.extra = path, extra

        def start(self):
            self.write("start", os.getpid() == int(os.environ.get("TRAINER", 0)))

        @property
        def tracker(self):
            return self

        def write(self, *cells):
            with open(self.path, "a", newline="") as file:
                csv.writer(file).writerow(cells)

        def store_init_configuration(self, values):
            self.write("config", *values.items())

        def log(self, values, step):
            for key, value in values.items():
                self.write(key, step, value)

        def finish(self):
            self.write("finish")

    os.environ["TRAINER"] = str(os.getpid())
    path = os.path.join(os.environ["ROOT"], "lines.csv")
"""
# Few tests need it: it takes seconds to import, in the script and in its tracker's process.
OF_ACCELERATE = TRACKER.replace("from accelbus import", "from accelerate.tracking import")


@pytest.fixture
def job():
    """A job whose main rank waits for the trackers."""
    with running_job(**QUICK, ACCELBUS_FINISH_TIMEOUT="30") as one:
        del one.environ["ACCELBUS_LOG_WITH"]
        yield one


def lines(job: Job) -> list[str]:
    path = job.root / "lines.csv"
    return path.read_text().splitlines() if path.exists() else []


def train(job: Job, *log_with: str, ranks: int = 1, tracker: str = TRACKER, **environ: str):
    """Run the tracker's script; rows as they are in the file."""
    script = (
        tracker
        + f"""
    with accelbus.init(log_with=[{", ".join(log_with)}], config={{"lr": 0.1}}) as run:
        for step in range(3):
            run.log({{"loss": float(step)}}, step=step)
    """
    )
    started = job.run(script, ranks, **environ)
    assert [rank.process.returncode for rank in started] == [0] * ranks, (started[0].stderr, job.bus_log())
    books = audit(job.run_dir)
    assert books.balanced, books.problems
    assert books.is_settled, (books, job.bus_log())
    return started


EXPECTED = ["config,\"('lr', 0.1)\"", "loss,0,0.0", "loss,1,1.0", "loss,2,2.0", "finish"]


@pytest.mark.parametrize("how", ["Lines(path)", "Lines", "'lines'"])
def test_a_class_of_the_script_itself_runs_in_a_process_of_its_own(job, how):
    """As instance, as class with its arguments, or registered: it travels by value, and the script is not run again."""
    if how != "Lines(path)":
        register = "accelbus.register_tracker_class(Lines)" if how == "'lines'" else ""
        job_script = "kwargs = {'lines': {'path': path}}"
        script = TRACKER.replace("def __init__(self, path, extra=None)", "def __init__(self, project, path, extra=None)")
        (rank,) = job.run(
            script
            + f"""
    {register}
    {job_script}
    say("once")
    with accelbus.init(log_with=[{how}], init_kwargs=kwargs, config={{"lr": 0.1}}) as run:
        for step in range(3):
            run.log({{"loss": float(step)}}, step=step)
    """
        )
        assert rank.process.returncode == 0, rank.stderr
        assert rank.lines == ["once"]
    else:
        train(job, how, ranks=2, tracker=OF_ACCELERATE)
    assert lines(job) == ["start,False", *EXPECTED], job.bus_log()
    record = json.loads((job.run_dir / "run.json").read_bytes())
    assert record["sinks"] == ["lines"]
    assert record["trackers"] == {"lines": {}}


def test_a_class_in_a_module_is_written_down_and_sync_can_build_it(job):
    """With its arguments: a run that was offline is delivered by another process."""
    module = OF_ACCELERATE.replace("\n    ", "\n").replace("import csv", "import os, csv").partition("os.environ[")[0]
    (job.root / "my_lines.py").write_text(module)
    (rank,) = job.run(
        """
        from my_lines import Lines
        path = os.path.join(os.environ["ROOT"], "lines.csv")
        with accelbus.init(log_with=Lines(path), mode="offline", config={"lr": 0.1}) as run:
            for step in range(3):
                run.log({"loss": float(step)}, step=step)
        """
    )
    assert rank.process.returncode == 0, rank.stderr
    origin = json.loads((job.run_dir / "run.json").read_bytes())["trackers"]["lines"]
    assert (origin["path"], origin["state"]) == ("my_lines:Lines", {"path": str(job.root / "lines.csv"), "extra": None})
    assert "finished" in job.sync()
    assert lines(job) == ["start,False", *EXPECTED]


def test_an_instance_of_ours_is_written_down_with_its_arguments(job):
    """So that ``sync`` can build it again."""
    (job.root / "ours.py").write_text(
        "import json\nfrom accelbus import GeneralTracker\n\n"
        "class Ours(GeneralTracker):\n    name = 'ours'\n    requires_logging_directory = False\n\n"
        "    def __init__(self, path, *, mode='a'):\n        super().__init__()\n        self.path, self.mode = path, mode\n\n"
        "    @property\n    def tracker(self):\n        return self\n\n"
        "    def log(self, values, step=None):\n        open(self.path, self.mode).write(f'{step} {values}\\n')\n"
    )
    (rank,) = job.run(
        """
        from ours import Ours
        with accelbus.init(log_with=[Ours(os.path.join(os.environ["ROOT"], "ours.txt"))], mode="offline") as run:
            run.log({"loss": 1.0}, step=1)
        """
    )
    assert rank.process.returncode == 0, rank.stderr
    origin = json.loads((job.run_dir / "run.json").read_bytes())["trackers"]["ours"]
    assert (origin["path"], origin["args"]) == ("ours:Ours", [str(job.root / "ours.txt")])
    printed = job.sync()
    assert (job.root / "ours.txt").exists(), printed + job.bus_log()
    assert (job.root / "ours.txt").read_text() == "1 {'loss': 1.0}\n"


def test_one_that_cannot_cross_runs_in_the_main_rank_and_that_is_said(job):
    """With what it costs; the other ranks only log."""
    # The slower rank's values must not come late: they would change points, which this tracker then gets again.
    started = train(job, "Lines(path, threading.Lock())", ranks=2, ACCELBUS_LATE_AFTER="60")
    assert lines(job) == ["start,True", *EXPECTED], [rank.stderr for rank in started]
    said = [sum("runs in this process, beside training: it cannot be pickled" in line for line in rank.errors) for rank in started]
    assert said == [1, 0]


def test_a_bus_process_that_comes_later_is_given_the_class_too(job):
    """While its main rank lives."""
    (rank,) = job.start(
        TRACKER
        + """
    run = accelbus.init(log_with=[Lines(path)])
    run.log({"loss": 1.0}, step=1)
    say("ready")
    wait_for(os.environ["ROOT"] + "/go")
    run.log({"loss": 2.0}, step=2)
    run.finish()
    """
    )
    rank.said("ready")
    wait_until(lambda: "loss,1,1.0" in lines(job), what="the first row")
    job.kill_bus()
    job.signal_file("go")
    assert rank.wait() == 0, rank.stderr
    job.wait_for_end()
    assert "loss,2,2.0" in lines(job), job.bus_log()
    assert audit(job.run_dir).is_settled


class TestInline:
    def test_the_live_object_is_had_in_the_main_rank(self, job):
        """And only there; the proxy works in both."""
        started = job.run(
            TRACKER
            + """
    with accelbus.init(log_with=[Lines(path), "jsonl"], inline=["lines"], config={"lr": 0.1}) as run:
        if run.rank == 0:
            live = run.get_tracker("lines", unwrap=True)
            assert type(live) is Lines
            live.write("by hand")
        else:
            try:
                run.get_tracker("lines", unwrap=True)
            except accelbus.ConfigurationError as error:
                say(str(error))
        run.get_tracker("lines").log({f"rank{run.rank}": 1.0}, step=1)
        run.log({"loss": 1.0}, step=2)
    """,
            ranks=2,
        )
        assert [rank.process.returncode for rank in started] == [0, 0], [rank.stderr for rank in started]
        found = lines(job)
        assert found[0] == "start,True"
        assert {"by hand", "rank0,1,1.0", "rank1,1,1.0", "loss,2,1.0"} <= set(found)
        assert found[-1] == "finish"
        assert "lives in the main rank" in started[1].lines[0]
        assert job.points() == {("loss", 2): 1.0}
        books = audit(job.run_dir)
        assert books.balanced, books.problems
        assert books.is_settled

    def test_a_tracker_that_opens_its_run_with_its_configuration_is_waited_for(self, job):
        """Also where there is none, as W&B offline does."""
        (rank,) = job.run(
            TRACKER
            + """
    class Late(Lines):
        live = None

        @property
        def tracker(self):
            return self.live

        def store_init_configuration(self, values):
            self.live = f"live with {values}"

    with accelbus.init(log_with=[Late(path)], inline=["lines"]) as run:
        say(run.get_tracker("lines", unwrap=True))
    """
        )
        assert rank.process.returncode == 0, rank.stderr
        assert rank.lines == ["live with {}"]

    def test_a_built_in_tracker_may_run_there_too(self, job):
        """With all that a worker process would do: cursor, books, status."""
        (rank,) = job.run(
            """
            with accelbus.init(log_with="jsonl", inline=["jsonl"]) as run:
                assert run.get_tracker("jsonl", unwrap=True).name == "metrics.jsonl"
                for step in range(10):
                    run.log({"loss": 1.0}, step=step)
                while run.url("jsonl") is None:
                    time.sleep(0.01)
                assert run.url("jsonl").endswith("metrics.jsonl")
            """
        )
        assert rank.process.returncode == 0, rank.stderr
        job.check({("loss", step): 1.0 for step in range(10)}, status="finished")

    def test_a_tracker_that_fails_there_does_not_fail_training(self, job):
        """It is retried, reported and left; what is owed is delivered by ``sync``, in a process of its own."""
        (rank,) = job.run(
            """
            import accelbus_sinks.jsonl as sink
            def refuse(self, rows):
                raise RuntimeError("not today")
            sink.JSONLTracker.log_batch = refuse
            with accelbus.init(log_with="jsonl", inline=["jsonl"]) as run:
                run.log({"loss": 1.0}, step=1)
            """,
            ACCELBUS_FINISH_TIMEOUT="1",
        )
        assert rank.process.returncode == 0, rank.stderr
        assert "accelbus sync delivers the rest" in rank.stderr
        assert job.rows() == []
        job.sync()
        job.check({("loss", 1): 1.0})

    def test_a_crash_of_the_main_rank_leaves_the_rest_to_sync(self, job):
        """The cursor says where to go on."""
        (rank,) = job.start(
            """
            run = accelbus.init(log_with="jsonl", inline=["jsonl"])
            for step in range(10):
                run.log({"loss": 1.0}, step=step)
            run.flush()
            say("ready")
            wait_for("/nowhere", 100)
            """
        )
        rank.said("ready")
        rank.kill()
        job.wait_for_end()
        job.sync()
        job.check({("loss", step): 1.0 for step in range(10)}, status="killed")


@pytest.mark.parametrize(
    "setting", ["init_kwargs={'wandbb': {}}", "log_kwargs={'wandbb': {}}", "sink_options={'wandbb': {}}", "inline=['wandbb']"]
)
def test_a_setting_about_a_tracker_that_is_not_there_is_refused(job, setting):
    """A typing error is found before the first step."""
    (rank,) = job.start(
        f"""
        try:
            accelbus.init(log_with="jsonl", {setting})
        except accelbus.ConfigurationError as error:
            say(str(error))
        """
    )
    assert rank.wait() == 0
    assert "is about 'wandbb', which is not in log_with (jsonl)" in rank.lines[0]


def test_options_of_a_tracker_are_checked_when_the_run_starts(job):
    """Names and types."""
    (rank,) = job.start(
        """
        for options in ({"exclud": ["a"]}, {"min_interval": "often"}, {"exclude": ["a"]}, accelbus.SinkOptions(exclude=("a",))):
            try:
                accelbus.init(log_with="jsonl", sink_options={"jsonl": options}, mode="offline").finish()
                say("taken")
            except accelbus.ConfigurationError as error:
                say("refused")
        """
    )
    assert rank.wait() == 0, rank.stderr
    assert rank.lines == ["refused", "refused", "taken", "taken"]
