"""Trackers whose service refuses a row after it was handed over, and trackers that have something to say."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from accelbus.events import Summary
from tests.integration.delivery.test_supervisor import serving
from tests.support.deliveries import Run


def letters(run: Run) -> list[dict[str, Any]]:
    path = run.dir.sink(run.sink) / "dead_letters.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_what_the_service_refuses_is_a_dead_letter_and_not_delivered(tmp_path: Path) -> None:
    """A whole row, and one value of another; the books know which ranks they came from."""
    run = Run(tmp_path, "ServiceTracker", refuses_later=(2,), refuses_loss=(4,))
    run.start()
    run.log(*range(6))
    async with serving(run) as served:
        status = await served.finished()
    assert [row["step"] for row in run.durable()] == [0, 1, 3, 4, 5]
    assert [(letter["step"], letter["values"], letter["reason"]) for letter in letters(run)] == [
        (2, {"loss": 2.5, "acc": 0.5}, "422 \\udc80 no such row"),
        (4, {"loss": 4.5}, "not this value"),
    ]
    (said,) = [text for level, text, _ in served.notices if level == "warning"]
    assert "refuses some of what was logged" in said
    assert str(run.dir.sink(run.sink) / "dead_letters.jsonl") in said
    assert status.dead_letters == 2
    assert status.values.dead_lettered == 6
    assert status.values.delivered == 18


async def test_a_tracker_that_is_durable_at_its_end_only_may_refuse_rows_too(tmp_path: Path) -> None:
    """When it is finished."""
    run = Run(tmp_path, "FinishingService", refuses_later=(2,))
    run.start()
    run.log(*range(6))
    async with serving(run) as served:
        status = await served.finished()
    assert [letter["step"] for letter in letters(run)] == [2]
    assert (status.values.delivered, status.values.dead_lettered) == (20, 4)


async def test_a_notice_of_a_tracker_reaches_the_user_once(tmp_path: Path) -> None:
    """However often it is given and however often the worker is started; of very many the rest is in the log."""
    run = Run(tmp_path, "ServiceTracker", says="takes no", dies_at=(5,))
    run.start()
    run.log(*range(60))
    async with serving(run) as served:
        await served.finished()
    said = [text for level, text, _ in served.notices if level == "warning" and "takes no" in text]
    assert said[0] == f"{run.sink}: takes no \\udc80"
    assert len(said) == len(set(said)) == 20
    assert any("says more; see" in text for _, text, _ in served.notices)


async def test_a_summary_outlasts_an_outage_at_the_end_of_the_run(tmp_path: Path) -> None:
    """Longer than a refusal would be repeated; until then the sink is not finished and says why."""
    run = Run(tmp_path, "SummaryTracker", summary_failures=10)
    run.start()
    run.log(0)
    run.write(0, [Summary(time.time_ns(), {"best": 0.9})])
    run.end()
    run.close()
    async with serving(run) as served:
        status = await served.state("retrying", "finished")
        assert (status.state, status.last_error) == ("retrying", "ConnectionError: the service is away")
        status = await served.state("finished")
    assert run.calls("summary.jsonl") == [{"best": 0.9}]
    assert status.dead_letters == 0


async def test_a_summary_that_is_refused_is_a_dead_letter(tmp_path: Path) -> None:
    """With its values, and the user is told; the run ends without it."""
    run = Run(tmp_path, "SummaryTracker", refuses_summary=True)
    run.start()
    run.log(0)
    run.write(0, [Summary(time.time_ns(), {"best": 0.9})])
    async with serving(run) as served:
        status = await served.finished()
    (letter,) = letters(run)
    assert (letter["kind"], letter["values"], letter["reason"]) == ("summary", {"best": 0.9}, "ValueError: no summaries here")
    assert (status.dead_letters, status.values.dead_lettered) == (1, 0)
    assert any("kept in" in text and "dead_letters.jsonl" in text for _, text, _ in served.notices)


async def test_a_keyword_argument_that_a_tracker_does_not_know_is_spoken_of_once(tmp_path: Path) -> None:
    """Also by trackers that take whole batches: a typing error in ``log_kwargs`` has no effect that anybody would see."""
    run = Run(tmp_path, "DeclaringTracker")
    run.record.log_kwargs[run.sink] = {"epoch": 3, "comit": False}
    run.start()
    run.log(*range(3))
    async with serving(run) as served:
        await served.finished()
    assert run.calls("keywords.jsonl") == [{"epoch": 3}] * 3
    assert [text for level, text, _ in served.notices if level == "warning"] == [f"{run.sink}: log_kwargs: takes no 'comit'; left out"]
