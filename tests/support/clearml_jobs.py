"""What tests of the ClearML tracker do in processes of their own: ``python -m tests.support.clearml_jobs JOB STATE_DIR``."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelbus.tracking import Row, RunInfo
from accelbus_sinks.clearml import ClearMLTracker


def tracker_of(state: Path, run_id: str = "run-1") -> ClearMLTracker:
    """Return a tracker that is not started."""
    tracker = ClearMLTracker("digits")
    tracker.run_info = RunInfo(run_id, "digits", "first", "sweep", ("baseline",), "why", state_dir=state, output_dir=state / "output")
    return tracker


def killed_inside_start(state: Path) -> None:
    """Die when the task exists and nothing of ours knows it."""
    from accelbus_sinks import _clearml_task

    _clearml_task._write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    tracker_of(state).start()


def whole_run(state: Path) -> dict[str, Any]:
    """Be refused, log a run that fails, open it again and leave."""
    ask("test.refuse")
    tracker = tracker_of(state)
    refusal = refused(tracker.start)
    ask("test.accept")
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1, "model": {"depth": 3}})
    rows = [Row(step, {"train_loss": float(step), "eval/loss": 0.5, "note": "ok", "bad": float("nan")}, step * 10**9) for step in range(3)]
    tracker.log_batch(rows)
    tracker.log_batch(rows)
    ask("test.refuse")
    row_was_refused = refused(lambda: tracker.log_batch(rows))
    ask("test.accept")
    tracker.summarise({"best": 0.25, "stage": "final"})
    task_id, url = tracker.tracker.id, tracker.url
    tracker.finish("failed")
    again = tracker_of(state)
    again.start()
    assert again.tracker.id == task_id
    return {"task": task_id, "url": url, "refusal": refusal, "row_was_refused": bool(row_was_refused)}


def import_and_run_by_agent(state: Path) -> dict[str, Any]:
    """Send an offline session to the server, as ClearML does it; then run as the task ``t``, as an agent does."""
    from clearml import Task
    from clearml.config.remote import override_current_task_id

    imported = Task.import_offline_session(os.environ["SESSION"])
    override_current_task_id("t")
    tracker = tracker_of(state, "another")
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1, "model": {"depth": 3, "name": "net"}, "seed": 1})
    resolved = tracker.resolved_config()
    tracker.store_init_configuration({**resolved, "warmup": 10})
    tracker.log_batch([Row(1, {"loss": 1.0}, 10**9)])
    task_id = tracker.tracker.id
    tracker.finish("finished")
    return {"imported": imported, "task": task_id, "config": resolved}


def configured_by_agent(state: Path) -> dict[str, Any]:
    """Run as the task ``t``, as an agent does, with no configuration of one's own."""
    from clearml.config.remote import override_current_task_id

    override_current_task_id("t")
    tracker = tracker_of(state, "another")
    tracker.start()
    resolved = tracker.resolved_config()
    tracker.finish("finished")
    return {"config": resolved}


def refused(call: Callable[[], object]) -> str:
    """Return what *call* raises."""
    try:
        call()
    except Exception as error:  # what the client raises is its own
        return str(error) or type(error).__name__
    return ""


def ask(call: str) -> None:
    """Tell the server of the test something."""
    urllib.request.urlopen(f"{os.environ['CLEARML_API_HOST']}/{call}").close()


if __name__ == "__main__":
    report = os.dup(1)
    os.dup2(2, 1)
    os.write(report, json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))).encode())
