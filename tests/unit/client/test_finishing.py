"""What the main rank says at the end of a run."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from accelbus.client.finishing import Patience, wait_for_sinks
from accelbus.delivery.status import RankCounts, SinkStatus


def pump_with(*states: SinkStatus) -> Any:
    final = threading.Event()
    final.set()
    return SimpleNamespace(final=final, may_be_served=True, sink_states={state.sink: msgspec.to_builtins(state) for state in states})


def said_at_the_end(caplog: Any, *states: SinkStatus) -> list[str]:
    wait_for_sinks(pump_with(*states), Path("runs/one"), Patience(0.0, until_closed=True, is_last_chance=True))
    return list(caplog.messages)


def test_what_a_tracker_refused_is_said_with_its_place(caplog):
    """Also of a run whose trackers are all finished; values, or what was said about the run."""
    refusing = SinkStatus(sink="wandb", state="finished", dead_letters=2, ranks={0: RankCounts(read=9, delivered=4, dead_lettered=5)})
    stating = SinkStatus(sink="mlflow", state="finished", dead_letters=1)
    assert said_at_the_end(caplog, refusing, stating) == [
        "wandb refused 5 values; kept in runs/one/sinks/wandb/dead_letters.jsonl",
        "mlflow refused 1 statements about the run; kept in runs/one/sinks/mlflow/dead_letters.jsonl",
    ]


def test_trackers_that_took_everything_are_not_spoken_of(caplog):
    """Silence is the usual end."""
    assert said_at_the_end(caplog, SinkStatus(sink="wandb", state="finished", ranks={0: RankCounts(read=9, delivered=9)})) == []
