"""The audit: where every event and every value is, and why the books do not balance when they do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from accelbus import RunNotFoundError, host
from accelbus.config import Tuning
from accelbus.delivery.cursor import Delivered, cursor_path, read_cursor, write_cursor
from accelbus.delivery.ownership import claim
from accelbus.journal.salvage import open_spool, producer_is_gone
from accelbus.reader.audit import Audit, audit
from tests.support.runs import HandRun, finished_run


def audited(run: HandRun) -> Audit:
    return audit(run.dir, tuning=run.tuning)


# Events: producer → journal


def test_a_run_with_everything_in_its_journal_balances(tmp_path):
    """Nothing is missing, lost, dropped or pending."""
    run = finished_run(tmp_path, ranks=2, steps=5)
    run.deliver(finish=True)
    found = audited(run)
    assert found.balanced
    assert found.is_settled
    assert found.status == "finished"
    assert [(one.rank, one.attempt, one.logged, one.journal, one.missing, one.lost) for one in found.producers] == [
        (0, 0, 7, 7, [], 0),
        (1, 0, 7, 7, [], 0),
    ]
    assert [one.state for one in found.producers] == ["finished", "finished"]


def test_missing_numbers_of_a_producer_that_is_gone_are_lost_and_named(run):
    """The audit does not balance, and says which numbers of which rank are lost."""
    producer = run.producer().log(9)
    producer.write(1, 3).write(7, 8)
    run.bus.saw(producer, "dead", "killed")
    found = audited(run)
    assert not found.balanced
    (one,) = found.producers
    assert (one.logged, one.journal, one.pending, one.lost) == (10, 5, 0, 5)
    assert one.missing == [(4, 6), (9, 10)]
    (problem,) = found.problems
    assert "rank 0, attempt 0: 5 of 10 events are lost (numbers 4-6, 9-10)" in problem


def test_a_wiped_spool_is_found_by_what_the_bus_process_last_heard(run):
    """Numbers that a rank reported in a heartbeat and that are nowhere are lost, though no record speaks of them."""
    producer = run.producer().log(9).write(1, 6)
    producer.acked = 6
    run.write_status(producer)
    found = audited(run)
    (one,) = found.producers
    assert (one.state, one.missing, one.lost) == ("gone", [(7, 10)], 4)
    assert not found.balanced


def test_what_a_dead_producers_spool_still_holds_is_pending(run):
    """Salvage can bring it in: accounted for."""
    producer = run.producer().log(9).write(1, 6)
    producer.spool(acked=4)
    found = audited(run)
    (one,) = found.producers
    assert (one.logged, one.journal, one.pending, one.lost, one.missing) == (10, 6, 4, 0, [(7, 10)])
    assert found.balanced
    assert not found.is_settled


def test_what_is_neither_in_journal_nor_spool_is_lost(run):
    """A spool holds what was not acked; a hole before that is a loss."""
    run.producer().log(9).write(1, 3).spool(acked=6)
    found = audited(run)
    (one,) = found.producers
    assert (one.pending, one.lost, one.missing) == (4, 3, [(4, 10)])
    assert not found.balanced


def test_a_producer_that_nobody_ever_heard_of_is_found_by_its_spool(run):
    """Killed before its first frame was sent: logged, pending, not in the journal."""
    run.producer(3, ranks=4).log(2).spool()
    found = audited(run)
    (one,) = found.producers
    assert (one.rank, one.role, one.logged, one.journal, one.pending) == (3, "trainer", 3, 0, 3)
    assert found.balanced


def test_what_a_live_producer_has_logged_is_pending(run):
    """Numbers beyond its last ack are on their way."""
    producer = run.producer(pid=os.getpid()).log(9).write(1, 6)
    producer.acked = 6
    run.write_status(producer, pid=os.getpid())
    found = audited(run)
    (one,) = found.producers
    assert (one.state, one.pending, one.lost) == ("alive", 4, 0)
    assert found.balanced


def test_what_was_acked_must_be_in_the_journal_even_while_its_producer_lives(run):
    """An ack without an event in the journal is a loss, not something on its way."""
    producer = run.producer(pid=os.getpid()).log(9).write(1, 5)
    producer.acked = 8
    run.write_status(producer, pid=os.getpid())
    found = audited(run)
    assert found.producers[0].lost == 3
    assert "they were acked, and are not in the journal" in found.problems[0]


def test_a_producer_on_another_host_that_nobody_hears_is_not_written_off(run):
    """Its spool may still be there; the audit says where to look."""
    producer = run.producer(where="node17").log(9).write(1, 6)
    run.write_status(producer, where="node17", age=1000)
    found = audited(run)
    assert found.producers[0].state == "unknown"
    assert not found.balanced
    assert "run accelbus salvage there" in found.problems[0]
    assert "node17" in found.problems[0]


def test_events_that_are_twice_in_the_journal_count_once(run):
    """Frame boundaries differ between what was sent, resent and spilled."""
    producer = run.producer().log(9).write(1, 6).write(4, 10)
    run.write("spill-x", producer.frame(2, 5))
    run.bus.saw(producer, "finished", "finished")
    found = audited(run)
    assert (found.producers[0].journal, found.values, found.duplicates) == (10, 18, 7)
    assert found.balanced


def test_dropped_counts_come_from_whoever_knows_more(run):
    """Record, snapshot and spool each count up; the highest is the latest."""
    producer = run.producer().log(2).write()
    run.bus.saw(producer, "dead", "killed", dropped={"full": 2, "bad_step": 1})
    producer.dropped = {"full": 3}
    run.write_status(producer)
    producer.spool(acked=3, dropped={"unsupported_value": 4})
    found = audited(run)
    assert found.dropped == {"bad_step": 1, "full": 3, "unsupported_value": 4}
    assert found.balanced


def test_attempts_and_roles_are_kept_apart(run):
    """A rank that came back is two producers; an evaluator is neither."""
    first = run.producer(launch=b"1" * 16).log(3).write()
    run.bus.saw(first, "dead", "killed")
    run.producer(launch=b"2" * 16).log(2).end().write()
    run.producer(role="evaluator", launch=b"2" * 16).log(1).end().write()
    found = audited(run)
    assert [(one.attempt, one.role, one.values) for one in found.producers] == [(0, "trainer", 6), (1, "trainer", 4), (1, "evaluator", 2)]
    assert found.balanced


def test_an_event_that_cannot_be_decoded_is_not_passed_over(run):
    """It is in the journal and its values are not: the books cannot balance."""
    run.producer().log(1).add([31, "of the future"]).log(1).end().write()
    found = audited(run)
    assert not found.balanced
    assert "1 events in the journal cannot be decoded" in found.problems[0]


def test_foreign_bytes_that_cost_nothing_are_a_note(run):
    """Garbage beside good rows is reported; nothing known is missing."""
    run.producer().log(2).end().write()
    (run.dir.journal / "stranger").mkdir()
    (run.dir.journal / "stranger" / "00000001.seg").write_bytes(b"not a segment" * 100)
    found = audited(run)
    assert found.balanced
    assert any("damaged or foreign bytes" in note for note in found.notes)


def test_an_empty_journal_balances(run):
    """Nothing logged, nothing owed."""
    found = audited(run)
    assert found.balanced
    assert found.producers == []
    assert found.status == "open"


def test_a_directory_without_a_journal_is_refused(tmp_path):
    """The error names it."""
    with pytest.raises(RunNotFoundError, match="has no journal"):
        audit(tmp_path)


def test_the_audit_of_a_live_spool_leaves_its_lock_alone(run):
    """Closing a second descriptor would drop this process's record lock, and everybody would take the producer for dead."""
    producer = run.producer(pid=os.getpid()).log(4)
    path = producer.spool(alive=True)
    found = audited(run)
    assert found.producers[0].state == "alive"
    assert found.producers[0].pending == 5
    check = f"import os, fcntl; fcntl.lockf(os.open({str(path)!r}, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    try:
        locked_out = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
        assert "BlockingIOError" in locked_out.stderr
    finally:
        producer.close_spool()
    descriptor = open_spool(path)
    assert producer_is_gone(descriptor)
    os.close(descriptor)


def test_the_audit_of_another_process_spool_sees_it_alive(run):
    """The record lock says so, whatever the process id."""
    producer = run.producer(pid=os.getpid()).log(4)
    path = producer.spool(alive=True)
    script = f"from accelbus.reader.audit import audit; from accelbus.config import Tuning; print(audit({str(run.path)!r}, tuning=Tuning(spool_dir={str(path.parent)!r})).producers[0].state)"
    try:
        seen = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    finally:
        producer.close_spool()
    assert seen.stdout.strip() == "alive"


# Values: journal → sink


def test_values_beyond_a_cursor_are_pending(tmp_path):
    """A sink that stopped in the middle owes the rest."""
    run = finished_run(tmp_path, ranks=1, steps=10)
    run.deliver(items=5)  # joined, start, three steps
    found = audited(run)
    books = found.sinks["jsonl"].ranks[0]
    assert (books.journal, books.read, books.delivered, books.pending) == (20, 6, 6, 14)
    assert found.balanced
    assert not found.is_settled


def test_a_sink_that_never_started_owes_everything(tmp_path):
    """No cursor, all pending."""
    found = audited(finished_run(tmp_path, ranks=2, steps=3))
    sink = found.sinks["jsonl"]
    assert (sink.cursor, sink.pending, found.values) == ("none", 12, 12)
    assert found.balanced


def test_values_a_view_holds_open_are_pending(run):
    """A rank waits for the other one; its values are read and not delivered."""
    for rank in (0, 1):
        run.bus.joined(run.producer(rank, ranks=2))
    run.producer(0, ranks=2, pid=os.getpid()).log(3).write()
    run.deliver()
    books = audited(run).sinks["jsonl"].ranks[0]
    assert (books.read, books.pending, books.delivered) == (6, 6, 0)


def test_filtered_superseded_and_dead_lettered_values_are_told_apart(run):
    """Each value has exactly one place."""
    producer = run.producer(ranks=2).log(1, loss=None).log(1, loss=1.0)  # nobody has seen the other rank: points stay open
    producer.step = 1
    producer.log(1, loss=2.0).log(2, loss=3.0).end().write()
    run.bus.close_run()
    run.deliver(dead=1, finish=True)
    found = audited(run)
    books = found.sinks["jsonl"].ranks[0]
    assert books.journal == books.delivered + books.filtered + books.superseded + books.dead_lettered == 5
    assert (books.delivered, books.filtered, books.superseded, books.dead_lettered, books.pending) == (2, 1, 1, 1, 0)
    assert found.balanced


def test_a_cursor_that_counts_too_much_is_found_out(tmp_path):
    """Delivered is off by one: the equation of the rank is spelled out."""
    run = finished_run(tmp_path, ranks=1, steps=4)
    cursor = run.deliver(finish=True)
    cursor.ranks[0] = Delivered(9, 0)
    write_cursor(run.dir.sink("jsonl"), cursor)
    found = audited(run)
    assert not found.balanced
    assert found.problems == [
        "jsonl, rank 0: 8 values read = 9 delivered + 0 held + 0 filtered + 0 superseded + 0 dead letters is off by -1"
    ]


def test_a_cursor_that_read_an_event_and_skipped_its_values_is_found_out(tmp_path):
    """What the sink says it read is compared with the values of exactly the events it read."""
    run = finished_run(tmp_path, ranks=1, steps=4)
    cursor = run.deliver(finish=True)
    cursor.view.counts[0].read -= 2
    cursor.view.counts[0].emitted -= 2
    cursor.ranks[0].delivered -= 2
    write_cursor(run.dir.sink("jsonl"), cursor)
    found = audited(run)
    assert found.problems == ["jsonl, rank 0: the cursor counts 6 values read, the events it has read hold 8"]


def test_a_journal_that_was_lost_after_delivery_is_said_and_no_count_is_negative(tmp_path):
    """Deleted under a live run, for example: what is there now is what can be pending."""
    run = finished_run(tmp_path, ranks=1, steps=40)
    run.deliver()
    shutil.rmtree(run.dir.journal)
    run.dir.journal.mkdir()
    run.producer().log(3).write()
    found = audited(run)
    assert (found.sinks["jsonl"].ranks[0].pending, found.pending_values) == (6, 6)
    assert "jsonl, rank 0: 80 values were read, and the journal holds only 0 of them now" in found.problems


def test_a_damaged_cursor_owes_everything_again_and_says_so(tmp_path):
    """Nothing is known of the sink; the run's events are still counted."""
    run = finished_run(tmp_path, ranks=1, steps=4)
    run.deliver(finish=True)
    cursor_path(run.dir.sink("jsonl")).write_bytes(b"ABC1 damaged")
    found = audited(run)
    assert found.sinks["jsonl"].cursor == "unreadable"
    assert found.sinks["jsonl"].pending == 8
    assert "will be delivered again" in found.problems[0]


def test_a_live_owner_is_named(tmp_path):
    """Whoever delivers right now has a lease."""
    run = finished_run(tmp_path)
    lease = claim(run.dir.sink("jsonl"), tuning=run.tuning, purpose="sync")
    assert f"sync process {os.getpid()} on {host.name()}" in audited(run).sinks["jsonl"].owner
    lease.release()
    assert audited(run).sinks["jsonl"].owner == ""


def test_sinks_that_sync_added_are_audited_too(tmp_path):
    """A tracker the run did not ask for has a directory of its own."""
    run = finished_run(tmp_path, sinks=())
    run.deliver("extra", finish=True)
    found = audited(run)
    assert list(found.sinks) == ["extra"]
    assert found.sinks["extra"].pending == 0
    assert found.balanced


def test_a_run_record_that_cannot_be_read_is_a_note(tmp_path):
    """The sinks that were started are known all the same."""
    run = finished_run(tmp_path)
    run.deliver(finish=True)
    run.dir.record_path.write_text("{")
    found = audited(run)
    assert found.balanced
    assert list(found.sinks) == ["jsonl"]
    assert "run.json cannot be read" in found.notes[0]


def test_an_audit_is_plain_data(tmp_path):
    """It can be written down and compared."""
    run = finished_run(tmp_path)
    found = audited(run)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Audit) == found


def test_a_journal_that_grows_during_the_audit_does_not_unbalance_it(tmp_path):
    """A writer and a sink at work meanwhile: pending may be more or less, but nothing is lost and no count negative."""
    run = HandRun(tmp_path)
    producer = run.producer(pid=os.getpid())
    producer.write(1, 1)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            producer.log(5).write(producer.last_seq - 4, producer.last_seq)
            run.deliver()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(20):
            found = audited(run)
            assert found.balanced, found.problems
            assert all(books.pending >= 0 for books in found.sinks["jsonl"].ranks.values())
    finally:
        stop.set()
        worker.join()
        run.bus.close()


values = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.one_of(st.none(), st.floats(), st.integers(-5, 5), st.text(max_size=3), st.booleans()), max_size=3
)
calls = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), values), max_size=25)


@given(calls=calls, cuts=st.lists(st.integers(1, 12), max_size=5), resend=st.booleans())
@settings(max_examples=25, deadline=None)
def test_whatever_ranks_log_and_wherever_a_sink_stands_the_books_balance(tmp_path_factory, calls, cuts, resend):
    """Steps in any order, logged twice, None and text, ranks that never come: every value has one place at every cursor."""
    run = HandRun(tmp_path_factory.mktemp("run"))
    producers = [run.producer(rank, ranks=3) for rank in range(3)]
    for producer in producers:
        producer.write(1, 1)
    for rank, step, logged in calls:
        producers[rank].step = step - 1
        producers[rank].log(1, **logged)
        producers[rank].write(1 if resend else producers[rank].last_seq)
    for items in cuts:
        run.deliver(items=items)
        assert audited(run).balanced
    run.bus.close_run()
    run.deliver(finish=True)
    found = audited(run)
    assert found.balanced, found.problems
    assert found.is_settled
    assert read_cursor(run.dir.sink("jsonl")).finished_as == "finished"
    run.bus.close()


def test_tuning_comes_from_the_environment(run, monkeypatch):
    """`audit(path)` alone is enough."""
    run.producer().log(2).spool()
    monkeypatch.setenv("ACCELBUS_SPOOL_DIR", str(run.spools))
    assert audit(run.path).pending_events == 3
    assert audit(str(run.path), tuning=Tuning()).pending_events == 0
