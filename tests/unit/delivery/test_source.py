"""What a sink reads from the journal."""

from __future__ import annotations

import msgspec

from accelbus.config import Tuning
from accelbus.delivery.cursor import Cursor
from accelbus.delivery.source import Source
from accelbus.events import ProducerJoined, RunClosed
from accelbus.rundir import RunDir
from tests.support.journals import Clock, pack, records_frame, segments, start, uuid, written
from tests.support.views import log

RANK, BUS = uuid(1), uuid(9)


def run_of(tmp_path, *frames, writer="bus-1", clock=None):
    written(tmp_path / "run" / "journal" / writer, *frames, clock=clock or Clock()).close()
    return RunDir(tmp_path / "run")


def steps(first, last):
    """Return a frame of one rank's events *first* to *last*; event 1 is its RunStart."""
    events = [start(0, world_size=1) if seq == 1 else log(0, seq, {"a": float(seq)}).event for seq in range(first, last + 1)]
    return pack(events, producer=RANK, first_seq=first)


def reopened(run_dir, source):
    cursor = Cursor()
    source.save_to(cursor)
    copied = msgspec.msgpack.decode(msgspec.msgpack.encode(cursor), type=Cursor)
    return Source(run_dir, copied, tuning=Tuning())


def read_steps(batch):
    return [owed.row.step for owed in batch.rows]


def test_a_row_that_is_just_being_written_is_not_lost_by_finishing(tmp_path):
    """``sync`` of a live run may see the first half of a row; the next one reads it whole, and nothing twice."""
    run_dir = run_of(tmp_path, steps(1, 5), steps(6, 9))
    (segment,) = segments(run_dir.journal / "bus-1")
    whole = segment.read_bytes()
    for cut in (1, 30, 100):
        segment.write_bytes(whole[:-cut])
        source = Source(run_dir, Cursor(), tuning=Tuning())
        assert read_steps(source.read(100)) == [2, 3, 4, 5]
        assert read_steps(source.finish()) == []
        segment.write_bytes(whole)
        assert read_steps(reopened(run_dir, source).read(100)) == [6, 7, 8, 9]
        assert read_steps(source.read(100)) == [6, 7, 8, 9]


def test_what_was_held_back_behind_a_gap_comes_once(tmp_path):
    """When reading is finished the gap is given up; it may still be filled later."""
    run_dir = run_of(tmp_path, steps(1, 3), steps(6, 9))
    source = Source(run_dir, Cursor(), tuning=Tuning())
    assert read_steps(source.read(100)) == [2, 3]
    assert read_steps(source.finish()) == [6, 7, 8, 9]
    again = reopened(run_dir, source)
    assert read_steps(again.read(100)) == []
    run_of(tmp_path, steps(4, 5), writer="spill-1")
    assert read_steps(again.read(100)) == [4, 5]
    assert again.view.counts[0].read == 8


class TestClosing:
    def test_a_run_is_closed_by_its_last_word(self, tmp_path):
        """And open again when somebody joins after it."""
        clock = Clock()
        writer = written(tmp_path / "run" / "journal" / "bus-1", steps(1, 3), clock=clock)
        clock.advance(1)
        writer.append([records_frame(BUS, 1, RunClosed(1, "failed"))])
        source = Source(RunDir(tmp_path / "run"), Cursor(), tuning=Tuning())
        source.read(100)
        assert source.closed_as == "failed"
        clock.advance(1)
        writer.append([pack([start(0, world_size=1, launch=b"M" * 16)], producer=uuid(2), first_seq=1, launch=b"M" * 16)])
        source.read(100)
        assert source.closed_as is None

    def test_who_joined_in_the_same_row_came_after_the_word(self, tmp_path):
        """While the disk refuses, what a bus process has to say is kept, and written in one row; it was said in that order."""
        joined = ProducerJoined(2, uuid(2), 0, 1, 1, "trainer", "host", 1, b"M" * 16)
        run_dir = run_of(tmp_path, steps(1, 3), records_frame(BUS, 1, RunClosed(1, "failed"), joined))
        source = Source(run_dir, Cursor(), tuning=Tuning())
        source.read(100)
        assert source.closed_as is None

    def test_an_older_word_that_is_found_late_changes_nothing(self, tmp_path):
        """A writer's directory may appear after a newer one was read, on a network file system or after a salvage."""
        run_dir = run_of(tmp_path, steps(1, 3), records_frame(BUS, 1, RunClosed(1, "failed")), clock=Clock(2000.0))
        source = Source(run_dir, Cursor(), tuning=Tuning())
        source.read(100)
        late = pack([start(1, world_size=2)], producer=uuid(2), first_seq=1)
        run_of(tmp_path, late, writer="spill-2", clock=Clock(1000.0))
        assert source.read(100).items == 1
        assert source.closed_as == "failed"
