"""Trackers of which every rank has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accelbus.reader.audit import audit
from tests.support.job import QUICK, Job, Rank, running_job

REPOSITORY = Path(__file__).parents[2]
TRACKER = """
    from accelbus import GeneralTracker

    class PerRank(GeneralTracker):
        name = "mine"
        requires_logging_directory = True
        main_process_only = False

        def __init__(self, project, directory, greeting=""):
            super().__init__()
            self.path, self.greeting = os.path.join(directory, "said"), greeting

        @property
        def tracker(self):
            return self.path

        def say(self, what):
            import json
            with open(self.path, "a") as file:
                print(json.dumps(what), file=file)

        def start(self):
            self.say(["start", self.greeting, self.run_info.name])

        def store_init_configuration(self, values):
            self.say(["config", values])

        def log(self, values, step=None, **kwargs):
            self.say([step, values, kwargs])
"""


@pytest.fixture
def job():
    with running_job(**QUICK, ACCELBUS_FINISH_TIMEOUT="30", PYTHONPATH=str(REPOSITORY)) as one:
        del one.environ["ACCELBUS_LOG_WITH"]
        yield one


def train(job: Job, script: str, ranks: int = 2) -> list[Rank]:
    """Run *script* in every rank; everything is delivered."""
    started = job.run(script, ranks)
    assert [rank.process.returncode for rank in started] == [0] * ranks, (started[0].stderr, job.bus_log())
    books = audit(job.run_dir)
    assert books.balanced, books.problems
    assert books.is_settled, (books, job.bus_log())
    return started


def said(job: Job, sink: str, file: str = "said") -> list[Any]:
    return [json.loads(line) for line in (job.run_dir / sink / file).read_text().splitlines()]


def test_every_rank_has_a_tracker_with_what_it_logged(job: Job) -> None:
    """A class of the script with ``main_process_only = False``: one instance for each rank, unmerged; trackers beside it get the mean."""
    train(job, f"""{TRACKER}
    kwargs = {{"mine": {{"greeting": "hello"}}}}
    with accelbus.init(log_with=[PerRank, "jsonl"], init_kwargs=kwargs, config={{"lr": 0.1}}) as run:
        for step in range(3):
            run.log({{"loss": float(10 * run.rank + step)}}, step=step)
        tracker = run.get_tracker("mine")
        tracker.log({{"only": run.rank}}, step=3, why="so")
        run.log({{"last": 1.0}}, step=4, log_kwargs={{"mine": {{"rank": run.rank}}}})
    """)  # fmt: skip
    for rank in (0, 1):
        start, config, *rows = said(job, f"mine@rank{rank}")
        assert start == ["start", "hello", f"{job.run_id}-rank{rank}"]
        assert config == ["config", {"lr": 0.1}]
        assert rows == [
            *([step, {"loss": float(10 * rank + step)}, {}] for step in range(3)), [3, {"only": rank}, {"why": "so"}], [4, {"last": 1.0}, {"rank": rank}],
        ]  # fmt: skip
    assert {row["step"]: row["values"] for row in said(job, "jsonl", "metrics.jsonl")} == {
        **{step: {"loss": 5.0 + step} for step in range(3)}, 4: {"last": 1.0},
    }  # fmt: skip


def test_any_tracker_can_be_had_in_every_rank(job: Job) -> None:
    """The option ``per_rank`` of a built-in one: a run for each rank."""
    train(job, """
    with accelbus.init(log_with="jsonl", sink_options={"jsonl": {"per_rank": True}}) as run:
        run.log({"rank": run.rank}, step=1)
    """)  # fmt: skip
    assert [said(job, f"jsonl@rank{rank}", "metrics.jsonl")[0]["values"] for rank in (0, 1)] == [{"rank": 0}, {"rank": 1}]


def test_a_run_of_one_rank_has_one_under_its_plain_name(job: Job) -> None:
    """Nothing is different there."""
    train(job, f"""{TRACKER}
    with accelbus.init(log_with=PerRank) as run:
        run.log({{"loss": 1.0}}, step=1)
    """, ranks=1)  # fmt: skip
    assert said(job, "mine")[-1] == [1, {"loss": 1.0}, {}]


def test_one_that_lives_in_the_main_rank_is_one_and_that_is_said(job: Job) -> None:
    """It gets the mean of the ranks, as every tracker of all ranks does."""
    main, _ = train(job, f"""{TRACKER}
    with accelbus.init(log_with=PerRank, inline=["mine"]) as run:
        run.log({{"loss": float(run.rank)}}, step=1)
    """)  # fmt: skip
    assert said(job, "mine")[-1] == [1, {"loss": 0.5}, {}]
    assert "'mine' runs in the main rank: it is one for all ranks" in main.stderr


def test_one_that_is_only_named_is_one_and_that_is_said(job: Job) -> None:
    """A rank does not import it, so it cannot know; the tracker's own process does."""
    (job.root / "my_tracker.py").write_text(TRACKER.replace("\n    ", "\n") + "\nimport os\n")
    main, _ = train(job, """
    with accelbus.init(log_with="my_tracker:PerRank") as run:
        run.log({"loss": float(run.rank)}, step=1)
        status = run.dir / "sinks" / "my_tracker:PerRank" / "status.json"
        deadline = time.monotonic() + 30
        while not (status.exists() and "main_process_only" in status.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)  # for the notice to come
    """)  # fmt: skip
    assert said(job, "my_tracker:PerRank")[-1] == [1, {"loss": 0.5}, {}]
    assert "main_process_only is False, but this is one tracker for all ranks" in main.stderr


def test_too_many_are_refused_when_the_run_starts(job: Job) -> None:
    """Each of them would be a process on the head node."""
    (rank,) = job.start(
        f"""{TRACKER}
    try:
        accelbus.init(log_with=PerRank)
    except accelbus.errors.ConfigurationError as error:
        say(error)
    """,
        world_size=65,
    )
    assert rank.wait() == 0, rank.stderr
    assert "expected at most 64 ranks, got 65" in rank.lines[0]
