"""Media, statements and options, from a journal to a tracker in a real worker process."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import Any

import pytest

from accelbus.config import SinkOptions
from accelbus.delivery.cursor import read_cursor
from accelbus.events import ConsoleLines, MetricDefinition, Metrics, RunFacts, Summary
from accelbus.media import Html, Image
from tests.integration.delivery.test_supervisor import serving
from tests.support.deliveries import Run, kill, until

GALLERY = "tests.support.gallery:GalleryTracker"
PAGE = Html("<b>small</b>")


def gallery(tmp_path, *, ranks: int = 1, **arguments: Any) -> Run:
    """Return a run of one rank, so that nothing waits for another one."""
    run = Run(tmp_path, GALLERY, ranks=ranks, **arguments)
    run.start()
    return run


def media(run: Run) -> list[tuple[int, str]]:
    return [(line["step"], line["key"]) for line in run.calls("media.jsonl")]


def letters(run: Run) -> list[dict[str, Any]]:
    path = run.dir.sink(run.sink) / "dead_letters.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_media_small_and_large_reach_their_hook(tmp_path):
    """In an event or in a file of its own, bytes as they were, with the time at which they were logged."""
    run = gallery(tmp_path)
    run.log(1)
    logged = time.time_ns()
    run.media(1, page=PAGE, picture=Image([[[index % 256, 0, 0] for index in range(100)] for _ in range(100)]))
    async with serving(run) as served:
        status = await served.finished()
    assert [(line["key"], line["kind"], line["bytes"]) for line in run.calls("media.jsonl")] == [
        ("page", "html", 12),
        ("picture", "image", 30000),
    ]
    assert all(0 <= line["time_ns"] - logged < 10**10 for line in run.calls("media.jsonl"))
    assert run.merged() == run.expected(1)
    assert (status.media, status.media_waiting) == (2, 0)


async def test_an_image_that_is_refused_takes_no_number_with_it(tmp_path):
    """It alone is retried and becomes a dead letter; the numbers of its step, and the other image, are taken once."""
    run = gallery(tmp_path, refuses_media=("bad",))
    run.log(*range(5))
    run.media(2, bad=PAGE, good=PAGE)
    run.media(3, good=PAGE)
    async with serving(run) as served:
        status = await served.finished()
    assert len(run.durable()) == 5
    assert run.merged() == run.expected(*range(5))
    assert sorted(media(run)) == [(2, "good"), (3, "good")]
    (letter,) = letters(run)
    assert (letter["step"], letter["values"]["bad"]["kind"], status.values.dead_lettered) == (2, "html", 1)


async def test_numbers_do_not_wait_for_media(tmp_path):
    """While one upload after the other takes its time, what is logged arrives and is behind the cursor."""
    run = gallery(tmp_path, seconds_per_media=0.4)
    run.media(*range(8), page=PAGE)
    async with serving(run) as served:
        await until(lambda: media(run), "the first of them")
        for step in range(8):
            run.log(step)
        await served.delivered(*range(8))
        await until(lambda: served.status.values.delivered >= 16, "a cursor")
        waiting = served.status.media_waiting
        assert waiting > 0
        cursor = read_cursor(run.dir.sink(run.sink))
        assert cursor is not None
        assert len(cursor.media) >= waiting
        await served.finished()
    assert media(run) == [(step, "page") for step in range(8)]


async def test_a_worker_that_is_killed_while_media_wait_loses_and_repeats_no_number(tmp_path):
    """What waited is in the cursor; exactly-once trackers stay exactly-once."""
    run = gallery(tmp_path, seconds_per_media=0.3)
    run.log(*range(20))
    run.media(*range(6), page=PAGE)
    async with serving(run) as served:
        await until(lambda: (cursor := read_cursor(run.dir.sink(run.sink))) is not None and 0 < len(cursor.media) < 6, "some wait")
        kill(await served.worker())
        await served.finished()
    assert len(run.durable()) == 20
    assert {step for step, _ in media(run)} == set(range(6))


async def test_a_store_for_files_that_is_down_holds_up_no_number(tmp_path):
    """The breaker of media is theirs alone; they come when the store is back."""
    up = tmp_path / "up"
    run = gallery(tmp_path, until=str(up))
    run.media(*range(8), page=PAGE)
    async with serving(run) as served:
        await served.state("retrying")
        run.log(*range(10))
        await served.delivered(*range(10))
        up.touch()
        status = await served.finished()
    assert sorted(media(run)) == [(step, "page") for step in range(8)]
    assert status.dead_letters == 0


@pytest.mark.parametrize("bad", ["hangs_on", "dies_on"])
async def test_an_image_that_ends_its_workers_is_a_dead_letter(tmp_path, bad):
    """By its own deadline, or by its crash; it is named, and nothing else is blamed for it."""
    run = gallery(tmp_path, **{bad: "bad"})
    run.log(*range(5))
    run.media(2, bad=PAGE)
    run.media(3, good=PAGE)
    async with serving(run, tuning={"media_deadline": 0.3}) as served:
        await until(lambda: (3, "good") in media(run), run.worker_log)
        status = await served.finished()
    assert run.merged() == run.expected(*range(5))
    assert [(letter["step"], list(letter["values"])) for letter in letters(run)] == [(2, ["bad"])]
    assert status.values.dead_lettered == 1


async def test_an_image_during_which_others_kill_workers_is_not_blamed_for_it(tmp_path):
    """The kernel short of memory, or an operator: it is tried again, and arrives."""
    run = gallery(tmp_path, dies_on="large", dies_by=signal.SIGKILL, deaths=5)
    run.log(*range(5))
    run.media(2, large=PAGE)
    run.media(3, good=PAGE)
    async with serving(run) as served:
        status = await served.finished()
    assert sorted(media(run)) == [(2, "large"), (3, "good")]
    assert (letters(run), status.restarts) == ([], 5)


async def test_an_image_that_no_machine_has_the_memory_for_is_a_dead_letter_in_the_end(tmp_path):
    """Nobody but the kernel ends its workers; the sink goes on without it."""
    run = gallery(tmp_path, dies_on="large", dies_by=signal.SIGKILL)
    run.log(*range(5))
    run.media(2, large=PAGE)
    run.media(3, good=PAGE)
    async with serving(run, tuning={"kills_of_row": 4}) as served:
        await until(lambda: (3, "good") in media(run), run.worker_log)
        await served.finished()
    assert [(letter["step"], list(letter["values"])) for letter in letters(run)] == [(2, ["large"])]


async def test_what_ranks_say_of_the_run_is_told_and_told_again_after_a_restart(tmp_path):
    """A fresh tracker object learns everything but what was printed."""
    run = gallery(tmp_path, ranks=2)
    run.write(1, [Summary(1, {"best": 1}), MetricDefinition(1, "eval/*", axis="epoch", summary="max", goal="maximize")])
    run.write(0, [Summary(1, {"best": 2, "note": "x"}), RunFacts(1, {"git": {"commit": "abc"}}), ConsoleLines(1, ["hello"])])
    said = [
        ["define", "eval/*", {"axis": "epoch", "summary": "max", "goal": "maximize"}],
        ["facts", {"hosts": {"host": [0, 1]}, "git": {"commit": "abc"}}],
        ["summary", {"best": 2, "note": "x"}],
        ["console", ["hello"]],
    ]
    async with serving(run) as served:
        await until(lambda: run.calls("told.jsonl") == said, lambda: str(run.calls("told.jsonl")))
        # Not the first one, which is written before the tracker starts.
        await until(
            lambda: (cursor := read_cursor(run.dir.sink(run.sink))) is not None and cursor.summary.values and not cursor.console, "a cursor"
        )
        kill(await served.worker())
        await until(lambda: run.calls("told.jsonl")[4:] == said[:3], lambda: str(run.calls("told.jsonl")))
        await served.finished()


async def test_a_tracker_gets_what_its_options_say(tmp_path):
    """Keys chosen and renamed, keyword arguments passed, secrets kept; what was left out is filtered in the books."""
    run = gallery(tmp_path)
    run.record.sink_options[run.sink] = SinkOptions(exclude=("acc",), rename={"loss": "train/loss"}, redact=("*key",))
    run.record.log_kwargs[run.sink] = {"commit": False, "by": "init"}
    run.config(0, {"lr": 0.1, "api_key": "secret"})
    run.log(1)
    run.write(
        0, [Metrics(time.time_ns(), 2, {"lr": 0.5}, 0, (run.sink,), {run.sink: {"commit": True}}), Metrics(1, 2, {"x": 1}, 0, ("other",))]
    )
    run.logged[0] += 2
    async with serving(run) as served:
        status = await served.finished()
    assert run.merged() == {1: {"train/loss": 1.0}, 2: {"lr": 0.5}}
    assert run.calls("keywords.jsonl") == [
        {"step": 1, "commit": False, "by": "init"},
        {"step": 2, "commit": True, "by": "init"},
    ]
    assert run.calls("configs.jsonl")[-1] == {"lr": 0.1, "api_key": "<redacted>"}
    assert (status.values.filtered, status.values.delivered) == (2, 2)


async def test_the_trackers_variables_are_set_before_it_starts_unless_the_user_has_set_them(tmp_path):
    """Caches go below the sink's own directory; what the environment says already stays."""
    run = gallery(tmp_path)
    environ = {**os.environ, "GALLERY_MODE": "online", "GALLERY_KEY": "k"}
    async with serving(run, environ=environ) as served:
        await served.finished()
    cache = run.dir.sink(run.sink) / "state" / "cache"
    assert run.calls("environ.jsonl") == [{"GALLERY_CACHE": str(cache), "GALLERY_MODE": "online", "GALLERY_KEY": "k"}]
    assert cache.parent.is_dir()


async def test_kills_at_any_moment_lose_no_media_and_repeat_no_number(tmp_path):
    """Small and large media between rows, with the worker killed again and again."""
    chance = random.Random(5)
    run = gallery(tmp_path, seconds_per_media=0.02)
    sizes: dict[int, int] = {}
    killed = 0
    async with serving(run) as served:
        for turn in range(6):
            for step in range(30 * turn, 30 * turn + 30):
                run.log(step)
                if step % 3 == 0:
                    sizes[step] = chance.choice([3, 40_000])
                    run.media(step, page=Html("x" * sizes[step]))
            # Long enough for a cursor: what many workers died of in a row would be taken for deadly.
            enough = chance.randrange(7, 10)
            await until(
                lambda enough=enough, killed=killed: served.status.media >= enough and served.status.pid != killed, "media are taken"
            )
            killed = served.status.pid
            kill(killed)
        await served.finished()
    assert [row["step"] for row in run.durable()] == list(range(180))
    found = {line["step"]: line["bytes"] for line in run.calls("media.jsonl")}
    assert found == sizes, (set(sizes) - set(found), letters(run), run.worker_log()[-4000:])
    assert not letters(run)
