"""Writing a journal: what counts as appended, what as durable, and what a failing disk does to it."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading

import pytest

from accelbus.config import Tuning
from accelbus.journal import layout
from accelbus.journal.segments import JournalWriter, SegmentReader
from tests.support.journals import Clock, events_frame, segments, uuid, written

P = uuid(1)
TUNING = Tuning()


def stored(directory, *, closed=False):
    """Return (first, last) of each frame that a reader finds."""
    rows = SegmentReader(directory, tuning=TUNING, closed=closed).read(2**30)
    return [(row.frame.first_seq, row.frame.last_seq) for row in rows]


def frames(*ranges):
    return [events_frame(P, first, last) for first, last in ranges]


class FaultyCalls:
    """Stands in for an ``os`` call: raises the next planned error, else does the real thing."""

    def __init__(self, monkeypatch, name):
        self._real = getattr(os, name)
        self.planned = []
        self.count = 0
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args):
        self.count += 1
        plan = self.planned.pop(0) if self.planned else None
        if isinstance(plan, OSError):
            raise plan
        return self._real(*args) if plan is None else plan(self._real, *args)


def disk_full():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken():
    return OSError(errno.EIO, os.strerror(errno.EIO))


def short(size):
    """Plan a writev that takes only *size* bytes."""
    return lambda real, descriptor, buffers: os.write(descriptor, b"".join(buffers)[:size])


def test_what_is_appended_is_read_back(tmp_path):
    """Frames come back as they are, with the receive time of their call."""
    clock = Clock(5)
    writer = written(tmp_path / "w", *frames((1, 3)), clock=clock)
    clock.advance(1)
    assert writer.append(frames((4, 4), (5, 9))) == 3

    rows = SegmentReader(tmp_path / "w", tuning=TUNING).read(2**20)
    assert [row.frame.raw for row in rows] == frames((1, 3), (4, 4), (5, 9))
    assert [row.received_ns for row in rows] == [5 * 10**9, 6 * 10**9, 6 * 10**9]


def test_nothing_is_created_before_the_first_append(tmp_path):
    """A producer that never spills leaves no directory behind; appending nothing creates nothing."""
    writer = written(tmp_path / "w", tuning=TUNING)
    assert (writer.append([]), writer.sync(), writer.mark) == (0, 0, 0)
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_files_belong_to_the_user_alone(tmp_path):
    """What is logged is nobody else's business, whatever the umask."""
    before = os.umask(0)
    try:
        written(tmp_path / "w", *frames((1, 1)))
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "w", *segments(tmp_path / "w"))] == [0o700, 0o600]


def test_a_segment_says_who_wrote_it(tmp_path):
    """Host, boot and writer are in the header."""
    written(tmp_path / "bus-x", *frames((1, 1)), clock=Clock(7))
    info, _ = layout.parse_header(segments(tmp_path / "bus-x")[0].read_bytes())
    assert (info.number, info.created_ns, info.writer, info.host) == (1, 7 * 10**9, "bus-x", os.uname().nodename)
    assert info.boot_id


def test_receive_times_never_go_back_and_never_stand_still(tmp_path):
    """The clock is set back an hour and later forth again: whatever waits for journal time to pass does not wait an hour."""
    clock, steady = Clock(5000), Clock(0)
    writer = JournalWriter(tmp_path / "w", tuning=TUNING, clock=clock, monotonic=steady)
    for number, (seconds, set_by) in enumerate([(0, 0), (5, -3600), (10, 0), (1, 3600), (1, 3600)], start=1):
        steady.advance(seconds)
        clock.advance(seconds + set_by)
        writer.append(frames((number, number)))
    rows = SegmentReader(tmp_path / "w", tuning=TUNING).read(2**20)
    assert [row.received_ns // 10**9 for row in rows] == [5000, 5005, 5015, 5016, 8617]
    writer.close()


def test_segments_are_rolled_and_no_row_spans_two(tmp_path):
    """Each segment can be read, pruned and copied alone; one call may fill several."""
    tuning = Tuning(segment_bytes=600)
    ranges = [(n, n) for n in range(1, 30)]
    writer = written(tmp_path / "w", tuning=tuning)
    writer.append(frames(*ranges))

    files = segments(tmp_path / "w")
    assert len(files) > 5
    assert max(path.stat().st_size for path in files) <= 600 + 100
    assert [path.name for path in files] == [layout.segment_name(n + 1) for n in range(len(files))]
    assert stored(tmp_path / "w") == ranges
    assert writer.statistics().bytes == sum(path.stat().st_size for path in files)


def test_a_frame_larger_than_a_segment_gets_one_of_its_own(tmp_path):
    """A frame is never cut and never refused."""
    writer = written(tmp_path / "w", *frames((1, 1), (2, 200), (201, 201)), tuning=Tuning(segment_bytes=512))
    assert len(segments(tmp_path / "w")) == 3
    assert stored(tmp_path / "w") == [(1, 1), (2, 200), (201, 201)]
    assert writer.mark == 3


def test_more_frames_than_one_system_call_takes(tmp_path):
    """IOV_MAX bounds a call of the kernel, not one of ours."""
    ranges = [(n, n) for n in range(1, 2000)]
    writer = written(tmp_path / "w", tuning=TUNING)
    assert writer.append(frames(*ranges)) == 1999
    assert stored(tmp_path / "w") == ranges


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    """The kernel may take less than it was given; nothing is lost or doubled."""
    calls = FaultyCalls(monkeypatch, "writev")
    calls.planned = [None, short(33)]
    writer = written(tmp_path / "w", tuning=TUNING)
    writer.append(frames((1, 2), (3, 4)))
    assert (stored(tmp_path / "w"), writer.mark) == ([(1, 2), (3, 4)], 2)


def test_another_writers_directory_is_refused(tmp_path):
    """An incarnation never appends to what another one wrote: two writers in one directory would tear each other's rows."""
    first = written(tmp_path / "w", *frames((1, 1)))
    second = JournalWriter(tmp_path / "w", tuning=TUNING)
    with pytest.raises(FileExistsError, match="another journal writer"):
        second.append(frames((2, 2)))
    first.append(frames((2, 2)))
    assert (stored(tmp_path / "w"), second.mark) == ([(1, 1), (2, 2)], 0)


def test_two_writers_that_race_for_an_empty_directory(tmp_path, monkeypatch):
    """The segment itself decides: it is created exclusively."""
    second = JournalWriter(tmp_path / "w", tuning=TUNING)
    monkeypatch.setattr(second, "_claim_directory", lambda: written(tmp_path / "w", *frames((1, 1))))
    with pytest.raises(FileExistsError):
        second.append(frames((2, 2)))
    assert stored(tmp_path / "w") == [(1, 1)]


def test_a_full_disk_takes_all_of_a_call_or_nothing(tmp_path, monkeypatch):
    """The caller keeps its frames and comes back; the torn row is cut off so that it does not take the room that is missing."""
    writer = written(tmp_path / "w", *frames((1, 1)))
    size = segments(tmp_path / "w")[0].stat().st_size
    writev, write = FaultyCalls(monkeypatch, "writev"), FaultyCalls(monkeypatch, "write")
    writev.planned, write.planned = [short(30)], [None, disk_full()]

    with pytest.raises(OSError, match="No space") as raised:
        writer.append(frames((2, 2)))
    assert raised.value.errno == errno.ENOSPC
    assert (writer.mark, writer.unsynced_bytes) == (1, len(frames((1, 1))[0]))
    assert [path.stat().st_size for path in segments(tmp_path / "w")] == [size]

    assert writer.append(frames((2, 2))) == 2
    assert len(segments(tmp_path / "w")) == 1
    assert (stored(tmp_path / "w"), writer.statistics().failed_writes) == ([(1, 1), (2, 2)], 1)


def test_rows_that_reached_the_full_disk_are_there_twice_later(tmp_path, monkeypatch):
    """Rows of a failed call are not taken back, because readers may have seen them; the call does not count all the same."""
    writer = written(tmp_path / "w", *frames((1, 1)))
    row = layout.ROW_PREFIX_BYTES + len(frames((2, 2))[0])
    writev, write = FaultyCalls(monkeypatch, "writev"), FaultyCalls(monkeypatch, "write")
    writev.planned, write.planned = [short(row + 10)], [None, disk_full()]
    with pytest.raises(OSError):
        writer.append(frames((2, 2), (3, 3)))
    assert writer.mark == 1

    writer.append(frames((2, 2), (3, 3)))
    assert stored(tmp_path / "w") == [(1, 1), (2, 2), (2, 2), (3, 3)]


def test_a_torn_row_that_cannot_be_cut_off_ends_the_segment(tmp_path, monkeypatch):
    """The next row goes into a new segment; readers find out that the torn one is final and go on."""
    writer = written(tmp_path / "w", *frames((1, 1)))
    writev, write = FaultyCalls(monkeypatch, "writev"), FaultyCalls(monkeypatch, "write")
    writev.planned, write.planned = [short(30)], [None, disk_full()]
    FaultyCalls(monkeypatch, "ftruncate").planned = [broken()]
    with pytest.raises(OSError):
        writer.append(frames((2, 2)))
    writer.append(frames((2, 2)))
    assert len(segments(tmp_path / "w")) == 2
    assert (stored(tmp_path / "w"), writer.sync()) == ([(1, 1), (2, 2)], 2)


def test_no_room_for_the_first_segment(tmp_path, monkeypatch):
    """Nothing is left behind, and the same call works when there is room."""
    writev = FaultyCalls(monkeypatch, "writev")
    writev.planned = [disk_full()]
    writer = written(tmp_path / "w", tuning=TUNING)
    with pytest.raises(OSError):
        writer.append(frames((1, 1)))
    assert list((tmp_path / "w").iterdir()) == []
    assert writer.append(frames((1, 1))) == 1
    assert [path.name for path in segments(tmp_path / "w")] == ["00000001.seg"]


def test_an_unfinished_segment_that_cannot_be_removed_is_left_alone(tmp_path, monkeypatch):
    """The next try takes the next number."""
    FaultyCalls(monkeypatch, "writev").planned = [disk_full()]
    FaultyCalls(monkeypatch, "unlink").planned = [broken()]
    writer = written(tmp_path / "w", tuning=TUNING)
    with pytest.raises(OSError):
        writer.append(frames((1, 1)))
    writer.append(frames((1, 1)))
    assert [path.name for path in segments(tmp_path / "w")] == ["00000001.seg", "00000002.seg"]
    assert stored(tmp_path / "w") == [(1, 1)]


def test_after_an_io_error_everything_unsynced_is_written_again(tmp_path, monkeypatch):
    """EIO says that the disk is in an unknown state: the segment is given up, acked rows come from memory into a new one."""
    writer = written(tmp_path / "w", *frames((1, 1)))
    writer.sync()
    writer.append(frames((2, 2)))
    FaultyCalls(monkeypatch, "writev").planned = [broken()]
    with pytest.raises(OSError):
        writer.append(frames((3, 3)))

    assert writer.append(frames((3, 3))) == 3
    assert writer.sync() == 3
    assert stored(tmp_path / "w") == [(1, 1), (2, 2), (2, 2), (3, 3)]
    assert writer.statistics().rewritten_rows == 1


def test_on_a_network_file_system_a_failed_write_speaks_of_earlier_ones(tmp_path, monkeypatch):
    """NFS reports with one write that an earlier one was lost, and forgets it: unsynced rows are written again."""
    writer = JournalWriter(tmp_path / "w", tuning=TUNING, local=False)
    writer.append(frames((1, 1)))
    FaultyCalls(monkeypatch, "writev").planned = [disk_full()]
    with pytest.raises(OSError):
        writer.append(frames((2, 2)))
    assert writer.sync() == 1
    assert len(segments(tmp_path / "w")) == 2
    assert stored(tmp_path / "w") == [(1, 1), (1, 1)]


def test_sync_says_how_far_the_journal_is_durable(tmp_path):
    """The mark of everything before the call; frames are kept in memory until then."""
    writer = written(tmp_path / "w", *frames((1, 5), (6, 6)))
    assert (writer.synced_mark, writer.unsynced_bytes) == (0, sum(map(len, frames((1, 5), (6, 6)))))
    assert (writer.sync(), writer.synced_mark, writer.unsynced_bytes) == (2, 2, 0)
    writer.append(frames((7, 7)))
    assert (writer.synced_mark, writer.sync()) == (2, 3)


def test_sync_covers_segments_that_were_rolled_meanwhile(tmp_path, monkeypatch):
    """A full segment is synced before its rows count as durable, and never again."""
    sync = FaultyCalls(monkeypatch, "fdatasync")
    open_before = len(os.listdir("/proc/self/fd"))
    writer = written(tmp_path / "w", tuning=Tuning(segment_bytes=300))
    writer.append(frames(*((n, n) for n in range(1, 10))))
    files = len(segments(tmp_path / "w"))
    assert (writer.sync(), sync.count) == (9, files)
    assert (writer.sync(), sync.count) == (9, files)
    writer.append(frames((10, 10)))
    writer.sync()
    assert sync.count <= files + 2
    assert len(os.listdir("/proc/self/fd")) <= open_before + 1
    writer.close()


def test_a_failed_sync_is_never_retried(tmp_path, monkeypatch):
    """Linux reports a lost page once and then says that all is well: what was not synced is written into a new segment instead."""
    sync = FaultyCalls(monkeypatch, "fdatasync")
    writer = written(tmp_path / "w", *frames((1, 1)))
    writer.sync()
    descriptors = set()
    real_sync = sync._real
    sync._real = lambda descriptor: descriptors.add(os.readlink(f"/proc/self/fd/{descriptor}")) or real_sync(descriptor)
    writer.append(frames((2, 2), (3, 3)))
    sync.planned = [broken()]

    with pytest.raises(OSError):
        writer.sync()
    assert (writer.synced_mark, writer.mark, writer.unsynced_bytes > 0) == (1, 3, True)
    assert (writer.sync(), writer.synced_mark) == (3, 3)
    assert stored(tmp_path / "w") == [(1, 1), (2, 2), (3, 3), (2, 2), (3, 3)]
    assert descriptors == {str(segments(tmp_path / "w")[1])}
    assert writer.statistics().failed_syncs == 1


def test_a_failed_sync_is_made_good_by_the_next_append_too(tmp_path, monkeypatch):
    """New rows come after the old ones in the new segment, and the poisoned one gets none."""
    writer = written(tmp_path / "w", *frames((1, 1)))
    FaultyCalls(monkeypatch, "fdatasync").planned = [broken()]
    with pytest.raises(OSError):
        writer.sync()
    assert writer.append(frames((2, 2))) == 2
    assert stored(tmp_path / "w") == [(1, 1), (1, 1), (2, 2)]
    assert (writer.sync(), writer.unsynced_bytes) == (2, 0)


def test_syncs_that_keep_failing_lose_nothing(tmp_path, monkeypatch):
    """The frames stay in memory until one sync worked."""
    sync = FaultyCalls(monkeypatch, "fdatasync")
    sync.planned = [broken(), broken(), broken()]
    writer = written(tmp_path / "w", tuning=TUNING)
    for n in range(1, 4):
        writer.append(frames((n, n)))
        with pytest.raises(OSError):
            writer.sync()
    assert writer.synced_mark == 0
    # Whatever a power cut leaves of the first three segments: the last one has it all.
    assert writer.sync() == 3
    for path in segments(tmp_path / "w")[:-1]:
        path.unlink()
    assert stored(tmp_path / "w") == [(1, 1), (2, 2), (3, 3)]


def test_a_disk_that_fills_up_while_rows_are_written_again(tmp_path, monkeypatch):
    """Nothing counts as durable before all of it is written again; what already is, is not written a third time."""
    writer = written(tmp_path / "w", tuning=TUNING)
    writer.append(frames(*((n, n) for n in range(1, 1200))))
    FaultyCalls(monkeypatch, "fdatasync").planned = [broken()]
    with pytest.raises(OSError):
        writer.sync()
    writev = FaultyCalls(monkeypatch, "writev")
    writev.planned = [None, None, disk_full()]

    with pytest.raises(OSError):
        writer.append(frames((1200, 1200)))
    assert writer.mark == 1199
    with pytest.raises(OSError):
        writev.planned = [disk_full()]
        writer.sync()
    assert writer.synced_mark == 0
    assert writer.append(frames((1200, 1200))) == 1200
    assert writer.sync() == 1200
    assert stored(tmp_path / "w") == 2 * [(n, n) for n in range(1, 1200)] + [(1200, 1200)]


def test_a_name_that_cannot_be_made_durable_is_a_failed_sync(tmp_path, monkeypatch):
    """A file that a power cut could take out of its directory is not durable, however well its bytes are."""
    FaultyCalls(monkeypatch, "fsync").planned = [broken()]
    writer = written(tmp_path / "w", *frames((1, 1)))
    with pytest.raises(OSError):
        writer.sync()
    assert writer.synced_mark == 0
    assert writer.sync() == 1


def test_a_run_directory_that_is_removed_under_the_writer(tmp_path):
    """What is not synced yet is written into a new directory; what was synced is gone with the old one, and the error says so."""
    writer = written(tmp_path / "journal" / "w", *frames((1, 1)))
    writer.sync()
    writer.append(frames((2, 2)))
    shutil.rmtree(tmp_path / "journal")
    with pytest.raises(FileNotFoundError, match="removed"):
        writer.sync()
    assert writer.append(frames((3, 3))) == 3
    assert (writer.sync(), stored(tmp_path / "journal" / "w")) == (3, [(2, 2), (3, 3)])


def test_appending_goes_on_while_a_sync_waits_for_the_disk(tmp_path, monkeypatch):
    """The slow disk delays the sync only; rows that came meanwhile wait for the next one."""
    syncing, go_on = threading.Event(), threading.Event()

    def slow(real, descriptor):
        syncing.set()
        assert go_on.wait(10)
        return real(descriptor)

    FaultyCalls(monkeypatch, "fdatasync").planned = [slow]
    writer = written(tmp_path / "w", *frames((1, 1)), tuning=Tuning(segment_bytes=200))
    marks = []
    thread = threading.Thread(target=lambda: marks.append(writer.sync()))
    thread.start()
    assert syncing.wait(10)
    for n in range(2, 8):
        writer.append(frames((n, n)))
    assert (writer.mark, writer.synced_mark) == (7, 0)
    go_on.set()
    thread.join(10)
    assert (marks, writer.synced_mark) == ([1], 1)
    assert writer.sync() == 7


def test_rows_appended_during_a_failing_sync_are_written_again_too(tmp_path, monkeypatch):
    """They went into the segment whose pages were lost."""
    syncing, go_on = threading.Event(), threading.Event()

    def fail_late(real, descriptor):
        syncing.set()
        assert go_on.wait(10)
        raise broken()

    FaultyCalls(monkeypatch, "fdatasync").planned = [fail_late]
    writer = written(tmp_path / "w", *frames((1, 1)))
    errors = []

    def sync():
        try:
            writer.sync()
        except OSError as error:
            errors.append(error.errno)

    thread = threading.Thread(target=sync)
    thread.start()
    assert syncing.wait(10)
    writer.append(frames((2, 2)))
    go_on.set()
    thread.join(10)
    assert (errors, writer.sync()) == ([errno.EIO], 2)
    segments(tmp_path / "w")[0].unlink()
    assert stored(tmp_path / "w") == [(1, 1), (2, 2)]


def test_a_write_error_during_a_sync_takes_its_result_back(tmp_path, monkeypatch):
    """The sync may have succeeded because the failing write had already consumed the error: its rows are written again."""
    syncing, go_on = threading.Event(), threading.Event()

    def slow(real, descriptor):
        syncing.set()
        assert go_on.wait(10)
        return real(descriptor)

    FaultyCalls(monkeypatch, "fdatasync").planned = [slow]
    writer = written(tmp_path / "w", *frames((1, 1)))
    marks = []
    thread = threading.Thread(target=lambda: marks.append(writer.sync()))
    thread.start()
    assert syncing.wait(10)
    FaultyCalls(monkeypatch, "writev").planned = [broken()]
    with pytest.raises(OSError):
        writer.append(frames((2, 2)))
    go_on.set()
    thread.join(10)
    assert (marks, writer.synced_mark, writer.unsynced_bytes > 0) == ([0], 0, True)
    assert (writer.append(frames((2, 2))), writer.sync()) == (2, 2)
    assert stored(tmp_path / "w") == [(1, 1), (1, 1), (2, 2)]


def test_appending_and_syncing_from_two_threads(tmp_path):
    """Under constant rolling and syncing, every row is there once and in order, and the marks add up."""
    writer = written(tmp_path / "w", tuning=Tuning(segment_bytes=2000))
    done = threading.Event()

    def keep_syncing():
        while not done.is_set():
            assert writer.sync() <= writer.mark

    thread = threading.Thread(target=keep_syncing)
    thread.start()
    for n in range(1, 400):
        writer.append(frames((n, n)))
    done.set()
    thread.join(10)
    assert (writer.sync(), writer.mark, writer.unsynced_bytes) == (399, 399, 0)
    assert stored(tmp_path / "w") == [(n, n) for n in range(1, 400)]


def test_closing_syncs_and_lets_go_of_the_files(tmp_path):
    """Afterwards the writer refuses; closing twice does nothing."""
    open_before = len(os.listdir("/proc/self/fd"))
    with JournalWriter(tmp_path / "w", tuning=Tuning(segment_bytes=200)) as writer:
        writer.append(frames(*((n, n) for n in range(1, 20))))
    assert (writer.synced_mark, len(os.listdir("/proc/self/fd"))) == (19, open_before)
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.append(frames((20, 20)))
    with pytest.raises(ValueError, match="closed"):
        writer.sync()


def test_closing_over_a_failing_disk_still_lets_go(tmp_path, monkeypatch):
    """The error is raised, ``synced_mark`` tells what is safe, and no descriptor stays open."""
    open_before = len(os.listdir("/proc/self/fd"))
    writer = written(tmp_path / "w", *frames((1, 1)))
    FaultyCalls(monkeypatch, "fdatasync").planned = [broken()]
    with pytest.raises(OSError):
        writer.close()
    assert (writer.synced_mark, len(os.listdir("/proc/self/fd"))) == (0, open_before)
    writer.close()


@pytest.mark.parametrize("limit", [1024, 1025, 2000, 4095])
def test_a_file_size_limit_only_starts_new_segments(tmp_path, limit):
    """A real limit of the kernel (EFBIG): each failed call is repeated by its caller, and every row is there in the end."""
    code = f"""
import resource, sys
from pathlib import Path
from accelbus.config import Tuning
from accelbus.journal.segments import JournalWriter
from tests.support.journals import events_frame, uuid
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
writer = JournalWriter(Path({str(tmp_path / "w")!r}), tuning=Tuning())
failures = 0
for n in range(1, 200):
    while True:
        try:
            writer.append([events_frame(uuid(1), n, n)])
            break
        except OSError as error:
            failures += 1
            assert failures < 50, error
assert writer.sync() == 199
print(failures)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == len(segments(tmp_path / "w")) - 1 > 2
    assert stored(tmp_path / "w") == [(n, n) for n in range(1, 200)]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit
