"""Random histories of a journal against a model: crashes, torn writes, overlapping frames, restarts of readers."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from accelbus.config import Tuning
from accelbus.journal import layout
from accelbus.journal.merge import JournalReader, ReaderState
from accelbus.journal.segments import JournalWriter, Position, SegmentReader
from tests.support.journals import Clock, events_frame, everything, metrics, segments, uuid

TUNING = Tuning(segment_bytes=1500, gap_hold=5.0, torn_hold=1.0)
PRODUCERS = 2


class OneWriter(RuleBasedStateMachine):
    """One directory: appends, torn ends, rolls; readers that stop and go on anywhere find each whole row once and in order."""

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.writer = JournalWriter(self.root / "w", tuning=TUNING, clock=self.clock)
        self.reader = SegmentReader(self.root / "w", tuning=TUNING, monotonic=self.clock.monotonic)
        self.expected = []
        self.found = []
        self.next_seq = 1

    def teardown(self):
        if hasattr(self, "root"):
            self.writer.close()
            shutil.rmtree(self.root)

    @rule(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4))
    def append(self, sizes):
        ranges = []
        for size in sizes:
            ranges.append((self.next_seq, self.next_seq + size - 1))
            self.next_seq += size
        self.writer.append([events_frame(uuid(1), *range_) for range_ in ranges])
        self.expected += ranges

    @rule(cut=st.integers(1, 300), junk=st.booleans())
    def append_torn_and_roll(self, cut, junk):
        """The write of one row fails in the middle and cannot be cut off: the next row goes into a new segment."""
        if self.writer.mark:
            self.clock.advance(0.1)
            raw = events_frame(uuid(1), self.next_seq, self.next_seq + 5)
            row = layout.pack_row_prefix(len(raw), self.clock()) + raw
            with segments(self.root / "w")[-1].open("ab") as file:
                file.write(b"\0" * cut if junk else row[: min(cut, len(row) - 1)])
            self.writer._current.broken = True

    @rule(limit=st.integers(1, 2000))
    def read(self, limit):
        rows = self.reader.read(limit)
        self.found += [(row.frame.first_seq, row.frame.last_seq) for row in rows]
        for row in rows:
            assert bytes(row.frame.raw) == events_frame(uuid(1), row.frame.first_seq, row.frame.last_seq)

    @rule()
    def reopen(self):
        position = msgspec.msgpack.decode(msgspec.msgpack.encode(self.reader.position), type=Position)
        self.reader = SegmentReader(self.root / "w", position, tuning=TUNING, monotonic=self.clock.monotonic)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @invariant()
    def nothing_is_out_of_place(self):
        if hasattr(self, "root"):
            assert self.found == self.expected[: len(self.found)]

    @precondition(lambda self: self.expected)
    @rule()
    def catch_up(self):
        while rows := self.reader.read(10_000):
            self.found += [(row.frame.first_seq, row.frame.last_seq) for row in rows]
        assert self.found == self.expected


class ManyWriters(RuleBasedStateMachine):
    """A run: producers' events arrive in overlapping pieces through several writers; readers stop and go on, also from old states."""

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.writers = [JournalWriter(self.root / "w0", tuning=TUNING, clock=self.clock)]
        self.reader = self._reader(None)
        self.logged = dict.fromkeys(range(PRODUCERS), 0)
        self.stored: set[tuple[bytes, int]] = set()
        """Whole in some writer's file."""
        self.found: list[tuple[bytes, int]] = []
        self.gave_up = False
        self.saved: tuple[bytes, int] = (msgspec.msgpack.encode(ReaderState()), 0)

    def _reader(self, state):
        return JournalReader(self.root, state, tuning=TUNING, monotonic=self.clock.monotonic)

    def teardown(self):
        if hasattr(self, "root"):
            for writer in self.writers:
                writer.close()
            shutil.rmtree(self.root)

    @rule(which=st.integers(0, PRODUCERS - 1), count=st.integers(1, 12), data=st.data())
    def append_new_events(self, which, count, data):
        """The usual way: the next events, perhaps with some that were sent before, perhaps leaving some out."""
        last = self.logged[which] + count
        first = data.draw(st.integers(max(1, self.logged[which] - 5), self.logged[which] + 3).filter(lambda first: first <= last))
        self.logged[which] = max(self.logged[which], last)
        self._append(data, which, first, last)

    @precondition(lambda self: any(self.logged.values()))
    @rule(data=st.data())
    def append_again(self, data):
        """Resent, spilled or salvaged: any stretch of what was logged, through any writer."""
        which = data.draw(st.sampled_from([which for which, last in self.logged.items() if last]))
        first = data.draw(st.integers(1, self.logged[which]))
        self._append(data, which, first, data.draw(st.integers(first, min(self.logged[which], first + 20))))

    def _append(self, data, which, first, last):
        writer = data.draw(st.sampled_from(self.writers))
        writer.append([events_frame(uuid(which), first, last)])
        self.stored |= {(uuid(which), seq) for seq in range(first, last + 1)}

    @rule(cut=st.integers(0, 200), data=st.data())
    def crash_a_writer(self, cut, data):
        """It leaves a torn row; its successor has a directory of its own."""
        index = data.draw(st.integers(0, len(self.writers) - 1))
        writer = self.writers[index]
        writer.close()
        if writer.mark and cut:
            raw = events_frame(uuid(0), 1, 30)
            with segments(writer.directory)[-1].open("ab") as file:
                file.write((layout.pack_row_prefix(len(raw), self.clock()) + raw)[:cut])
        self.writers[index] = JournalWriter(self.root / f"w{len(list(self.root.iterdir())) + 1}-{index}", tuning=TUNING, clock=self.clock)

    @precondition(lambda self: len(self.writers) < 4)
    @rule()
    def another_writer(self):
        self.writers.append(JournalWriter(self.root / f"x{len(self.writers)}", tuning=TUNING, clock=self.clock))

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(limit=st.integers(1, 40))
    def read(self, limit):
        self._found(self.reader.read(limit), limit)

    def _found(self, items, limit=None):
        assert limit is None or len(items) <= limit
        for item in items:
            assert item.event == metrics(item.producer, item.seq)
        self.found += [(item.producer, item.seq) for item in items]

    @rule()
    def save(self):
        self.saved = msgspec.msgpack.encode(self.reader.state()), len(self.found)

    @rule(crash=st.booleans())
    def reopen(self, crash):
        """After a crash from the last saved state, what came since is forgotten as a tracker's rows would be; else from now."""
        if not crash:
            self.save()
        state, count = self.saved
        del self.found[count:]
        self.reader = self._reader(msgspec.msgpack.decode(state, type=ReaderState))

    @invariant()
    def every_event_is_there_once_and_none_is_made_up(self):
        if hasattr(self, "root"):
            assert not [event for event, times in Counter(self.found).items() if times > 1]
            assert self.stored.issuperset(self.found)

    @invariant()
    def until_a_gap_is_given_up_the_order_holds(self):
        if hasattr(self, "root"):
            self.gave_up = self.gave_up or self.reader.statistics().gaps > 0
            for which in range(PRODUCERS):
                order = [seq for producer, seq in self.found if producer == uuid(which)]
                assert self.gave_up or order == list(range(1, len(order) + 1))

    @rule()
    def catch_up(self):
        """Everything that is stored and has nothing missing before it is read."""
        self._found(everything(self.reader, limit=17))
        found = set(self.found)
        for which in range(PRODUCERS):
            seq = 1
            while (uuid(which), seq) in self.stored:
                assert (uuid(which), seq) in found
                seq += 1

    @rule()
    def finish_with_a_reader_of_its_own(self):
        """An export at any moment: exactly what is stored."""
        found = [(item.producer, item.seq) for item in self._reader(None).finish()]
        assert (len(found), set(found)) == (len(self.stored), self.stored)


TestOneWriter = OneWriter.TestCase
TestOneWriter.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestManyWriters = ManyWriters.TestCase
TestManyWriters.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
