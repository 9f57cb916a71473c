"""The bytes of a segment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from accelbus.errors import SegmentError
from accelbus.journal.layout import (
    HEADER_LIMIT,
    ROW_PREFIX_BYTES,
    SegmentInfo,
    pack_header,
    pack_row_prefix,
    parse_header,
    parse_row_prefix,
    segment_name,
    segment_number,
)

INFO = SegmentInfo(number=1, created_ns=2, writer="bus-host-00", host="host", boot_id="boot")


def test_the_bytes_stay_the_same_for_ever():
    """Golden bytes: what version 1 wrote is read by every later version."""
    header = bytes.fromhex("414253471ce8cfe20100000019000000950102ab6275732d686f73742d3030a4686f7374a4626f6f74")
    prefix = bytes.fromhex("a54252316400000000000000000000104ba300b2")

    assert (pack_header(INFO), parse_header(header)) == (header, (INFO, len(header)))
    assert (pack_row_prefix(100, 2**60), parse_row_prefix(prefix)) == (prefix, (100, 2**60))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=30))
def test_a_prefix_reads_back_wherever_it_stands(length, received_ns, before):
    """Length and receive time survive, at any offset."""
    data = before + pack_row_prefix(length, received_ns)
    assert parse_row_prefix(data, len(before)) == (length, received_ns)


def test_no_damaged_or_cut_prefix_is_taken_for_one():
    """Every flipped bit and every cut is noticed: a wrong length would lead a reader astray."""
    good = pack_row_prefix(1234, 5678)
    flipped = [
        bytes(byte ^ (1 << bit) if at == index else byte for at, byte in enumerate(good)) for index in range(len(good)) for bit in range(8)
    ]
    assert [data for data in flipped if parse_row_prefix(data) is not None] == []
    assert [cut for cut in range(ROW_PREFIX_BYTES) if parse_row_prefix(good[:cut]) is not None] == []


def test_every_flipped_bit_of_a_header_is_noticed():
    """A damaged header never passes for a good one."""
    good = pack_header(INFO)
    for index in range(len(good)):
        for bit in range(8):
            damaged = bytes(byte ^ (1 << bit) if at == index else byte for at, byte in enumerate(good))
            with pytest.raises(SegmentError):
                parse_header(damaged)


@pytest.mark.parametrize(
    "data,reason",
    [
        (b"", "short"),
        (pack_header(INFO)[:-1], "short"),
        (b"GIF89a" + bytes(64), "magic"),
        (pack_header(INFO)[:8] + b"\x02" + pack_header(INFO)[9:], "version"),
        (pack_header(INFO)[:12] + (HEADER_LIMIT).to_bytes(4, "little") + bytes(HEADER_LIMIT), "header"),
        (pack_header(INFO)[:-1] + b"!", "crc"),
    ],
)
def test_a_header_that_is_none_says_why(data, reason):
    """The reason is what the counters show."""
    with pytest.raises(SegmentError) as raised:
        parse_header(data)
    assert raised.value.reason == reason


def test_names_sort_like_their_numbers():
    """Eight digits, more when there are more segments; anything else in the directory is no segment."""
    assert (segment_name(1), segment_number("00000001.seg")) == ("00000001.seg", 1)
    assert segment_number(segment_name(123_456_789)) == 123_456_789
    assert [segment_number(name) for name in ("1.seg", "00000001.seg.tmp", "x.seg", "notes.txt", "٠٠٠٠٠٠٠١.seg")] == [None] * 5
