"""Configurations that a tracker resolves, for a sweep or from its user interface: one answer for all ranks, before `init` returns."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.support.job import QUICK, Job, running_job, wait_until

SWEEP = """
import json, os, time
from accelbus.tracking import GeneralTracker

class Sweep(GeneralTracker):
    name = "sweep"
    requires_logging_directory = True

    def __init__(self, run_name, logging_dir, answer=None, fails=0, slow=0.0):
        super().__init__()
        self.directory, self.answer, self.fails, self.slow = logging_dir, answer, fails, slow
        self.stored = None

    @property
    def tracker(self):
        return self.directory

    def start(self):
        time.sleep(self.slow)

    def store_init_configuration(self, values):
        self.stored = values
        with open(os.path.join(self.directory, "stored"), "a") as file:
            file.write(json.dumps(values) + "\\n")

    def resolved_config(self):
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the server is away")
        if self.stored is None:
            return self.answer and {**self.answer, "best": float("inf")}
        return {"saw": self.stored, **self.answer}
"""
SETTINGS = "log_with=['jsonl', 'sweep:Sweep'], config_from='sweep:Sweep'"
TRY = """
    import json
    try:
        run = accelbus.init(config={config}, {settings}, init_kwargs={{'sweep:Sweep': {arguments}}})
    except accelbus.RequiredTrackerError as error:
        say(f"refused: {{error}}")
    else:
        say(json.dumps(run.config))
        run.log({{"loss": run.config.get("lr", 0)}}, step=1)
        run.finish()
"""


@pytest.fixture
def sweep():
    """A job with the tracker beside its script."""
    with running_job(**QUICK) as job:
        (job.root / "sweep.py").write_text(SWEEP)
        yield job


def script(config="None", settings=SETTINGS, **arguments) -> str:
    return TRY.format(config=config, settings=settings, arguments=repr(arguments))


def configs(job: Job, name: str = "jsonl/config.json") -> dict:
    return json.loads((job.run_dir / name).read_text())


def test_every_rank_has_what_the_tracker_resolved(sweep: Job) -> None:
    """Nested values are merged leaf by leaf into each rank's own."""
    ranks = sweep.run(
        script(
            "{'lr': 0.1, 'model': {'width': 8, 'depth': 2}, 'rank': int(os.environ['RANK'])}", answer={"lr": 0.5, "model": {"depth": 9}}
        ),
        ranks=2,
    )
    found = [json.loads(rank.lines[0]) for rank in ranks]
    assert [config.pop("rank") for config in found] == [0, 1]
    given = {"lr": 0.1, "model": {"width": 8, "depth": 2}, "rank": 0}
    assert found == [{"lr": 0.5, "model": {"width": 8, "depth": 9}, "saw": given}] * 2
    sweep.wait_for_end()
    assert sweep.points() == {("loss", 1): 0.5}


def test_the_other_trackers_get_the_resolved_configuration(sweep: Job) -> None:
    """A sweep's choice is what the run was made with, wherever one looks; the tracker itself is told it once more, as it said."""
    sweep.run(script("{'lr': 0.1, 'seed': 1}", answer={"lr": 0.25}))
    sweep.wait_for_end()
    kept = configs(sweep)
    assert (kept["lr"], kept["seed"]) == (0.25, 1)
    stored = [json.loads(line) for line in next(sweep.run_dir.rglob("stored")).read_text().splitlines()]
    assert [config["lr"] for config in stored] == [0.1, 0.25]


def test_a_run_without_a_configuration_gets_the_tracker_s(sweep: Job) -> None:
    """The tracker is not waited for to be told one that never comes; numbers that JSON has not arrive as they are."""
    ranks = sweep.run(script(answer={"lr": 0.5, "best": "inf"}), ranks=2)
    assert [rank.lines[0] for rank in ranks] == ['{"lr": 0.5, "best": Infinity}'] * 2, ranks[0].stderr


def test_a_tracker_that_answers_late_is_waited_for(sweep: Job) -> None:
    """A slow start and failures at first are no reason to go on without it."""
    ranks = sweep.run(script("{'lr': 0.1}", answer={"lr": 0.5}, slow=0.5, fails=2), ranks=2, ACCELBUS_RETRY_FIRST="0.1")
    assert [json.loads(rank.lines[0])["lr"] for rank in ranks] == [0.5, 0.5]


def test_no_rank_starts_without_an_answer(sweep: Job) -> None:
    """All raise under one deadline, with the tracker's own reason."""
    ranks = sweep.run(
        script("{'lr': 0.1}", answer={"lr": 0.5}, fails=1000),
        ranks=2,
        ACCELBUS_REQUIRE_TIMEOUT="2",
        ACCELBUS_LINGER="0",
        ACCELBUS_ACK_TIMEOUT="2",
    )
    for rank in ranks:
        assert rank.lines[0].startswith("refused: config_from='sweep:Sweep': sweep:Sweep has not said what the configuration is")
        assert "ConnectionError: the server is away" in rank.lines[0]


def test_a_tracker_that_resolves_nothing_is_said_at_once(sweep: Job) -> None:
    """JSONL has no sweeps: nobody waits two minutes to learn that."""
    (rank,) = sweep.run(script("{'lr': 0.1}", settings="log_with=['jsonl', 'sweep:Sweep'], config_from='jsonl'"), ACCELBUS_LINGER="0")
    assert rank.lines == ["refused: config_from='jsonl': jsonl: this tracker resolves no configurations"]


def test_a_resumed_run_is_resolved_anew(sweep: Job) -> None:
    """The configuration of the new attempt is what the tracker sees, not the old one that a cursor holds."""
    sweep.run(script("{'lr': 0.1, 'seed': 1}", answer={"lr": 0.5}))
    sweep.wait_for_end()
    (rank,) = sweep.run(script("{'lr': 0.2, 'seed': 2}", answer={"lr": 0.7}))
    config = json.loads(rank.lines[0])
    assert (config["lr"], config["seed"], config["saw"]["seed"]) == (0.7, 2, 2)


def test_a_worker_that_is_killed_while_it_is_asked_is_asked_again(sweep: Job) -> None:
    """The answer is not lost with the process that was to give it."""
    (rank,) = sweep.start(script("{'lr': 0.1}", answer={"lr": 0.5}, slow=1.0))
    pid = wait_until(lambda: sweep.worker_pids("sweep:Sweep"), what="a worker")[0]
    os.kill(pid, signal.SIGKILL)
    rank.wait()
    assert json.loads(rank.lines[0])["lr"] == 0.5, rank.stderr


def test_a_sweep_of_wandb_reaches_every_rank(sweep: Job) -> None:
    """As its agent starts a trial, without a network: the real library, its file of parameters, its variables."""
    pytest.importorskip("wandb")
    parameters = sweep.root / "parameters.yaml"
    parameters.write_text("wandb_version: 1\nlr:\n  value: 0.5\nmodel:\n  value:\n    depth: 7\n")
    ranks = sweep.run(
        script(
            "{'lr': 0.1, 'seed': 3, 'model': {'depth': 2, 'width': 8}}",
            settings="log_with=['jsonl', 'wandb', 'sweep:Sweep'], config_from='wandb'",
        ),
        ranks=2,
        WANDB_MODE="offline",
        WANDB_SWEEP_ID="s1",
        WANDB_SWEEP_PARAM_PATH=str(parameters),
    )
    resolved = {"lr": 0.5, "seed": 3, "model": {"depth": 7, "width": 8}}
    assert [json.loads(rank.lines[0]) for rank in ranks] == [resolved] * 2, ranks[0].stderr
    assert configs(sweep) == resolved
