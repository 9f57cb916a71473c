"""Output that somebody deletes, cuts or replaces while a run is delivered, and afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from accelbus.delivery.cursor import read_cursor
from accelbus.delivery.deliver import sync
from accelbus.delivery.output import check_output
from accelbus.delivery.supervisor import Supervisor
from accelbus.errors import OutputGoneError
from accelbus.rundir import RunRecord
from tests.support.deliveries import QUICK, Run, until
from tests.support.tensorboard_readers import scalars

SINKS = ("jsonl", "tensorboard")


class FileRun(Run):
    """A run whose trackers are those that write files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.sinks = SINKS
        self.record = RunRecord(run_id="run-1", project="digits", sinks=SINKS, world_size=self.ranks)
        self.dir.write_record(self.record)

    def synced(self) -> dict[str, Any]:
        return sync(self.dir, tuning=QUICK, timeout=60)

    def steps(self) -> dict[str, list[int]]:
        """Return {sink: steps of a metric in its files}."""
        lines = (self.dir.path / "jsonl" / "metrics.jsonl").read_text().splitlines()
        return {
            "jsonl": [line["step"] for line in map(json.loads, lines) if "loss" in line["values"]],
            "tensorboard": [step for step, key, *_ in scalars(self.dir.path / "tensorboard") if key == "loss"],
        }


def deleted(run: FileRun) -> None:
    for sink in SINKS:
        shutil.rmtree(run.dir.path / sink)


def _outputs(run: FileRun) -> Iterator[Path]:
    yield run.dir.path / "jsonl" / "metrics.jsonl"
    yield from (run.dir.path / "tensorboard" / "digits").glob("events.out.tfevents.[1-9]*")


def unlinked(run: FileRun) -> None:
    for path in _outputs(run):
        path.unlink()


def cut(run: FileRun) -> None:
    for path in _outputs(run):
        path.write_bytes(path.read_bytes()[:10])


@pytest.mark.parametrize("lose", [deleted, unlinked, cut])
@pytest.mark.parametrize("more", [False, True])
def test_output_lost_after_the_end_is_delivered_again(tmp_path, lose, more):
    """Whole, by the next one who delivers, whether or not there is something new for the trackers."""
    run = FileRun(tmp_path)
    run.start()
    run.log(*range(8))
    run.close()
    run.synced()
    lose(run)
    if more:
        run.start(attempt=1)
        run.log(*range(8, 12), attempt=1)
        run.close()
    states = run.synced()
    assert run.steps() == {sink: list(range(12 if more else 8)) for sink in SINKS}
    for state in states.values():
        assert (state.state, state.values.pending) == ("finished", 0)
        run.check_books(state)
        assert "delivered again" in run.worker_log(state.sink)


@pytest.mark.parametrize("lose", [deleted, unlinked, cut])
async def test_output_lost_under_a_live_run_is_delivered_again(tmp_path, lose):
    """At the next flush it is noticed, said, and everything comes again; nobody has to do anything."""
    run = FileRun(tmp_path)
    run.start()
    notices: list[str] = []
    supervisor = Supervisor(run.dir, run.record, tuning=QUICK, on_notice=lambda _, text, sink: notices.append(f"{sink} {text}"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        run.log(*range(8))
        await until(lambda: all(_has_cursor(run, sink) for sink in SINKS), "cursors that rely on the files")
        lose(run)
        run.log(*range(8, 12))
        run.close()
        await until(lambda: {state.state for state in supervisor.states().values()} == {"finished"}, "the end")
        with anyio.fail_after(20):
            await supervisor.stop()
    assert run.steps() == {sink: list(range(12)) for sink in SINKS}
    for sink, state in supervisor.states().items():
        run.check_books(state)
        assert any(notice.startswith(sink) and "delivered again" in notice for notice in notices)


def _has_cursor(run: FileRun, sink: str) -> bool:
    cursor = read_cursor(run.dir.sink(sink))
    return cursor is not None and any(length > 100 for length in cursor.checkpoint.get("files", {}).values())


def test_what_a_checkpoint_names_is_looked_for(tmp_path):
    """Relative to the logging directory or absolute; a checkpoint of a tracker that names nothing relies on nothing."""
    (tmp_path / "a").write_bytes(b"12345")
    check_output(tmp_path, {"files": {"a": 5, str(tmp_path / "a"): 3}})
    check_output(tmp_path / "gone", {"offset": 9})
    for name, length in (("a", 6), ("b", 1), ("a/b", 1)):
        with pytest.raises(OutputGoneError, match="delivered again"):
            check_output(tmp_path, {"files": {name: length}})
