"""Decode the body of a stored frame: events of a producer, or records.

The usual frame is decoded in one call. Only when that fails is it taken apart, so that one bad event costs one event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from accelbus import blobs, pending
from accelbus.errors import CorruptDataError
from accelbus.events import (
    METRICS_TAG,
    AnyEvent,
    ConfigUpdate,
    ConsoleLines,
    Fill,
    MetricDefinition,
    Metrics,
    Record,
    RunEnd,
    RunFacts,
    RunStart,
    Scalar,
    Summary,
)
from accelbus.journal.spans import array_spans
from accelbus.values import flatten, readable


class FlatMetrics(Metrics, array_like=True, tag=METRICS_TAG, gc=False, eq=False):
    """`Metrics` whose values are known to be flat: what readers yield. Equal to any `Metrics` with the same fields."""

    time_ns: int
    step: int | None
    values: dict[str, Scalar | list[Scalar]]
    auto_step: int = 0
    sinks: tuple[str, ...] = ()
    log_kwargs: dict[str, dict[str, Any]] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metrics) and msgspec.structs.astuple(self) == msgspec.structs.astuple(other)

    __hash__ = None  # type: ignore[assignment]  # it is mutable


class PendingMetrics(FlatMetrics, array_like=True, tag=METRICS_TAG, gc=False, eq=False):
    """`FlatMetrics` some of whose values were on their way when it was written; `accelbus.journal.fills` brings them in later."""

    marks: dict[str, int] = msgspec.field(default_factory=dict)
    """{key: token}, beside ``values``"""


_Decode: TypeAlias = Callable[[Any], Any]
_FlatEvent: TypeAlias = FlatMetrics | ConfigUpdate | RunStart | RunEnd | MetricDefinition | Summary | RunFacts | ConsoleLines | Fill
_decode_events: Final[_Decode] = msgspec.msgpack.Decoder(list[_FlatEvent]).decode
_decode_flat_event: Final[_Decode] = msgspec.msgpack.Decoder(_FlatEvent).decode
_decode_any_metrics: Final[_Decode] = msgspec.msgpack.Decoder(Metrics).decode
_decode_records: Final[_Decode] = msgspec.msgpack.Decoder(list[Record]).decode
_decode_record: Final[_Decode] = msgspec.msgpack.Decoder(Record).decode

_REFUSED: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""ValueError for a timestamp no datetime can hold, RecursionError for a hostile depth; msgspec's own for the rest."""


def decode_events(body: memoryview, large_values: Path | None = None) -> Sequence[AnyEvent | None]:
    """Return the events of a body in order, None in the place of one that cannot be decoded; fewer when the body breaks off.

    Args:
        body: of an events frame.
        large_values: the run's directory of them; without it references stay what they are.
    """
    try:
        events: list[AnyEvent | None] = _decode_events(body)
    except _REFUSED:
        return [_decode_event(part, large_values) for part in array_spans(body)]
    return events


def decode_records(body: memoryview) -> Sequence[AnyEvent | None]:
    """Like `decode_events`, for records."""
    try:
        records: list[AnyEvent | None] = _decode_records(body)
    except _REFUSED:
        return [_attempt(_decode_record, part) for part in array_spans(body)]
    return records


def _decode_event(part: Any, large_values: Path | None) -> AnyEvent | None:
    event = _attempt(_decode_flat_event, part)
    return event if event is not None else _attempt(partial(_decode_nested, large_values), part)


def _decode_nested(large_values: Path | None, part: Any) -> FlatMetrics:
    event = _decode_any_metrics(part)
    values = flatten(event.values)
    if large_values is not None:
        for key, value in values.items():
            if type(value) is msgspec.msgpack.Ext and value.code == blobs.EXTENSION:
                values[key] = _large(value, large_values)
    marks = {key: token for key, value in values.items() if (token := pending.token_of(value)) is not None}
    for key in marks:
        del values[key]
    fields = (event.time_ns, event.step, values, event.auto_step, event.sinks, event.log_kwargs)
    return PendingMetrics(*fields, marks) if marks else FlatMetrics(*fields)  # type: ignore[arg-type]  # lists may be nested


def _large(reference: msgspec.msgpack.Ext, directory: Path) -> Any:
    try:
        return readable(blobs.load(bytes(reference.data), directory))
    except CorruptDataError as error:
        return f"(lost: {error})"


def _attempt(decode: _Decode, part: Any) -> AnyEvent | None:
    try:
        event: AnyEvent = decode(part)
    except _REFUSED:
        return None
    return event
