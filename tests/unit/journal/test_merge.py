"""All writers of a run as one stream: every event once, in order, with who it came from."""

from __future__ import annotations

import logging
import os

import msgspec
import pytest

from accelbus import frame
from accelbus.config import Tuning
from accelbus.events import ConfigUpdate, Metrics, ProducerJoined, ProducerState, RunClosed, RunEnd, Tick
from accelbus.journal.merge import JournalReader, ReaderState
from tests.support.journals import (
    LAUNCH,
    SECOND,
    Clock,
    encode,
    events_frame,
    everything,
    metrics,
    pack,
    records_frame,
    segments,
    seqs,
    start,
    uuid,
    written,
)

P, Q, BUS = uuid(1), uuid(2), uuid(99)
TUNING = Tuning(gap_hold=10.0)


def reader_of(journal, state=None, **tuning):
    return JournalReader(journal, state, tuning=msgspec.structs.replace(TUNING, **tuning))


def reopened(journal, reader):
    """Return a reader that goes on from the stored state of *reader*."""
    stored = msgspec.msgpack.encode(reader.state())
    return reader_of(journal, msgspec.msgpack.decode(stored, type=ReaderState))


def joined(producer, *, rank, attempt=0, role="trainer", launch=LAUNCH, world_size=2):
    return ProducerJoined(1, producer, rank, world_size, attempt, role, "node", 7, launch)


def test_a_run_that_has_no_journal_yet(tmp_path):
    """A reader may be there first; new writers are found as they come."""
    reader = reader_of(tmp_path / "journal")
    assert (reader.read(10), reader.finish(), reader.statistics().writers) == ([], [], 0)
    written(tmp_path / "journal" / "bus", events_frame(P, 1, 3))
    assert seqs(reader.read(10)) == [1, 2, 3]


def test_an_item_says_who_logged_what_when(tmp_path):
    """Receive time, producer, rank, attempt, role, number and the event itself."""
    clock = Clock(50)
    written(tmp_path / "bus", pack([start(3), metrics(P, 2)], producer=P, first_seq=1), clock=clock)
    items = reader_of(tmp_path).read(10)
    assert [item._replace(event=None) for item in items] == [(50 * SECOND, P, 3, 0, "trainer", seq, None) for seq in (1, 2)]
    assert [item.event for item in items] == [start(3), metrics(P, 2)]


def test_the_limit_is_exact(tmp_path):
    """Never more than asked for, a frame may be handed out in parts, and nothing is left behind."""
    written(tmp_path / "bus", events_frame(P, 1, 25), events_frame(P, 26, 30))
    reader = reader_of(tmp_path)
    sizes, found = [], []
    while items := reader.read(7):
        sizes.append(len(items))
        found += seqs(items)
    assert (sizes, found) == ([7, 7, 7, 7, 2], list(range(1, 31)))


def test_rows_of_all_writers_are_merged_by_receive_time(tmp_path):
    """Two buses and a spill, read long after: the order is the one in which their rows were written."""
    clock = Clock()
    writers = [written(tmp_path / name, clock=clock) for name in ("bus-b", "bus-a", "spill")]
    next_seq = dict.fromkeys(range(3), 1)
    order = [0, 1, 1, 2, 0, 2, 2, 1, 0]
    for which in order:
        clock.advance(1)
        writers[which].append([events_frame(uuid(which), next_seq[which], next_seq[which])])
        next_seq[which] += 1
    items = everything(reader_of(tmp_path))
    assert [item.producer for item in items] == [uuid(which) for which in order]


def test_many_writers_with_more_than_is_read_at_once_stay_merged(tmp_path):
    """Reading goes in pieces; no piece overtakes another writer's older rows."""
    clock = Clock()
    writers = [written(tmp_path / f"w{n}", clock=clock, tuning=Tuning(segment_bytes=50_000)) for n in range(3)]
    for round_ in range(120):
        for n, writer in enumerate(writers):
            clock.advance(1)
            writer.append([pack([encode(Metrics(0, round_, {"pad": "x" * 3000}))], producer=uuid(n), first_seq=round_ + 1)])
    items = everything(reader_of(tmp_path, read_bytes=1), limit=50)
    assert [item.received_ns for item in items] == sorted(item.received_ns for item in items)
    assert len(items) == 360


def test_a_long_backlog_does_not_overtake_what_others_write_meanwhile(tmp_path, monkeypatch):
    """Whenever more of one writer is read, the others are looked at again: their older rows come first."""
    clock = Clock()
    pad = [pack([Metrics(0, n, {"pad": "x" * 40_000})], producer=P, first_seq=n) for n in range(1, 5)]
    one, other = written(tmp_path / "one", *pad, clock=clock), written(tmp_path / "other", events_frame(Q, 1, 1), clock=clock)
    real, opened = os.open, []

    def grow(path, *args, **options):
        opened.append(str(path))
        if opened.count(str(segments(tmp_path / "one")[0])) == 4:
            clock.advance(1)
            other.append([events_frame(Q, 2, 2)])
            clock.advance(1)
            one.append([pack([metrics(P, 5)], producer=P, first_seq=5)])
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", grow)
    items = reader_of(tmp_path, read_bytes=1).read(100)
    assert [item.received_ns // SECOND for item in items] == [1000] * 5 + [1001, 1002]


def test_a_writers_rows_stay_in_its_order(tmp_path):
    """Another implementation lets times step back: rows of one writer are never sorted, the end of the run least of all."""
    clock = Clock(50)
    bus = written(tmp_path / "bus", records_frame(BUS, 1, RunClosed(1, "finished")), clock=clock)
    clock.advance(-20)
    bus._received_ns = 0
    bus.append([records_frame(BUS, 2, Tick(1))])
    items = everything(reader_of(tmp_path))
    assert [(item.seq, item.received_ns // SECOND) for item in items] == [(1, 50), (2, 30)]


def test_a_writer_that_comes_late_with_old_rows(tmp_path):
    """A salvager's rows are older or newer than what was read: they are served all the same."""
    clock = Clock(100)
    written(tmp_path / "bus", events_frame(P, 1, 2), clock=clock)
    reader = reader_of(tmp_path)
    assert seqs(everything(reader)) == [1, 2]
    written(tmp_path / "salvage", events_frame(Q, 1, 4), clock=Clock(10))
    assert seqs(everything(reader)) == [1, 2, 3, 4]


def test_an_event_in_several_frames_is_read_once(tmp_path):
    """Pump, spill and salvage cut frames differently; only sequence numbers tell what is new."""
    clock = Clock()
    written(tmp_path / "bus-1", events_frame(P, 1, 4), events_frame(P, 3, 9), events_frame(P, 1, 1), clock=clock)
    clock.advance(1)
    written(tmp_path / "spill", events_frame(P, 2, 12), events_frame(P, 13, 13), clock=clock)
    clock.advance(1)
    written(tmp_path / "bus-2", events_frame(P, 8, 20), events_frame(P, 1, 20), clock=clock)
    reader = reader_of(tmp_path)
    items = everything(reader)
    assert seqs(items) == list(range(1, 21))
    assert [item.event for item in items] == [metrics(P, seq) for seq in range(1, 21)]
    assert reader.statistics().duplicates == 2 + 1 + 8 + 6 + 20


def test_equal_numbers_of_different_producers_are_different_events(tmp_path):
    """Each producer counts from one."""
    written(tmp_path / "bus", events_frame(P, 1, 2), events_frame(Q, 1, 2))
    assert len(everything(reader_of(tmp_path))) == 4


def test_a_number_zero_is_an_event_like_others(tmp_path):
    """Producers count from one; whoever counts from zero loses nothing."""
    written(tmp_path / "bus", events_frame(P, 0, 2), events_frame(P, 0, 3))
    assert seqs(everything(reader_of(tmp_path))) == [0, 1, 2, 3]


# Gaps.


def test_events_behind_a_gap_wait_and_come_in_order(tmp_path):
    """The missing ones arrive by another way within ``gap_hold``: nobody sees that they were late."""
    clock = Clock()
    bus = written(tmp_path / "bus", events_frame(P, 1, 2), events_frame(P, 6, 7), events_frame(P, 4, 4), clock=clock)
    reader = reader_of(tmp_path)
    assert seqs(everything(reader)) == [1, 2]
    statistics = reader.statistics()
    assert (statistics.held_events, statistics.held_bytes > 0) == (3, True)
    clock.advance(9)
    bus.append([events_frame(Q, 1, 1)])
    written(tmp_path / "spill", events_frame(P, 3, 5), clock=clock)
    assert seqs(everything(reader), P) == [3, 4, 5, 6, 7]
    assert reader.statistics()._replace(newest_ns=0, rows=0) == reader.statistics()._replace(
        newest_ns=0, rows=0, gaps=0, held_events=0, held_bytes=0, duplicates=1
    )


def test_a_gap_is_given_up_after_journal_time_and_said_once(tmp_path, caplog):
    """Not the reader's clock: a replay decides like the live reader, from the rows' receive times."""
    clock = Clock()
    bus = written(tmp_path / "bus", events_frame(P, 1, 1), events_frame(P, 5, 6), events_frame(P, 9, 9), clock=clock)
    reader = reader_of(tmp_path)
    assert seqs(everything(reader)) == [1]
    clock.advance(9.9)
    bus.append([records_frame(BUS, 1, Tick(1))])
    assert seqs(everything(reader), P) == []
    clock.advance(0.1)
    bus.append([records_frame(BUS, 2, Tick(1))])
    assert seqs(everything(reader), P) == [5, 6, 9]
    assert (reader.statistics().gaps, len(caplog.records)) == (2, 1)
    assert "events 2 to 4" in caplog.text
    assert reader.producers[P].missing == [(2, 4), (7, 8)]


def test_each_gap_has_its_own_time(tmp_path):
    """Giving one up changes nothing for those that opened later."""
    clock = Clock()
    bus = written(tmp_path / "bus", clock=clock)
    for number in range(3):
        bus.append([events_frame(uuid(number), 2, 2)])
        clock.advance(4)
    reader = reader_of(tmp_path)
    found = {}
    for second in range(12, 20):
        bus.append([records_frame(BUS, second, Tick(1))])
        found |= {int.from_bytes(item.producer, "big"): second for item in everything(reader) if item.producer != BUS}
        clock.advance(1)
    assert found == {0: 12, 1: 14, 2: 18}


def test_what_was_given_up_is_still_filled_when_it_arrives(tmp_path):
    """Late is better than never: the salvager came after the hold, and nothing is repeated."""
    clock = Clock()
    bus = written(tmp_path / "bus", events_frame(P, 1, 1), events_frame(P, 5, 6), clock=clock)
    reader = reader_of(tmp_path)
    everything(reader)
    clock.advance(10)
    bus.append([events_frame(P, 7, 7)])
    assert seqs(everything(reader)) == [5, 6, 7]
    clock.advance(60)
    written(tmp_path / "salvage", events_frame(P, 2, 8), clock=clock)
    assert seqs(everything(reader)) == [2, 3, 4, 8]
    assert reader.producers[P].missing == []


def test_a_gap_of_one_producer_delays_nobody_else(tmp_path):
    """Only events of the same producer wait."""
    written(tmp_path / "bus", events_frame(P, 2, 2), events_frame(Q, 1, 3))
    reader = reader_of(tmp_path)
    assert seqs(everything(reader)) == [1, 2, 3]
    assert reader.statistics().held_events == 1


def test_the_end_of_the_run_ends_all_waiting(tmp_path):
    """After RunClosed no row may ever come, so journal time stands still: held events come before it."""
    written(tmp_path / "bus", events_frame(P, 1, 1), events_frame(P, 3, 3), records_frame(BUS, 1, RunClosed(1, "failed")))
    items = everything(reader_of(tmp_path))
    assert seqs(items, P) == [1, 3]
    assert items[-1].event == RunClosed(1, "failed")


def test_what_was_written_before_the_end_of_the_run_comes_before_it(tmp_path, monkeypatch):
    """A salvager writes between two looks of the reader, then the bus process closes the run: the order holds."""
    clock = Clock()
    bus = written(tmp_path / "bus", events_frame(P, 1, 1), clock=clock)
    salvage = written(tmp_path / "a-salvage", events_frame(Q, 1, 1), clock=clock)
    reader = reader_of(tmp_path)
    everything(reader)
    real, done = os.open, []

    def late(path, *args, **options):
        # The other writer was looked at already when this one is.
        if str(path).endswith("bus/00000001.seg") and not done:
            done.append(True)
            clock.advance(1)
            salvage.append([events_frame(Q, 2, 2)])
            written(tmp_path / "z-salvage", events_frame(P, 2, 2), clock=clock)
            clock.advance(1)
            bus.append([records_frame(BUS, 1, RunClosed(1, "finished"))])
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", late)
    items = everything(reader)
    assert {(item.producer, item.seq) for item in items[:-1]} == {(Q, 2), (P, 2)}
    assert type(items[-1].event) is RunClosed


def test_a_closed_run_that_goes_on(tmp_path):
    """Rows after RunClosed (a resumed run) are read; an old RunClosed met again ends no waiting."""
    clock = Clock()
    bus = written(tmp_path / "bus", events_frame(P, 1, 1), records_frame(BUS, 1, RunClosed(1, "failed")), clock=clock)
    reader = reader_of(tmp_path)
    everything(reader)
    clock.advance(1)
    bus.append([events_frame(Q, 3, 3), records_frame(BUS, 1, RunClosed(1, "failed")), events_frame(Q, 1, 1)])
    assert seqs(everything(reader)) == [1]
    assert reader.statistics().held_events == 1


def test_waiting_events_are_bounded_in_memory(tmp_path):
    """A rank whose spill is lost logs on at full speed: beyond ``hold_bytes`` the oldest gap is given up early."""
    size = len(events_frame(P, 10, 19))
    rows = [events_frame(P, first, first + 9) for first in range(10, 200, 10)]
    clock = Clock()
    bus = written(tmp_path / "bus", events_frame(Q, 5, 5), clock=clock)
    clock.advance(1)
    bus.append(rows)
    reader = reader_of(tmp_path, hold_bytes=10 * size)
    items = everything(reader)
    assert seqs(items) == [5, *range(10, 200)]
    assert reader.statistics().held_bytes <= 10 * size


def test_records_never_wait(tmp_path):
    """One process writes them in order, so a missing one is lost; what a bus process says must not be delayed by it."""
    written(tmp_path / "bus", records_frame(BUS, 1, Tick(1)), records_frame(BUS, 5, Tick(5)), records_frame(BUS, 5, Tick(5), Tick(6)))
    assert seqs(everything(reader_of(tmp_path))) == [1, 5, 6]


# Who is who.


def test_the_recorded_attempt_and_rank_rule(tmp_path):
    """ProducerJoined is what a bus process decided; it comes before the events and the reader follows it."""
    written(tmp_path / "bus", records_frame(BUS, 1, joined(P, rank=1, attempt=4)), events_frame(P, 1, 1))
    record, event = everything(reader_of(tmp_path))
    assert (record.producer, record.rank, record.attempt, record.role) == (BUS, 1, 4, "trainer")
    assert (event.producer, event.rank, event.attempt, event.role) == (P, 1, 4, "trainer")


def test_producers_that_no_bus_process_met_get_the_same_attempts(tmp_path):
    """Spilled from the first event on: the launch token decides, then an explicit attempt, each launch one generation."""
    clock = Clock()
    for number, (rank, launch, explicit) in enumerate(
        [(0, b"A" * 16, None), (1, b"A" * 16, None), (0, b"B" * 16, None), (0, b"C" * 16, 7)]
    ):
        clock.advance(1)
        event = start(rank, launch=launch, attempt=explicit)
        written(tmp_path / f"spill-{number}", pack([event], producer=uuid(number), first_seq=1, launch=launch), clock=clock)
    assert [(item.rank, item.attempt) for item in everything(reader_of(tmp_path))] == [(0, 0), (1, 0), (0, 1), (0, 7)]


def test_a_rank_started_twice_is_two_attempts(tmp_path):
    """The same token twice: while the first producer lives, the second is a new generation; after its end it is not."""
    clock = Clock()
    bus = written(tmp_path / "bus", pack([start(0)], producer=P, first_seq=1), pack([start(0)], producer=Q, first_seq=1), clock=clock)
    reader = reader_of(tmp_path)
    assert [item.attempt for item in everything(reader)] == [0, 1]
    bus.append([pack([RunEnd(1, "finished")], producer=Q, first_seq=2), pack([start(0)], producer=uuid(3), first_seq=1)])
    assert [item.attempt for item in everything(reader)] == [1, 1]


def test_a_dead_producer_frees_its_place_in_the_attempt(tmp_path):
    """Said by a record instead of by the producer itself."""
    dead = ProducerState(1, P, "dead", 1, "killed")
    written(
        tmp_path / "bus", pack([start(0)], producer=P, first_seq=1), records_frame(BUS, 1, dead), pack([start(0)], producer=Q, first_seq=1)
    )
    assert [item.attempt for item in everything(reader_of(tmp_path)) if item.producer == Q] == [0]


def test_a_producer_whose_first_event_is_lost(tmp_path):
    """Its rank is not known, its launch is: the attempt is right, and the rank is -1 until somebody says it."""
    clock = Clock()
    bus = written(tmp_path / "bus", pack([start(0)], producer=Q, first_seq=1), events_frame(P, 2, 2), clock=clock)
    reader = reader_of(tmp_path)
    everything(reader)
    clock.advance(10)
    bus.append([records_frame(BUS, 1, Tick(1))])
    (item,) = [item for item in everything(reader) if item.producer == P]
    assert (item.rank, item.attempt) == (-1, 0)
    bus.append([records_frame(BUS, 2, joined(P, rank=1)), events_frame(P, 3, 3)])
    assert [(item.rank, item.attempt) for item in everything(reader)] == [(1, 0), (1, 0)]


def test_records_that_speak_of_nobody(tmp_path):
    """Ticks and the end of the run belong to no rank."""
    written(tmp_path / "bus", records_frame(BUS, 1, Tick(1), RunClosed(2, "finished")))
    assert [(item.rank, item.attempt, item.role) for item in everything(reader_of(tmp_path))] == [(-1, -1, "")] * 2


def test_what_is_known_about_each_producer(tmp_path):
    """Everything a report needs: who, where, how far, what is missing, how it ended, what was dropped."""
    written(
        tmp_path / "bus",
        records_frame(BUS, 1, joined(P, rank=1, attempt=2)),
        events_frame(P, 1, 3),
        events_frame(P, 6, 6),
        records_frame(BUS, 2, ProducerState(1, P, "dead", 9, "killed", {"full": 2})),
    )
    reader = reader_of(tmp_path)
    everything(reader)
    reader.finish()
    info = reader.producers[P]
    assert (info.rank, info.attempt, info.role, info.world_size, info.host, info.pid, info.launch) == (
        1,
        2,
        "trainer",
        2,
        "node",
        7,
        LAUNCH,
    )
    assert (info.last_seq, info.missing, info.state, info.status, info.dropped) == (9, [(4, 5), (7, 9)], "dead", "killed", {"full": 2})
    assert BUS not in reader.producers


def test_a_producer_says_best_how_it_ended(tmp_path):
    """A goodbye stands when the process is gone afterwards; a bus process that knows better (exit code) is believed."""
    end = pack([RunEnd(1, "preempted")], producer=P, first_seq=1)
    bus = written(tmp_path / "bus", end, records_frame(BUS, 1, ProducerState(1, P, "dead", 1)))
    reader = reader_of(tmp_path)
    everything(reader)
    assert reader.producers[P].status == "preempted"
    bus.append([records_frame(BUS, 2, ProducerState(1, P, "dead", 1, "failed"))])
    everything(reader)
    assert reader.producers[P].status == "failed"


def test_snapshots_do_not_change_later(tmp_path):
    """State and producers are the caller's own."""
    bus = written(tmp_path / "bus", events_frame(P, 1, 3))
    reader = reader_of(tmp_path)
    everything(reader)
    state, known = reader.state(), reader.producers
    bus.append([events_frame(P, 4, 9), records_frame(BUS, 1, ProducerState(1, P, "dead", 9, "killed", {"full": 1}))])
    everything(reader)
    assert (known[P].read, known[P].dropped, known[P].state) == ([(1, 3)], {}, "")
    assert seqs(everything(reader_of(tmp_path, state))) == [4, 5, 6, 7, 8, 9, 1]
    assert seqs(everything(reader_of(tmp_path, state))) == [4, 5, 6, 7, 8, 9, 1]


# Going on from a state.


@pytest.mark.parametrize("limit", [1, 3, 7, 64])
def test_reopening_after_every_read_changes_nothing(tmp_path, limit):
    """In the middle of a frame, behind a gap, between segments: nothing is repeated and nothing missed."""
    clock = Clock()
    small = Tuning(segment_bytes=600)
    written(tmp_path / "bus", events_frame(P, 1, 10), events_frame(Q, 1, 5), events_frame(P, 15, 22), tuning=small, clock=clock)
    clock.advance(5)
    written(tmp_path / "spill", events_frame(P, 8, 16), events_frame(Q, 4, 9), records_frame(BUS, 1, Tick(1), Tick(2)), clock=clock)
    reader, found = reader_of(tmp_path), []
    while items := reader.read(limit):
        found += [(item.producer, item.seq) for item in items]
        reader = reopened(tmp_path, reader)
    assert len(found) == len(set(found))
    assert [seq for producer, seq in found if producer == P] == list(range(1, 23))
    assert [seq for producer, seq in found if producer == Q] == list(range(1, 10))
    assert [seq for producer, seq in found if producer == BUS] == [1, 2]


def test_held_events_are_read_again_after_reopening(tmp_path):
    """They are in no state; the position stays before them until they were handed out."""
    clock = Clock()
    bus = written(tmp_path / "bus", events_frame(P, 1, 1), events_frame(P, 3, 3), events_frame(Q, 1, 2), clock=clock)
    reader = reader_of(tmp_path)
    assert len(everything(reader)) == 3
    reader = reopened(tmp_path, reader)
    assert everything(reader) == []
    bus.append([events_frame(P, 2, 2)])
    assert seqs(everything(reader)) == [2, 3]
    reader = reopened(tmp_path, reader)
    assert (everything(reader), reader.statistics().rows) == ([], 0)


def test_a_gap_that_was_given_up_stays_so_after_reopening(tmp_path):
    """The state knows which numbers were handed out: later ones do not wait again, missing ones are filled in."""
    clock = Clock()
    bus = written(tmp_path / "bus", events_frame(P, 1, 1), events_frame(P, 5, 5), clock=clock)
    reader = reader_of(tmp_path)
    reader.read(10)
    clock.advance(11)
    bus.append([records_frame(BUS, 1, Tick(1))])
    assert seqs(everything(reader), P) == [5]
    reader = reopened(tmp_path, reader)
    bus.append([events_frame(P, 6, 6)])
    assert seqs(everything(reader)) == [6]
    bus.append([events_frame(P, 3, 3)])
    assert seqs(everything(reopened(tmp_path, reader))) == [3]


def test_who_is_who_survives_reopening(tmp_path):
    """The record that said it is not read again."""
    bus = written(tmp_path / "bus", records_frame(BUS, 1, joined(P, rank=1, attempt=3)), events_frame(P, 1, 1))
    reader = reader_of(tmp_path)
    everything(reader)
    reader = reopened(tmp_path, reader)
    bus.append([events_frame(P, 2, 2), pack([start(0, launch=b"N" * 16)], producer=Q, first_seq=1, launch=b"N" * 16)])
    assert [(item.rank, item.attempt) for item in everything(reader)] == [(1, 3), (0, 4)]


def test_a_state_is_small(tmp_path):
    """It does not grow with what was read."""
    written(tmp_path / "bus", *(events_frame(P, first, first + 99) for first in range(1, 20_000, 100)), records_frame(BUS, 1, Tick(1)))
    reader = reader_of(tmp_path)
    everything(reader)
    assert len(msgspec.msgpack.encode(reader.state())) < 400


def test_a_state_of_another_version_is_read(tmp_path):
    """Fields added later have defaults, fields removed later are ignored."""
    written(tmp_path / "bus", events_frame(P, 1, 2))
    reader = reader_of(tmp_path)
    everything(reader)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(reader.state()), strict=False)
    stored["later"] = 1
    del stored["recorders"]
    assert everything(reader_of(tmp_path, msgspec.convert(stored, ReaderState))) == []


# What should not be there.


def test_a_bad_event_in_a_good_frame_uses_up_its_number(tmp_path):
    """It is counted, its neighbours are served, and nobody waits for it."""
    body = [encode(metrics(P, 1)), encode([99, 1]), encode(metrics(P, 3))]  # the middle one is bad
    bad = [encode("bad")]
    written(
        tmp_path / "bus", pack(body, producer=P, first_seq=1), pack(bad, producer=P, first_seq=4), pack(body[:2], producer=P, first_seq=5)
    )
    reader = reader_of(tmp_path)
    assert seqs(everything(reader, limit=1)) == [1, 3, 5]
    assert (reader.statistics().undecodable, reader.producers[P].missing) == (3, [])
    assert everything(reopened(tmp_path, reader)) == []


def test_nested_values_arrive_flat(tmp_path):
    """Readers see one model, however the values travelled."""
    written(tmp_path / "bus", pack([Metrics(1, 1, {"a": {"b": 1}, 3: 2}), metrics(P, 2)], producer=P, first_seq=1))
    assert [item.event.values for item in everything(reader_of(tmp_path))] == [{"a/b": 1, "3": 2}, metrics(P, 2).values]


def test_a_configuration_stays_nested(tmp_path):
    """Only metrics are flattened."""
    written(tmp_path / "bus", pack([ConfigUpdate(1, {"model": {"layers": 2}})], producer=P, first_seq=1))
    assert everything(reader_of(tmp_path))[0].event.values == {"model": {"layers": 2}}


def test_frames_of_a_later_kind_are_counted_and_passed(tmp_path):
    """A newer bus process writes something this version does not know."""
    written(tmp_path / "bus", pack([b"\x01"], producer=P, first_seq=1, kind=9), events_frame(P, 1, 1))
    reader = reader_of(tmp_path)
    assert (seqs(everything(reader)), reader.statistics().unknown_kinds) == ([1], 1)


@pytest.mark.parametrize(
    "count,first_seq,body",
    [
        (5, 1, frame.join_events([b"\x01"], 1)),
        (1, 1, b"\xc0"),
        (2**32 - 1, 1, b"\xdd\xff\xff\xff\xff\x01"),
        (1, 2**63, frame.join_events([b"\x01"], 1)),
    ],
)
def test_a_frame_that_lies_about_its_events_is_skipped(tmp_path, caplog, count, first_seq, body):
    """Believing it would make good events look like duplicates, or take all memory; it is counted and said once."""
    lie = frame.pack(frame.EVENTS, body, producer=P, first_seq=first_seq, count=count)
    written(tmp_path / "bus", lie, lie, events_frame(P, 1, 5))
    reader = reader_of(tmp_path)
    assert seqs(everything(reader)) == [1, 2, 3, 4, 5]
    assert (reader.statistics().corrupt, len(caplog.records)) == ({"frame_count": 2}, 1)


def test_a_frame_without_events_is_nothing(tmp_path):
    """It changes nothing, not even for a producer nobody knows."""
    written(tmp_path / "bus", frame.pack(frame.EVENTS, frame.join_events([], 0), producer=P, first_seq=7))
    assert everything(reader_of(tmp_path)) == []


def test_a_body_that_breaks_off_gives_what_is_whole(tmp_path):
    """Its checksum is right, so it was written like that: the numbers behind the break are used up."""
    body = frame.join_events([encode(metrics(P, 1)), encode(metrics(P, 2))], 2)[:-3]
    written(tmp_path / "bus", frame.pack(frame.EVENTS, body, producer=P, first_seq=1, count=2), events_frame(P, 3, 3))
    reader = reader_of(tmp_path)
    assert (seqs(everything(reader)), reader.statistics().undecodable) == ([1, 3], 1)


def test_files_among_the_writers_are_counted_once(tmp_path, caplog):
    """A file where directories belong is foreign: left alone, said once."""
    (tmp_path / ".DS_Store").write_bytes(b"x")
    written(tmp_path / "bus", events_frame(P, 1, 1))
    reader = reader_of(tmp_path)
    assert (seqs(everything(reader)), everything(reader)) == ([1], [])
    assert (reader.statistics().corrupt, len(caplog.records)) == ({"foreign_file": 1}, 1)


def test_a_journal_that_cannot_be_listed_now_is_tried_again(tmp_path, monkeypatch):
    """A stale handle of a network file system raises nothing here."""
    written(tmp_path / "bus", events_frame(P, 1, 1))
    reader = reader_of(tmp_path)
    real = os.scandir

    def stale(path):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "scandir", stale)
    assert (reader.read(10), reader.statistics().corrupt) == ([], {"unreadable": 1})
    monkeypatch.setattr(os, "scandir", real)
    assert seqs(reader.read(10)) == [1]


def test_a_lost_row_is_found_elsewhere(tmp_path, caplog):
    """A flipped bit in one writer's file costs nothing when the events were resent to another one."""
    caplog.set_level(logging.ERROR)
    written(tmp_path / "bus-1", events_frame(P, 1, 3), events_frame(P, 4, 6)).close()
    path = segments(tmp_path / "bus-1")[0]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(bytes(data))
    reader = reader_of(tmp_path, torn_hold=0)
    assert everything(reader) == []
    written(tmp_path / "bus-2", events_frame(P, 1, 4), clock=Clock(1001))
    assert seqs(everything(reader)) == [1, 2, 3, 4, 5, 6]
    assert reader.statistics().corrupt == {"frame_crc": 1}


# One-shot readers.


def test_finishing_gives_up_all_waiting(tmp_path):
    """Of a dead run: what is held comes, torn ends are ends, everything that can be read was read."""
    written(tmp_path / "bus", events_frame(P, 1, 2), events_frame(P, 4, 4)).close()
    path = segments(tmp_path / "bus")[0]
    path.write_bytes(path.read_bytes() + b"\xa5BR1 torn")
    reader = reader_of(tmp_path)
    assert seqs(everything(reader)) == [1, 2]
    assert seqs(reader.finish()) == [4]
    assert (reader.finish(), reader.statistics().corrupt, reader.statistics().gaps) == ([], {"row": 1}, 1)
    assert reader.producers[P].missing == [(3, 3)]


def test_finishing_without_reading_first_returns_everything(tmp_path):
    """An export may call it alone."""
    written(tmp_path / "bus", events_frame(P, 1, 500), events_frame(P, 502, 502))
    reader = reader_of(tmp_path)
    assert seqs(reader.finish()) == [*range(1, 501), 502]


def test_rows_that_appear_after_finishing_are_read(tmp_path):
    """A run that was thought dead goes on: its new writers' rows, and what was missing, are read."""
    written(tmp_path / "bus", events_frame(P, 1, 1), events_frame(P, 3, 3))
    reader = reader_of(tmp_path)
    reader.finish()
    written(tmp_path / "bus-2", events_frame(P, 2, 4))
    assert seqs(everything(reader)) == [2, 4]


def test_statistics_are_counts_since_the_reader_was_made(tmp_path):
    """One snapshot of everything that was met."""
    written(tmp_path / "bus", events_frame(P, 1, 3), events_frame(P, 1, 3), records_frame(BUS, 1, Tick(1)), clock=Clock(5))
    reader = reader_of(tmp_path)
    everything(reader)
    assert reader.statistics()._asdict() == {
        "writers": 1,
        "rows": 3,
        "events": 4,
        "duplicates": 3,
        "gaps": 0,
        "held_events": 0,
        "held_bytes": 0,
        "undecodable": 0,
        "unknown_kinds": 0,
        "corrupt": {},
        "skipped_bytes": 0,
        "newest_ns": 5 * SECOND,
    }
