"""Media, definitions, summaries and single trackers, logged by ranks and received by a tracker in its worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accelbus.reader.audit import audit
from tests.support.job import QUICK, Job, running_job

REPOSITORY = Path(__file__).parents[2]
GALLERY = "tests.support.gallery:GalleryTracker"


@pytest.fixture
def galleries():
    """A job with two trackers that write down what they get; its scripts find NumPy as ``np``."""
    trackers = {name: GALLERY.replace("Gallery", prefix + "Gallery") for name, prefix in (("one", ""), ("two", "Second"))}
    with running_job(**QUICK, PYTHONPATH=str(REPOSITORY)) as job:
        kwargs = {sink: {"directory": str(job.root / name)} for name, sink in trackers.items()}
        job.environ |= {"ACCELBUS_LOG_WITH": ",".join(trackers.values()), "ACCELBUS_INIT_KWARGS": json.dumps(kwargs)}
        job.environ |= {"ONE": trackers["one"], "TWO": trackers["two"]}
        yield job


def lines(job: Job, name: str, tracker: str = "one") -> list[Any]:
    path = job.root / tracker / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def media(job: Job, tracker: str = "one") -> list[tuple[int, str, str]]:
    return sorted((line["step"], line["key"], line["kind"]) for line in lines(job, "media.jsonl", tracker))


def check(job: Job) -> None:
    for rank in job.ranks:
        assert rank.process.returncode == 0, rank.stderr
    books = audit(job.run_dir)
    assert books.balanced, (books.problems, job.bus_log())
    assert books.is_settled, books


def test_every_kind_comes_from_any_rank(galleries):
    """Each method has its hook, and two trackers get the same."""
    galleries.run(
        """
        import numpy as np
        with accelbus.init() as run:
            run.log({"loss": 1.0}, step=3)
            if run.rank == 1:
                picture = np.zeros((4, 4, 3), np.uint8)
                run.log_image("image", picture, caption="c")
                run.log_images({"batch": np.zeros((2, 3, 4, 4)), "list": [picture, (picture, "c")], "single": picture}, step=3)
                run.log_histogram("histogram", [1.0, 2.0, 3.0])
                run.log_table("table", ["a"], [[1], [2]])
                run.log_text("text", "words")
                run.log_images({"extra": picture}, dataformats="HWC")
                run.log_audio("audio", np.zeros(100), 100)
                run.log_video("video", np.zeros((2, 3, 4, 4)), fps=2)
                run.log_html("html", "<b>x</b>")
                os.makedirs("folder/inner", exist_ok=True)
                for name in ("folder/inner/file", "file"):
                    with open(name, "w") as file:
                        file.write("content")
                run.log_artifact("file", aliases="best")
                run.log_artifacts("folder", name="all")
                os.remove("file")
                accelbus.alert("title", "text", "warn")
                run.log({"wrapped": accelbus.Image(picture), "loss/one": 0.5, "nested": {"page": accelbus.Html("x")}})
                run.log({"loss": 1.0}, step=4)
            else:
                run.log({"loss": 1.0}, step=4)
        """,
        ranks=2,
    )
    check(galleries)
    expected = [
        (3, "alert/title", "alert"), (3, "artifact/all", "artifact"), (3, "artifact/file", "artifact"), (3, "audio", "audio"),
        (3, "batch/0", "image"), (3, "batch/1", "image"), (3, "extra", "image"), (3, "histogram", "histogram"), (3, "html", "html"), (3, "image", "image"),
        (3, "list/0", "image"), (3, "list/1", "image"), (3, "nested/page", "html"), (3, "single", "image"), (3, "table", "table"),
        (3, "video", "video"), (3, "wrapped", "image"),
    ]  # fmt: skip
    for tracker in ("one", "two"):
        assert media(galleries, tracker) == expected
        assert {"step": 3, "values": {"text": "words"}} in lines(galleries, "durable.jsonl", tracker) or any(
            row["values"].get("text") == "words" for row in lines(galleries, "durable.jsonl", tracker)
        )


def test_what_is_broken_never_raises_and_is_said_once(galleries):
    """Counted per value, warned about once per key; what is beside it arrives."""
    (rank,) = galleries.run(
        """
        import numpy as np
        with accelbus.init() as run:
            for step in range(3):
                run.log({"loss": 1.0, "bad": accelbus.Image(np.zeros((1, 2, 3, 4, 5)))}, step=step)
            run.log_image("worse", object())
            run.log_images(7)
            run.log_images({"some": [np.zeros((2, 2)), None, "no/such/file.png"]})
            run.log_histogram("empty")
            run.log_table("ragged", ["a"], [[1, 2], [3]])
            run.log_figure("none", None)
            run.log_artifact("no/such/file")
            run.log_artifact(None)
            run.alert("t", level="shouted")
            run.define_metric("loss", summary="median")
            run.define_metric("loss", goal="up")
            run.summarise(3)
            run.summary["image"] = accelbus.Html("x")
            run.log({"a": 1.0}, log_kwargs=3)
            run.log({"a": 1.0}, log_kwargs={"x": 3})
            say(str(sum(run.statistics().dropped.values())))
        """
    )
    check(galleries)
    assert media(galleries) == [(2, "some/0", "image")]
    assert rank.lines == ["19"]
    assert sum("'bad'" in line for line in rank.errors) == 1


def test_what_is_logged_beside_the_numbers_counts_no_step(galleries):
    """A rank without steps is counted per log call, and only per that."""
    galleries.run(
        """
        with accelbus.init() as run:
            run.alert("before anything")
            for value in range(3):
                run.log({"loss": value})
                run.log_html("page", str(value))
                run.log_text("note", str(value))
        """
    )
    check(galleries)
    points = {(row["step"], key): value for row in lines(galleries, "durable.jsonl") for key, value in row["values"].items()}
    assert points == {(step, "loss"): step for step in range(3)} | {(step, "note"): str(step) for step in range(3)}
    assert media(galleries) == [(0, "alert/before anything", "alert"), *((step, "page", "html") for step in range(3))]


def test_definitions_and_the_summary_arrive_merged(galleries):
    """All ranks say them; the lowest rank's word counts."""
    galleries.run(
        """
        import numpy as np
        with accelbus.init(config={"model": {"depth": 3}}) as run:
            accelbus.define_metric("eval/*", axis="epoch", summary="max", goal="max")
            run.summary["rank"] = run.rank
            run.summary.update({"best": np.float32(0.5), "nested": {"a": 1}})
            assert run.summary["best"] == 0.5 and len(run.summary) == 3
            run.log({"loss": 1.0}, step=1)
        """,
        ranks=2,
    )
    check(galleries)
    for tracker in ("one", "two"):
        told = lines(galleries, "told.jsonl", tracker)
        assert ["define", "eval/*", {"axis": "epoch", "summary": "max", "goal": "maximize"}] in told
        assert [said for said in told if said[0] == "summary"][-1] == ["summary", {"rank": 0, "best": 0.5, "nested/a": 1}]
        assert lines(galleries, "configs.jsonl", tracker)[-1] == {"model": {"depth": 3}}


def test_a_single_tracker_is_the_same_object_in_every_rank(galleries):
    """What is logged there reaches it alone; the books of the others call it filtered."""
    galleries.run(
        """
        with accelbus.init(config={"lr": 0.1}) as run:
            tracker = run.get_tracker(os.environ["ONE"])
            assert tracker.name == os.environ["ONE"]
            run.log({"loss": 1.0}, step=1)
            tracker.log({f"only/{run.rank}": 2.0}, step=1, commit=True)
            tracker.log_html(f"page/{run.rank}", "x")
            tracker.store_init_configuration({"only": {"rank": run.rank}})
            tracker.define_metric("only/*", summary="last")
            tracker.summary["only"] = 1
            tracker.start()
            tracker.finish()
            run.log({"loss": 1.0}, step=2, log_kwargs={os.environ["TWO"]: {"commit": False}})
        """,
        ranks=2,
    )
    check(galleries)

    def keys(tracker):
        return {key for row in lines(galleries, "durable.jsonl", tracker) for key in row["values"]}

    assert keys("one") == {"loss", "only/0", "only/1"}
    assert keys("two") == {"loss"}
    assert media(galleries, "one") == [(1, "page/0", "html"), (1, "page/1", "html")]
    assert media(galleries, "two") == []
    assert lines(galleries, "configs.jsonl", "one")[-1] == {"lr": 0.1, "only": {"rank": 0}}
    assert lines(galleries, "configs.jsonl", "two")[-1] == {"lr": 0.1}
    assert {"step": 1, "commit": True} in lines(galleries, "keywords.jsonl", "one")
    assert lines(galleries, "keywords.jsonl", "two") == [{"step": 2, "commit": False}]
    assert [said[0] for said in lines(galleries, "told.jsonl", "two")] == []


def test_what_the_options_of_one_tracker_leave_out_is_in_its_books(galleries):
    """Include, exclude, rename and interval are about that tracker; the audit of both balances."""
    galleries.run(
        """
        options = {os.environ["ONE"]: {"exclude": ["debug/*", "page"], "rename": {"train/*": "*"}, "min_interval": 1000}}
        with accelbus.init(sink_options=options, config={"key": "secret", "lr": 0.1}) as run:
            for step in range(5):
                run.log({"train/loss": 1.0, "debug/x": 1.0, "note": str(step)}, step=step)
            run.log_html("page", "x")
        """
    )
    check(galleries)
    points = {(key, row["step"]) for row in lines(galleries, "durable.jsonl") for key in row["values"]}
    assert points == {("loss", 0)} | {("note", step) for step in range(5)}
    assert media(galleries) == []
    assert media(galleries, "two") == [(4, "page", "html")]
    totals = {sink.sink: sink.total for sink in audit(galleries.run_dir).sinks.values()}
    one, two = (totals[galleries.environ[name]] for name in ("ONE", "TWO"))
    assert (one.delivered, one.filtered, two.delivered, two.filtered) == (6, 10, 16, 0)


def test_asking_for_what_is_not_there_says_what_is(galleries):
    """An unknown name names the known ones; the live object names the ways that work."""
    (rank,) = galleries.run(
        """
        with accelbus.init() as run:
            for unwrap, name in ((False, "wandbb"), (True, os.environ["ONE"])):
                try:
                    run.get_tracker(name, unwrap=unwrap)
                except accelbus.ConfigurationError as error:
                    say(str(error))
            try:
                accelbus.get_tracker(os.environ["ONE"]).tracker
            except accelbus.ConfigurationError as error:
                say(str(error))
        """
    )
    check(galleries)
    unknown, elsewhere, again = rank.lines
    assert unknown.startswith("this run has no tracker 'wandbb' (it has: tests.support.gallery:GalleryTracker, ")
    assert "inline=[" in elsewhere
    assert again == elsewhere


def test_a_run_that_is_off_takes_all_of_it():
    """Disabled, finished or another process's: no call raises."""
    script = """
        def use(run):
            for each in (run, run.get_tracker("wandb")):
                each.log({"a": 1.0}, step=1)
                each.log_html("a", "x")
                each.log_artifact(__file__)
                each.alert("a")
                each.define_metric("a")
                each.summary["a"] = 1
        use(accelbus.init(mode="disabled"))
    """
    with running_job(**QUICK) as job:
        (rank,) = job.start(script)
        assert rank.wait() == 0, rank.stderr
        assert not job.run_dir.exists()
