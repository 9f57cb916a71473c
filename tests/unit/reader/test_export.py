"""Every raw event as a line of JSON."""

from __future__ import annotations

import itertools
import json
import math

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from accelbus import RunNotFoundError
from accelbus.blobs import BlobStore
from accelbus.config import Tuning
from accelbus.events import ConsoleLines, MetricDefinition, Metrics, RunFacts, Summary
from accelbus.media import Html, pack
from accelbus.reader.export import Export
from accelbus.rundir import RunDir
from accelbus.tracking import Row
from accelbus_sinks.jsonl import JSONLTracker
from tests.support.journals import pack as frame_of, start, uuid, written
from tests.support.runs import HandRun, finished_run


def exported(run: HandRun, **tuning) -> list[dict]:
    export = Export(run.dir, tuning=Tuning(**tuning))
    data = b"".join(export.chunks())
    lines = [json.loads(line, parse_constant=_no_constant) for line in data.splitlines()]
    assert export.lines == len(lines)
    return lines


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_every_event_of_every_rank_is_a_line(tmp_path):
    """Run, rank, attempt, sequence number, time, step and values, as logged."""
    run = finished_run(tmp_path, ranks=2, steps=2)
    lines = exported(run)
    assert len(lines) == 8
    assert [line["seq"] for line in lines if line["rank"] == 1] == [1, 2, 3, 4]
    metrics = [line for line in lines if "type" not in line]
    assert metrics[0] == {
        "run": "hand",
        "rank": 0,
        "attempt": 0,
        "seq": 2,
        "time": 1.0,
        "step": 1,
        "values": {"loss": 0.125, "accuracy": 0.5},
    }


def test_start_config_and_end_are_lines_with_a_type(run):
    """They say who the producer is, its hyperparameters and how it ended."""
    run.producer().config(model={"width": 256, "rate": math.inf}, note=None).end("failed").write()
    start, config, end = exported(run)
    assert (start["type"], start["world_size"], start["local_rank"], "step" in start) == ("start", 1, 0, False)
    assert (config["type"], config["values"]) == ("config", {"model": {"width": 256, "rate": "Infinity"}, "note": None})
    assert (end["type"], end["status"], end["reason"]) == ("end", "failed", "")


def test_what_a_run_says_of_itself_is_lines_with_a_type(run):
    """Its record, with what was too large for an event, what it printed, summary and definitions."""
    patch = BlobStore(run.dir.blobs, "p", quota=1 << 20).write(msgspec.msgpack.encode("+line\n" * 3))
    producer = run.producer()
    for event in (
        RunFacts(1, {"argv": ["train.py"], "git": None, "patch": patch}),
        ConsoleLines(1, ["epoch 1"], "stderr"),
        Summary(1, {"best": math.inf}),
        MetricDefinition(1, "eval/*", summary="max"),
    ):
        producer.add(event)
    producer.write()
    _, record, console, summary, definition = exported(run)
    assert (record["type"], record["values"]) == ("record", {"argv": ["train.py"], "git": None, "patch": "+line\n" * 3})
    assert (console["type"], console["stream"], console["lines"]) == ("console", "stderr", ["epoch 1"])
    assert (summary["type"], summary["values"]) == ("summary", {"best": "Infinity"})
    assert (definition["type"], definition["pattern"], definition["summary"]) == ("definition", "eval/*", "max")


def test_numbers_that_are_not_finite_differ_from_null_and_text(run):
    """The keys are named beside their texts; the line stays valid JSON."""
    run.producer().log(1, a=math.nan, b=math.inf, c=-math.inf, d=None, e="NaN", f=[1.0, math.nan]).write()
    line = exported(run)[1]
    assert line["values"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": None, "e": "NaN", "f": [1.0, "NaN"]}
    assert line["non_finite"] == ["a", "b", "c", "f"]


json_values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5), st.lists(st.floats(), max_size=3)
)


@given(values=st.dictionaries(st.text(max_size=4), json_values, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_values_are_written_as_the_jsonl_tracker_writes_them(tmp_path_factory, values):
    """One convention for both files."""
    root = tmp_path_factory.mktemp("convention")
    run = HandRun(root)
    producer = run.producer()
    producer.add(Metrics(1, 1, values)).write()
    run.bus.close()
    tracker = JSONLTracker("run", root / "tracker")
    tracker.start()
    tracker.log_batch([Row(1, dict(values), 1)])
    tracker.finish()
    theirs = json.loads((root / "tracker" / "metrics.jsonl").read_text())
    ours = exported(run)[1]
    assert (ours["values"], ours.get("non_finite")) == (theirs["values"], theirs.get("non_finite"))


def test_nested_values_are_flat_and_odd_keys_kept(run):
    """As trackers see them."""
    producer = run.producer()
    producer.add(Metrics(1, 1, {"a": {"b": 1, 2: {"c": "x"}}, "": 0, "\x00\n": True})).write()
    assert exported(run)[1]["values"] == {"a/b": 1, "a/2/c": "x", "": 0, "\x00\n": True}


def test_calls_without_a_step_say_which_call_they_were(run):
    """Steps are made by readers; the raw event has the count."""
    run.producer().add(Metrics(1, None, {"x": 1}, 7)).write()
    line = exported(run)[1]
    assert (line["step"], line["auto_step"]) == (None, 7)


def test_producers_of_another_role_say_so(run):
    """An evaluator of rank 0 is not the trainer of rank 0."""
    run.producer(role="evaluator").log(1).write()
    assert [line["role"] for line in exported(run)] == ["evaluator", "evaluator"]


def test_events_come_once_and_in_order_whatever_the_frames(run):
    """Resent and spilled frames overlap; bus records are no lines."""
    producer = run.producer().log(9)
    run.bus.joined(producer)
    producer.write(1, 6).write(4, 10)
    run.write("spill-x", producer.frame(2, 5))
    run.bus.close_run()
    assert [line["seq"] for line in exported(run)] == list(range(1, 11))


def test_a_long_journal_comes_in_pieces_of_bounded_size(run):
    """Memory does not grow with the run."""
    producer = run.producer().log(500)
    for first in range(1, 502, 50):
        producer.write(first, min(first + 49, 501))
    chunks = list(Export(run.dir, tuning=Tuning(read_events=100)).chunks())
    assert max(chunk.count(b"\n") for chunk in chunks) <= 100
    assert sum(chunk.count(b"\n") for chunk in chunks) == 501


def test_progress_grows_to_the_size_of_the_journal(run):
    """Bytes before the reader, of all bytes."""
    producer = run.producer().log(300)
    for first in range(1, 302, 10):
        producer.write(first, min(first + 9, 301))
    export = Export(run.dir, tuning=Tuning(read_events=50))
    seen = []
    for _ in export.chunks():
        seen.append(export.progress())
    assert all(before.done <= after.done for before, after in itertools.pairwise(seen))
    size = sum(path.stat().st_size for path in run.dir.journal.rglob("*.seg"))
    assert seen[-1] == (size, size)


def test_gaps_are_counted_once_everything_was_read(run):
    """Missing numbers between others, by rank; what may still come is none."""
    run.producer(0, ranks=2).log(9).write(1, 3).write(7, 10)
    run.producer(1, ranks=2).log(9).write(1, 6)
    export = Export(run.dir)
    lines = b"".join(export.chunks()).splitlines()
    assert len(lines) == 13
    assert export.gaps().events == {0: 3}
    assert not export.gaps().is_whole


def test_a_directory_without_a_journal_is_refused(tmp_path):
    """The error names it."""
    with pytest.raises(RunNotFoundError, match="has no journal"):
        Export(RunDir(tmp_path))


def test_media_and_what_is_for_some_trackers_are_written_out(tmp_path):
    """An image is its kind, format, meta and bytes, or the file that has them; whom an event is for is said."""
    run = RunDir(tmp_path / "run")
    store = BlobStore(run.blobs, "me", quota=10**9)
    run.path.mkdir()
    small, large = (pack(Html("x" * size).to_media(store), store) for size in (1, 10**5))
    events = [start(0, world_size=1), Metrics(1, 1, {"small": small, "large": large}, 0, ("wandb",), {"wandb": {"commit": True}})]
    written(run.journal / "bus-1", frame_of(events, producer=uuid(1), first_seq=1)).close()
    line = json.loads(b"".join(Export(run).chunks()).splitlines()[1])
    assert line["values"]["small"] == {"kind": "html", "format": "html", "meta": {"caption": None}, "data": "eA=="}
    assert (run.blobs / line["values"]["large"]["blob"]).stat().st_size == 10**5
    assert (line["to"], line["log_kwargs"]) == (["wandb"], {"wandb": {"commit": True}})
