"""Reading one writer's directory: torn ends, damage, foreign files, and files that come and go."""

from __future__ import annotations

import logging
import os

import pytest
from hypothesis import given, settings, strategies as st

from accelbus import frame
from accelbus.config import Tuning
from accelbus.journal import follow, layout
from accelbus.journal.segments import Position, SegmentReader
from tests.support.journals import Clock, events_frame, segments, uuid, written

P = uuid(1)
TUNING = Tuning(torn_hold=2.0)
RANGES = [(1, 2), (3, 3), (4, 7)]


def frames(*ranges):
    return [events_frame(P, first, last) for first, last in ranges]


def ranges_of(rows):
    return [(row.frame.first_seq, row.frame.last_seq) for row in rows]


def reader_of(directory, **options):
    return SegmentReader(directory, tuning=TUNING, **options)


def read_all(reader, limit=2**20):
    rows = []
    while more := reader.read(limit):
        rows += more
    return ranges_of(rows)


@pytest.fixture
def segment(tmp_path):
    """One segment with three rows: its directory, its bytes and the offsets of its rows, the end included."""
    written(tmp_path / "w", *frames(*RANGES)).close()
    data = segments(tmp_path / "w")[0].read_bytes()
    _, offset = layout.parse_header(data)
    offsets = [offset]
    for raw in frames(*RANGES):
        offsets.append(offsets[-1] + layout.ROW_PREFIX_BYTES + len(raw))
    assert offsets[-1] == len(data)
    return tmp_path / "w", data, offsets


def replace(directory, data, number=1):
    (directory / layout.segment_name(number)).write_bytes(data)


def next_segment(directory, *ranges, number=2):
    """Put a good segment behind what is there."""
    other = directory.parent / "other"
    written(other, *frames(*ranges)).close()
    (directory / layout.segment_name(number)).write_bytes(segments(other)[0].read_bytes())


def test_a_directory_that_is_not_there_yet_is_empty(tmp_path):
    """A reader may come before its writer, and finds it when it comes."""
    reader = reader_of(tmp_path / "w")
    assert reader.read(1000) == []
    written(tmp_path / "w", *frames((1, 1)))
    assert ranges_of(reader.read(1000)) == [(1, 1)]
    assert (reader.read(1000), reader.is_at_end) == ([], True)


def test_reading_goes_on_where_it_stopped(tmp_path):
    """A position is all that is needed to go on, in another process too."""
    writer = written(tmp_path / "w", *frames((1, 1), (2, 2)), tuning=Tuning(segment_bytes=200))
    reader = reader_of(tmp_path / "w")
    first = reader.read(1)
    second = reader_of(tmp_path / "w", position=Position(*first[-1].position))
    writer.append(frames((3, 3)))
    assert (ranges_of(first), read_all(second)) == ([(1, 1)], [(2, 2), (3, 3)])


@pytest.mark.parametrize("limit", [1, 100, 1000, 2**20])
def test_the_limit_bounds_a_read_and_a_row_always_fits(tmp_path, limit):
    """Each time less than the limit and one row more, whatever the size of rows; not less, as long as there are any."""
    ranges = [(n, n + 3) for n in range(1, 80, 4)]
    written(tmp_path / "w", *frames(*ranges), tuning=Tuning(segment_bytes=1000))
    reader = reader_of(tmp_path / "w")
    rows = []
    while more := reader.read(limit):
        # The row that crosses the limit is read whole: giving it back would mean to read it twice.
        sizes = [layout.ROW_PREFIX_BYTES + len(row.frame.raw) for row in more]
        assert sum(sizes[:-1]) < limit
        assert sum(sizes) >= limit or reader.is_at_end
        assert not reader.is_at_end or more[-1].frame.last_seq == 80
        rows += more
    assert ranges_of(rows) == ranges


@pytest.mark.parametrize("closed", [False, True])
def test_cut_at_every_byte_the_whole_rows_remain(segment, closed):
    """Killed in the middle of a write: whatever the cut, whole rows are served, and in a live segment the rest is "not yet"."""
    directory, data, offsets = segment
    for cut in range(len(data) + 1):
        replace(directory, data[:cut])
        reader = reader_of(directory, closed=closed)
        whole = sum(end <= cut for end in offsets[1:])
        assert read_all(reader) == RANGES[:whole]
        if not closed:
            assert (dict(reader.corrupt), reader.skipped_bytes) == ({}, 0)
            replace(directory, data)
            assert read_all(reader) == RANGES[whole:]


def test_cut_at_every_byte_before_another_segment(segment, caplog):
    """Where a later segment exists, the torn end is final: it is counted, and reading goes on behind it."""
    directory, data, offsets = segment
    next_segment(directory, (10, 12))
    caplog.set_level(logging.CRITICAL)
    for cut in range(len(data) + 1):
        replace(directory, data[:cut])
        reader = reader_of(directory)
        whole = sum(end <= cut for end in offsets[1:])
        assert read_all(reader) == [*RANGES[:whole], (10, 12)]
        clean = cut in offsets or cut == 0
        assert sum(reader.corrupt.values()) == (0 if clean else 1)
        if cut > offsets[0]:
            assert reader.skipped_bytes == cut - max(offset for offset in offsets if offset <= cut)


def test_every_flipped_bit_costs_its_row_only(segment, caplog):
    """Whichever bit is wrong: one row is missing and counted, the others are served, in a segment that will not grow."""
    directory, data, offsets = segment
    caplog.set_level(logging.CRITICAL)
    for index in range(len(data)):
        for bit in range(0, 8, 3):
            replace(directory, data[:index] + bytes([data[index] ^ (1 << bit)]) + data[index + 1 :])
            reader = reader_of(directory, closed=True)
            hit = sum(offset <= index for offset in offsets) - 1
            expected = [range_ for number, range_ in enumerate(RANGES) if number != hit]
            assert (read_all(reader), sum(reader.corrupt.values())) == (expected, 1)


def test_zeros_in_the_middle_cost_the_rows_they_hit(segment):
    """A page that never reached the disk: the reader finds the next row by its magic."""
    directory, data, offsets = segment
    replace(directory, data[: offsets[0] + 5] + bytes(offsets[2] - offsets[0] - 5) + data[offsets[2] :])
    reader = reader_of(directory, closed=True)
    assert read_all(reader) == RANGES[2:]
    assert (dict(reader.corrupt), reader.skipped_bytes) == ({"row": 1}, offsets[2] - offsets[0])


def test_damage_in_a_live_segment_is_looked_at_again_before_it_is_skipped(segment):
    """On a network file system a later page may be visible first: the rows behind it wait, and nothing is lost when it comes."""
    directory, data, offsets = segment
    hole = data[: offsets[1]] + bytes(offsets[2] - offsets[1]) + data[offsets[2] :]
    clock = Clock()
    replace(directory, hole)
    reader = reader_of(directory, monotonic=clock.monotonic)
    assert read_all(reader) == RANGES[:1]
    clock.advance(1.9)
    assert read_all(reader) == []
    replace(directory, data)
    assert (read_all(reader), dict(reader.corrupt)) == (RANGES[1:], {})


def test_damage_in_a_live_segment_is_skipped_in_the_end(segment):
    """Real damage delays the rows behind it by ``torn_hold`` and no more."""
    directory, data, offsets = segment
    clock = Clock()
    replace(directory, data[: offsets[1] + 30] + b"?" + data[offsets[1] + 31 :])
    reader = reader_of(directory, monotonic=clock.monotonic)
    assert read_all(reader) == RANGES[:1]
    clock.advance(2)
    assert (read_all(reader), dict(reader.corrupt)) == (RANGES[2:], {"frame_crc": 1})


def test_rows_that_become_visible_during_the_wait_are_not_skipped_with_the_damage(segment):
    """Two pages are late, the second comes first: only what stays damaged is given up."""
    directory, data, offsets = segment
    clock = Clock()
    replace(directory, data[: offsets[0]] + bytes(offsets[2] - offsets[0]) + data[offsets[2] :])
    reader = reader_of(directory, monotonic=clock.monotonic)
    assert read_all(reader) == []
    clock.advance(1)
    replace(directory, data[: offsets[0]] + bytes(offsets[1] - offsets[0]) + data[offsets[1] :])
    assert read_all(reader) == []
    clock.advance(1)
    assert read_all(reader) == RANGES[1:]


def test_a_row_that_grows_behind_damage_is_found_wherever_it_was_cut(segment):
    """The search behind the damage stopped at the end of the file, in the middle of a row: it goes on from there."""
    directory, data, offsets = segment
    hole = data[: offsets[0]] + bytes(offsets[1] - offsets[0])
    for cut in range(offsets[1], offsets[2]):
        clock = Clock()
        replace(directory, hole + data[offsets[1] : cut])
        reader = reader_of(directory, monotonic=clock.monotonic)
        assert read_all(reader) == []
        replace(directory, hole + data[offsets[1] : offsets[2]])
        assert read_all(reader) == []
        clock.advance(2)
        assert read_all(reader) == RANGES[1:2]


def test_the_next_row_is_found_across_the_windows_of_the_search(segment, monkeypatch):
    """However long the damage is, a row that starts in one window and ends its prefix in the next is seen."""
    directory, data, offsets = segment
    monkeypatch.setattr(follow, "_WINDOW", 64)
    for length in range(1, 140):
        replace(directory, data[: offsets[1]] + bytes(length) + data[offsets[1] :])
        reader = reader_of(directory, closed=True)
        assert (read_all(reader), reader.skipped_bytes) == (RANGES, length)


def test_a_torn_end_is_not_searched_at_every_look(segment, monkeypatch):
    """A bus process that was killed leaves its torn end for ever; polling it must stay cheap."""
    directory, data, _ = segment
    replace(directory, data + bytes(3_000_000))
    reader = reader_of(directory)
    assert read_all(reader) == RANGES
    read = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: read.append(len(result := real(*args))) or result)
    assert reader.read(10_000) == []
    assert sum(read) < 50_000


def test_a_damaged_length_does_not_lead_astray(segment):
    """A prefix whose length was altered with a matching checksum cannot exist; one without is searched past."""
    directory, data, offsets = segment
    altered = bytearray(data)
    altered[offsets[0] + 4 : offsets[0] + 8] = (2**31).to_bytes(4, "little")
    replace(directory, bytes(altered))
    assert read_all(reader_of(directory, closed=True)) == RANGES[1:]


def test_values_that_look_like_rows_are_not_taken_for_rows(tmp_path):
    """Somebody logs the bytes of a journal: the frame around them is damaged, and still only real rows are found."""
    fake = layout.ROW_MAGIC + layout.pack_row_prefix(10, 1)[:16]
    payload = frame.pack(frame.EVENTS, fake * 50, producer=P, first_seq=1, count=1)
    written(tmp_path / "w", payload, *frames((2, 2))).close()
    path = segments(tmp_path / "w")[0]
    path.write_bytes(path.read_bytes().replace(b"ABF1", b"ABF?", 1))
    reader = reader_of(tmp_path / "w", closed=True)
    assert (read_all(reader), dict(reader.corrupt)) == ([(2, 2)], {"frame_magic": 1})


def test_a_damaged_header_costs_no_row(segment):
    """Nothing in the header is needed to read on: it is counted, the rows are found."""
    directory, data, _ = segment
    replace(directory, b"\xff" * 20 + data[20:])
    reader = reader_of(directory, closed=True)
    assert (read_all(reader), dict(reader.corrupt)) == (RANGES, {"segment_magic": 1})


def test_a_segment_of_a_newer_version_is_counted_and_what_is_understood_is_read(segment, caplog):
    """A newer writer's rows are skipped if they have another format; its neighbours are served, and it is said once."""
    directory, data, offsets = segment
    newer = data[:8] + b"\x02\x00" + data[10 : offsets[0]] + data[offsets[0] :].replace(layout.ROW_MAGIC, b"\xa5BR2")
    replace(directory, newer)
    reader = reader_of(directory)
    assert (read_all(reader), read_all(reader)) == ([], [])
    next_segment(directory, (8, 9))
    assert read_all(reader) == [(8, 9)]
    assert dict(reader.corrupt) == {"segment_version": 1}
    assert ["segment_version" in record.message for record in caplog.records] == [True]


def test_a_frame_of_a_newer_version_is_skipped_at_once(tmp_path):
    """It will never become readable, so nothing waits for it."""
    newer = bytearray(frames((2, 2))[0])
    newer[8] = 9
    writer = written(tmp_path / "w", *frames((1, 1)), bytes(newer))
    reader = reader_of(tmp_path / "w")
    assert (read_all(reader), dict(reader.corrupt)) == ([(1, 1)], {"frame_version": 1})
    writer.append(frames((3, 3)))
    assert read_all(reader) == [(3, 3)]


def test_the_same_trouble_is_one_line_and_a_count(segment, caplog):
    """Ten damaged rows do not fill the log."""
    directory, data, offsets = segment
    bad = data[offsets[1] : offsets[2] - 1] + b"?"
    replace(directory, data[: offsets[1]] + bad * 10 + data[offsets[2] :])
    reader = reader_of(directory, closed=True)
    assert read_all(reader) == [RANGES[0], RANGES[2]]
    # Neighbouring rows whose lengths are good are ten pieces of damage, or one: never more.
    assert 1 <= reader.corrupt["frame_crc"] <= 10
    assert len(caplog.records) == 1


def test_foreign_files_are_counted_once_and_left_alone(tmp_path, caplog):
    """A stray file beside the segments is no reason to stop, and nobody deletes it."""
    written(tmp_path / "w", *frames((1, 1)))
    (tmp_path / "w" / "notes.txt").write_text("mine")
    reader = reader_of(tmp_path / "w", closed=True)
    assert (read_all(reader), read_all(reader)) == ([(1, 1)], [])
    assert (dict(reader.corrupt), len(caplog.records)) == ({"foreign_file": 1}, 1)
    assert (tmp_path / "w" / "notes.txt").read_text() == "mine"


def test_a_foreign_file_under_a_segments_name_is_passed(tmp_path):
    """Its bytes are searched for rows, none is found, the next segment is read."""
    written(tmp_path / "w", *frames((1, 1), (2, 2)), tuning=Tuning(segment_bytes=10))
    segments(tmp_path / "w")[0].write_bytes(b"GIF89a" + bytes(range(256)) * 5000)
    reader = reader_of(tmp_path / "w")
    assert (read_all(reader), dict(reader.corrupt)) == ([(2, 2)], {"segment_magic": 1})


def test_an_empty_segment_is_no_damage(segment):
    """A writer that was killed right after creating its file wrote nothing and lost nothing."""
    directory, _, _ = segment
    replace(directory, b"", number=2)
    reader = reader_of(directory)
    assert read_all(reader) == RANGES
    next_segment(directory, (8, 8), number=3)
    assert (read_all(reader), dict(reader.corrupt)) == ([(8, 8)], {})


def test_pruned_segments_are_stepped_over(tmp_path):
    """Old segments may be removed before or while a reader is there; it goes on with the first one that is left."""
    written(tmp_path / "w", *frames(*((n, n) for n in range(1, 7))), tuning=Tuning(segment_bytes=10)).close()
    reader = reader_of(tmp_path / "w")
    assert ranges_of(reader.read(1)) == [(1, 1)]
    for path in segments(tmp_path / "w")[:3]:
        path.unlink()
    assert read_all(reader) == [(4, 4), (5, 5), (6, 6)]
    assert read_all(reader_of(tmp_path / "w")) == [(4, 4), (5, 5), (6, 6)]


def test_a_missing_number_in_between_is_found_out(tmp_path):
    """Numbers are dense, but a reader that waits for the next one looks into the directory now and then."""
    written(tmp_path / "w", *frames(*((n, n) for n in range(1, 5))), tuning=Tuning(segment_bytes=10)).close()
    segments(tmp_path / "w")[1].unlink()
    clock = Clock()
    reader = reader_of(tmp_path / "w", monotonic=clock.monotonic)
    found = read_all(reader)
    clock.advance(6)
    assert [*found, *read_all(reader)] == [(1, 1), (3, 3), (4, 4)]


def test_a_file_that_cannot_be_read_now_is_tried_again(tmp_path, monkeypatch):
    """A network file system that answers EIO or ESTALE for a while loses nobody anything."""
    written(tmp_path / "w", *frames((1, 1), (2, 2)), tuning=Tuning(segment_bytes=10))
    reader = reader_of(tmp_path / "w")
    real = os.open

    def stale(*args):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "open", stale)
    assert (reader.read(1000), reader.read(1000)) == ([], [])
    monkeypatch.setattr(os, "open", real)
    assert read_all(reader) == [(1, 1), (2, 2)]
    assert dict(reader.corrupt) == {"unreadable": 2}


def test_a_segment_that_stays_unreadable_is_passed_when_the_next_one_can_be_read(tmp_path, monkeypatch):
    """While the writer lives: after a while, and not while the whole file system is away."""
    written(tmp_path / "w", *frames((1, 1), (2, 2), (3, 3)), tuning=Tuning(segment_bytes=10))
    real, bad = os.open, {str(path) for path in segments(tmp_path / "w")[1:]}

    def broken(path, *args):
        if str(path) in bad:
            raise OSError(5, "Input/output error")
        return real(path, *args)

    monkeypatch.setattr(os, "open", broken)
    clock = Clock()
    reader = reader_of(tmp_path / "w", monotonic=clock.monotonic)
    assert read_all(reader) == [(1, 1)]
    clock.advance(Tuning().unreadable_hold + 1)
    assert read_all(reader) == []
    bad.remove(str(segments(tmp_path / "w")[2]))
    assert read_all(reader) == [(3, 3)]


def test_a_pipe_under_a_segments_name_stops_nobody(tmp_path):
    """Opening it does not block; it is counted like any file that cannot be read."""
    (tmp_path / "w").mkdir()
    os.mkfifo(tmp_path / "w" / layout.segment_name(1))
    reader = reader_of(tmp_path / "w")
    assert (reader.read(1000), dict(reader.corrupt)) == ([], {"unreadable": 1})
    next_segment(tmp_path / "w", (5, 5))
    reader.closed = True
    assert read_all(reader) == [(5, 5)]


def test_a_reader_that_does_not_come_back_passes_what_it_cannot_read(tmp_path, monkeypatch):
    """Of a closed writer, a segment on a bad sector is given up and the next one served."""
    written(tmp_path / "w", *frames((1, 1), (2, 2), (3, 3)), tuning=Tuning(segment_bytes=10))
    real, bad = os.open, str(segments(tmp_path / "w")[1])

    def broken(path, *args):
        if str(path) == bad:
            raise OSError(5, "Input/output error")
        return real(path, *args)

    monkeypatch.setattr(os, "open", broken)
    reader = reader_of(tmp_path / "w", closed=True)
    assert (read_all(reader), dict(reader.corrupt)) == ([(1, 1), (3, 3)], {"unreadable": 1})


def test_the_tail_is_read_once_more_after_a_later_segment_was_seen(tmp_path, monkeypatch):
    """Rows appended between two looks, right before the writer rolled, are not passed over."""
    writer = written(tmp_path / "w", *frames((1, 1)), tuning=Tuning(segment_bytes=400))
    reader = reader_of(tmp_path / "w")
    real, appended = os.pread, []

    def pread(*args):
        result = real(*args)
        if not result and not appended:
            appended.append(True)
            writer.append(frames((2, 2)))
            writer.append(frames((3, 9)))
        return result

    monkeypatch.setattr(os, "pread", pread)
    assert [*read_all(reader), *read_all(reader)] == [(1, 1), (2, 2), (3, 9)]
    assert len(segments(tmp_path / "w")) == 2


def test_no_file_stays_open(tmp_path):
    """A reader follows a thousand writers without a thousand descriptors."""
    written(tmp_path / "w", *frames((1, 1))).close()
    before = len(os.listdir("/proc/self/fd"))
    reader = reader_of(tmp_path / "w")
    read_all(reader)
    assert len(os.listdir("/proc/self/fd")) == before


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=6), st.binary(max_size=200))
def test_whatever_the_bytes_reading_ends(tmp_path_factory, parts, end):
    """Random bytes between good rows: no exception, no endless loop, every good row that is left whole is found or its neighbour took it."""
    directory = tmp_path_factory.mktemp("w")
    raw = frames((1, 1))[0]
    row = layout.pack_row_prefix(len(raw), 5) + raw
    header = layout.pack_header(layout.SegmentInfo(1, 1, "w", "h", "b"))
    replace(directory, header + b"".join(part + row for part in parts) + end)
    assert len(read_all(reader_of(directory, closed=True), limit=64)) == len(parts)
    assert len(read_all(reader_of(directory), limit=64)) <= len(parts)


def test_a_live_writer_is_followed(tmp_path):
    """Reading between every two appends yields each row as soon as it is there."""
    writer = written(tmp_path / "w", tuning=Tuning(segment_bytes=500))
    reader = reader_of(tmp_path / "w")
    for n in range(1, 40):
        writer.append(frames((n, n)))
        assert read_all(reader) == [(n, n)]
