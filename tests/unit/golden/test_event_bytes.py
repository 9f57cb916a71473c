"""The bytes of every event and record ever written: journals are read for ever."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from accelbus import events, frame
from accelbus.journal.bodies import decode_events, decode_records

SHAPES = {
    # As the hot path writes it, and with a counter instead of a step.
    "metrics-1": (events.Metrics(1, 2, {"loss": 0.5}), (events.METRICS_TAG, 1, 2, {"loss": 0.5})),
    "metrics-2": (events.Metrics(1, None, {"loss": 0.5}, 3), (events.METRICS_TAG, 1, None, {"loss": 0.5}, 3)),
    "metrics-3": (events.Metrics(1, 2, {"loss": 0.5}, 0, ("wandb",), {"wandb": {"commit": True}}), None),
    "config-1": (events.ConfigUpdate(1, {"lr": 0.1, "model": {"depth": 3}}), (2, 1, {"lr": 0.1, "model": {"depth": 3}})),
    "config-2": (events.ConfigUpdate(1, {"lr": 0.1}, ("wandb",)), None),
    "run-start-1": (events.RunStart(1, "run", 0, 2, 0, "host", 7, "trainer", b"L" * 16, None, "torchrun"), None),
    "run-end-1": (events.RunEnd(1, "failed", "ValueError"), None),
    "metric-definition-1": (events.MetricDefinition(1, "eval/*", "epoch", "max", "maximize", ("wandb",)), None),
    "summary-1": (events.Summary(1, {"best": 0.9}, ("wandb",)), None),
    "run-facts-1": (events.RunFacts(1, {"git": {"commit": "abc"}}), None),
    "console-lines-1": (events.ConsoleLines(1, ["one", "two"], "stderr"), None),
    "fill-1": (events.Fill(1, {7: 0.5, 8: [1.0, 2.0], 9: None}), None),
    "producer-joined-1": (events.ProducerJoined(1, b"p" * 16, 0, 2, 1, "trainer", "host", 7, b"L" * 16), None),
    "producer-state-1": (events.ProducerState(1, b"p" * 16, "dead", 9, "killed", {"full": 2}), None),
    "tick-1": (events.Tick(1), None),
    "run-closed-1": (events.RunClosed(1, "finished"), None),
}
"""{name of the shape: (what it means, what writes it where that is not the event itself)}"""

GOLDEN = Path(__file__).parent / "events.txt"
"""One line per shape: its name and its bytes. Lines are added, never changed."""

WRITTEN = dict(line.split() for line in GOLDEN.read_text().splitlines())
encode = msgspec.msgpack.Encoder().encode


@pytest.mark.parametrize("shape", WRITTEN)
def test_what_was_ever_written_is_still_read(shape):
    """An old journal means what it meant."""
    event = SHAPES[shape][0]
    decode = decode_records if isinstance(event, events.Record) else decode_events
    assert list(decode(memoryview(frame.join_events([bytes.fromhex(WRITTEN[shape])], 1)))) == [event]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_is_what_was_written(shape):
    """Bytes do not change by accident; a new shape gets a line of its own."""
    event, written = SHAPES[shape]
    assert encode(written or event).hex() == WRITTEN.get(shape)


def test_every_event_has_its_bytes_on_record():
    """No kind is forgotten."""
    kinds = {type(event) for event, _ in SHAPES.values()}
    assert kinds == set(events.Event.__args__) | set(events.Record.__args__)
