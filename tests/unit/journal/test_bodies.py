"""Decoding what is stored: the quick way, and event by event when one of them is bad."""

from __future__ import annotations

import datetime as dt
import math
import threading

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from accelbus import frame
from accelbus.events import ConfigUpdate, Metrics, ProducerState, RunClosed, RunEnd, RunStart, Tick
from accelbus.journal.bodies import FlatMetrics, decode_events, decode_records
from accelbus.journal.spans import array_length, array_spans
from accelbus.values import flatten
from tests.support.journals import encode, start

GOOD = Metrics(1, 2, {"a": 1.5}, 3)
SCALARS = st.one_of(st.floats(allow_nan=False), st.integers(-(2**63), 2**64 - 1), st.text(), st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3), max_leaves=8
)


def body_of(*events):
    encoded = [event if isinstance(event, bytes) else encode(event) for event in events]
    return memoryview(frame.join_events(encoded, len(encoded)))


def nested(depth):
    """An event whose value is nested *depth* levels deep, as bytes."""
    return b"\x95\x01\x01\x02\x81\xa1x" + b"\x91" * depth + b"\x01\x00"


def test_every_event_comes_back():
    """Flat metrics are equal to what was logged, other events are themselves."""
    events = [start(0), ConfigUpdate(1, {"lr": {"base": 0.1}}), GOOD, Metrics(1, None, {}), RunEnd(1, "finished")]
    assert decode_events(body_of(*events)) == events
    assert [type(event) for event in decode_events(body_of(*events))] == [RunStart, ConfigUpdate, FlatMetrics, FlatMetrics, RunEnd]


def test_what_readers_yield_is_equal_to_what_was_logged_and_only_to_that():
    """Equality works both ways round, and differs where a field does."""
    (event,) = decode_events(body_of(GOOD))
    assert event == GOOD
    assert GOOD == event  # noqa: SIM300  the other way round is what is tested
    assert event != Metrics(1, 2, {"a": 1.5}, 4)
    assert event != "text"


def test_special_numbers_and_lists_need_no_slow_path():
    """nan, infinities, large integers, bools and lists of scalars arrive as they were."""
    values = {"nan": math.nan, "inf": -math.inf, "big": 2**64 - 1, "yes": True, "none": None, "text": "ä", "": 1, "list": [1, 2.5, None]}
    (event,) = decode_events(body_of(Metrics(1, 2, values)))
    assert str(event.values) == str(values)
    assert [type(value) for value in event.values.values()] == [type(value) for value in values.values()]


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(), VALUES, max_size=5), st.booleans())
def test_values_are_flat_however_they_were_logged(values, with_neighbour):
    """Quick path and slow path end in the same model: the flattened values."""
    events = [Metrics(1, 2, values), *([Metrics(1, 2, {"x": {"y": 1}})] if with_neighbour else [])]
    decoded = decode_events(body_of(*events))
    assert decoded[0].values == flatten(msgspec.msgpack.decode(encode(values), strict=False))
    assert decoded[1:] == ([Metrics(1, 2, {"x/y": 1})] if with_neighbour else [])


@pytest.mark.parametrize(
    "bad",
    [
        encode("text"),
        encode([77, 1, 2]),
        encode([1, "time", 2, {}]),
        encode([1, 1, 2]),
        encode([1, 1, 2, {"a": 1}])[:-3] + b"\xa1\xff\x01",
        encode({"an": "object"}),
        nested(100_000),
    ],
    ids=["text", "unknown", "types", "fields", "utf8", "map", "deep"],
)
def test_a_bad_event_costs_nobody_else(bad):
    """The events around it are decoded, nested ones too; in its place there is None."""
    deep_enough = Metrics(1, 2, {"x": {"y": [1, {"z": 2}]}})
    decoded = decode_events(body_of(GOOD, bad, deep_enough, bad, start(1)))
    assert decoded == [GOOD, None, Metrics(1, 2, {"x/y": [1, {"z": 2}]}), None, start(1)]


def test_a_list_nested_deeper_than_a_decoder_goes_costs_nobody_else():
    """A user logged it, the encoder took it; what this side cannot take does not take its neighbours along."""
    decoded = decode_events(body_of(GOOD, nested(900), GOOD))
    assert (decoded[0], decoded[2]) == (GOOD, GOOD)


def test_fields_that_a_newer_version_appended_are_ignored():
    """Fields are only ever appended, so this version reads what it knows."""
    newer = encode([1, 1, 2, {"a": 1.5}, 3, [], None, "new", {"more": 1}])
    assert decode_events(body_of(newer)) == [Metrics(1, 2, {"a": 1.5}, 3)]


def test_a_timestamp_becomes_text():
    """What other encoders write for a datetime is read like our own."""
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    (event,) = decode_events(body_of(msgspec.msgpack.encode((1, 1, 2, {"at": moment}, 0))))
    assert event.values == {"at": flatten({"at": moment})["at"]}


def test_an_impossible_timestamp_is_a_bad_event():
    """An extension that no datetime can hold raises something else than msgspec's own error in places."""
    bad = encode([1, 1, 2, {"a": 1}])[:-1] + b"\xc7\x0c\xff" + b"\xff" * 12
    assert decode_events(body_of(GOOD, bad))[0] == GOOD


def test_a_body_that_breaks_off_gives_what_is_whole():
    """The checksum was right, so a broken writer made it: its whole events are still good."""
    body = body_of(GOOD, GOOD, GOOD)
    assert decode_events(body[:-5]) == [GOOD, GOOD]
    assert decode_events(memoryview(b"\xc1")) == []


def test_records_come_back_and_a_bad_one_costs_itself():
    """A record of a later version is skipped, the end of the run is not."""
    records = [Tick(1), ProducerState(2, b"p" * 16, "dead", 5, "killed", {"full": 1}), RunClosed(3, "finished")]
    assert decode_records(body_of(*records)) == records
    assert decode_records(body_of(records[0], encode([60, 1]), records[2])) == [records[0], None, records[2]]


def test_events_and_records_do_not_pass_for_each_other():
    """A producer cannot close the run, a bus process cannot log."""
    assert decode_events(body_of(RunClosed(1, "failed"))) == [None]
    assert decode_records(body_of(GOOD)) == [None]


def test_any_array_header_will_do():
    """The frame format writes one form, but a writer in another language may choose a shorter one."""
    for count in (0, 1, 15, 16, 70_000):
        body = memoryview(msgspec.msgpack.encode([None] * count))
        assert (array_length(body), len(array_spans(body))) == (count, count)
    assert [array_length(memoryview(body)) for body in (b"", b"\xc0", b"\xdd\0\0", b"\xdc\0", b"\x80")] == [-1] * 5


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(VALUES, st.binary(max_size=300), st.text(max_size=300), st.just(msgspec.msgpack.Ext(3, b"x" * 9))), max_size=20))
def test_spans_are_the_values(values):
    """Cut apart and decoded alone, each value is itself, whatever its type."""
    body = memoryview(msgspec.msgpack.encode(values))
    assert [msgspec.msgpack.decode(span, strict=False) for span in array_spans(body)] == msgspec.msgpack.decode(body, strict=False)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_bytes_that_are_no_events_do_no_harm(data, as_array):
    """Random bytes, or random bytes behind an array's header: no exception, nothing found that is not there."""
    body = memoryview(b"\xdd\0\0\0\x05" + data if as_array else data)
    assert len(decode_events(body)) <= len(data) + 15
    assert len(decode_records(body)) <= len(data) + 15


def test_lying_lengths_cost_nothing():
    """A map that claims four billion entries ends where the bytes end."""
    assert decode_events(body_of(GOOD, b"\xdf\xff\xff\xff\xff" + b"\x01" * 1000))[:1] == [GOOD]


def test_decoding_works_on_a_thread():
    """A reader may run beside others; decoding keeps no state."""
    results = []
    threads = [threading.Thread(target=lambda: results.append(decode_events(body_of(GOOD, b"\xc0")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [[GOOD, None]] * 4
