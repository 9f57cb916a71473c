"""The ring: what `append` returned for is there, whatever happens next."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from accelbus import frame
from accelbus.control import Hello
from accelbus.journal.salvage import open_spool, salvage
from accelbus.journal.spool import Spool
from accelbus.journal.spool_file import SpoolFile

HELLO = Hello(
    producer=b"p" * 16, run_id="r", run_dir="/r", rank=0, world_size=1, local_rank=0, local_world_size=1, host="h", pid=1,
    role="trainer", launch=b"l" * 16, launcher="", base_seq=1, last_seq=0,
)  # fmt: skip
CAPACITY = 256 * 1024


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    ring = Spool(SpoolFile(tmp_path / "a.spool", capacity=CAPACITY, description=HELLO))
    yield ring
    ring.close(unlink=True)


def payload(number: int, size: int = 40) -> bytes:
    return msgspec.msgpack.encode([number, "x" * size])


def left_in(spool: Spool) -> list[Any]:
    remains = salvage(spool.file.descriptor, max_events=1000, max_bytes=1 << 20)
    return [event for batch in remains.batches for event in msgspec.msgpack.decode(batch.body)]


def taken(spool: Spool) -> list[Any]:
    batch = spool.take(1 << 20, 1 << 30)
    return [] if batch is None else list(msgspec.msgpack.decode(batch.body))


def test_events_come_out_in_order_with_their_sequence_numbers(spool: Spool) -> None:
    """A batch names the number of its first event and holds consecutive ones."""
    for number in range(5):
        assert spool.append(payload(number))
    first, second = spool.take(3, 1 << 20), spool.take(3, 1 << 20)
    assert first is not None
    assert second is not None
    assert (first.first_seq, first.count, second.first_seq, second.count) == (1, 3, 4, 2)
    assert [event[0] for event in msgspec.msgpack.decode(second.body)] == [3, 4]


def test_what_was_not_released_can_be_salvaged(spool: Spool) -> None:
    """Taking an event for sending frees nothing; only an ack does."""
    for number in range(6):
        spool.append(payload(number))
    spool.take(2, 1 << 20)
    spool.take(4, 1 << 20)
    spool.release(2)
    assert [event[0] for event in left_in(spool)] == [2, 3, 4, 5]


def test_an_uncommitted_record_is_not_there(spool: Spool) -> None:
    """A process killed between the copy and the commit word leaves nothing of the event."""
    spool.append(payload(0))
    torn = payload(1)
    below = spool._head - (len(torn) + 23 & -8)
    spool.file.map[below + 8 : below + 8 + len(torn)] = torn
    spool.file.map[spool._head - 8 : spool._head] = len(torn).to_bytes(8, sys.byteorder)
    assert [event[0] for event in left_in(spool)] == [0]


def test_records_of_an_earlier_lap_are_not_mistaken_for_new_ones(spool: Spool) -> None:
    """After several laps the scan still ends at the newest event."""
    number = 0
    for _ in range(4 * CAPACITY // 1000):
        assert spool.append(payload(number, 900))
        taken(spool)
        spool.release(number)  # keeps the newest one
        number += 1
    assert [event[0] for event in left_in(spool)] == [number - 1]


def test_a_payload_that_looks_like_the_next_record_is_not_mistaken_for_it(spool: Spool) -> None:
    """What lies where the next record will begin, left from an earlier lap, may be any bytes, also the number that is due there."""
    source = random.Random(1)
    per_lap = CAPACITY // 912
    for number in range(1, 3 * per_lap):
        due = [max(number + per_lap + source.randint(-8, 8), 0) for _ in range(source.randint(104, 120))]
        assert spool.append(b"".join(one.to_bytes(8, sys.byteorder) for one in due))
        spool.take(1, 1 << 20)
        spool.release(number - 1)
        remains = salvage(spool.file.descriptor, max_events=1000, max_bytes=1 << 20)
        assert (remains.released_seq, remains.last_seq) == (number - 1, number)


def test_a_full_ring_refuses_and_keeps_room_for_lifecycle_events(spool: Spool) -> None:
    """The last 64 KiB are for events that say how a run ended."""
    while spool.append(payload(0, 1000)):
        pass
    assert not spool.append(payload(1, 1000))
    assert spool.append_reserved(payload(2, 1000))
    assert left_in(spool)[-1][0] == 2


def test_an_event_larger_than_an_eighth_of_the_ring_is_refused_or_kept_whole(spool: Spool) -> None:
    """However large an event is, the hot path never writes past its limit."""
    for size in (CAPACITY // 8, CAPACITY // 2, CAPACITY * 2):
        before = spool.last_seq
        kept = spool.append(payload(size, size))
        assert spool.last_seq == before + kept
    assert all(len(event[1]) == event[0] for event in left_in(spool))


def test_the_pump_is_woken_before_the_ring_is_full(tmp_path: Path) -> None:
    """Eight times per lap, so that a burst does not wait for the next tick."""
    wakes: list[float] = []
    ring = Spool(SpoolFile(tmp_path / "b.spool", capacity=CAPACITY, description=HELLO), wake=lambda: wakes.append(ring.fill))
    while ring.fill < 0.5:
        ring.append(payload(0, 400))
    assert 3 <= len(wakes) <= 6
    ring.close(unlink=True)


def _trace_lines(code: Any, act: Callable[[], None], at: int) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that acts once, before the *at*-th line of *code* runs."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code is not code:
            return trace if event == "call" else None
        if event == "line":
            seen += 1
            if seen == at:
                sys.settrace(None)
                act()
        return trace

    return trace


LINES = range(1, 18)  # that the hot path of `append` runs


@pytest.mark.parametrize("line", LINES)
def test_an_append_that_interrupts_another_one_loses_neither(spool: Spool, line: int) -> None:
    """A signal handler, a finaliser or an encode hook may log before any line of `append`."""
    spool.append(payload(0))
    sys.settrace(_trace_lines(Spool.append.__code__, lambda: spool.append(payload(2)) and None, line))
    try:
        spool.append(payload(1))
    finally:
        sys.settrace(None)
    spool.append(payload(3))
    events = [event[0] for event in left_in(spool)]
    assert sorted(events) == [0, 1, 2, 3]
    assert (events[0], events[-1]) == (0, 3)


@pytest.mark.parametrize("line", LINES)
def test_an_interrupted_append_leaves_a_ring_that_works(spool: Spool, line: int) -> None:
    """Ctrl-C can hit before any line; the event is there or not, and the next ones are."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    spool.append(payload(0))
    sys.settrace(_trace_lines(Spool.append.__code__, interrupt, line))
    try:
        spool.append(payload(1))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    assert spool.append(payload(2))
    assert spool.append(payload(3))
    assert [event[0] for event in left_in(spool)] in ([0, 1, 2, 3], [0, 2, 3])


@pytest.mark.parametrize("code", [Spool._append_at_limit.__code__, Spool._commit.__code__], ids=lambda code: code.co_name)
@pytest.mark.parametrize("line", range(1, 24))
def test_an_append_that_is_interrupted_where_the_ring_wraps_leaves_a_ring_that_works(spool: Spool, code: CodeType, line: int) -> None:
    """The slow path, which wraps around and finds more room, can be hit before any of its lines too."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    number = 0
    while spool._index + 1200 < CAPACITY // 8:
        assert spool.append(payload(number, 1000))
        number += 1
        taken(spool)
        spool.release(number - 2)
    sys.settrace(_trace_lines(code, interrupt, line))
    try:
        for _ in range(12):
            spool.append(payload(number, 1000))
            number += 1
    except KeyboardInterrupt:
        number += 1
    finally:
        sys.settrace(None)
    numbers = [event[0] for event in left_in(spool)]
    for after in range(number, number + 3):
        assert spool.append(payload(after, 500))
    assert [event[0] for event in left_in(spool)] == [*numbers, *range(number, number + 3)]
    assert set(range(numbers[0], number)) - set(numbers) <= {number - 1}
    assert [event[0] for event in taken(spool)][-3:] == list(range(number, number + 3))


APPEND_FOR_EVER = """
import hashlib, itertools, pathlib, random, sys
from accelbus.journal.spool import Spool
from accelbus.journal.spool_file import SpoolFile
from tests.unit.journal.test_spool import HELLO
spool = Spool(SpoolFile(pathlib.Path(sys.argv[1]), capacity=1 << 16, description=HELLO))
source = random.Random(sys.argv[2])
for number in itertools.count():
    text = number.to_bytes(8, "big") + source.randbytes(source.randrange(600))
    while not spool.append(hashlib.blake2b(text, digest_size=16).digest() + text):
        while spool.take(8, 1 << 30):
            pass
        spool.release(spool.taken_seq - 3)
    if number == 2000:
        print("ready", flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_producer_killed_at_any_instant_leaves_whole_events_in_order(tmp_path: Path, seed: int) -> None:
    """Each event carries a check sum of itself."""
    path = tmp_path / "killed.spool"
    process = subprocess.Popen([sys.executable, "-c", APPEND_FOR_EVER, str(path), str(seed)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    select.select([], [], [], random.Random(seed).random() / 20)
    process.kill()
    process.communicate()
    descriptor = open_spool(path)
    remains = salvage(descriptor, max_events=1, max_bytes=1 << 20)
    os.close(descriptor)
    payloads = [batch.body[frame.ARRAY_HEADER_BYTES :] for batch in remains.batches]
    assert remains.last_seq > 2000
    assert payloads
    assert all(hashlib.blake2b(raw[16:], digest_size=16).digest() == raw[:16] for raw in payloads)
    assert [int.from_bytes(raw[16:24], "big") for raw in payloads] == list(range(remains.released_seq, remains.last_seq))


def test_a_lost_token_is_found_again(spool: Spool) -> None:
    """An exception between taking the token and the try block must not silence the run for ever."""
    spool._token.clear()
    assert spool.append(payload(1))
    assert spool.append(payload(2))
    assert [event[0] for event in left_in(spool)] == [1, 2]


def test_many_threads_and_a_timer_signal_append_at_once(spool: Spool) -> None:
    """Every event of every thread and of the signal handler is there once, in its thread's order."""
    collected: list[Any] = []
    numbers = itertools.count()
    refused: list[int] = []
    done = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        number = next(numbers)  # atomic: a handler can interrupt itself
        if not spool.append(msgspec.msgpack.encode(["signal", number])):
            refused.append(number)

    def collect() -> None:
        while not done.is_set() or spool.taken_seq < spool.last_seq:
            collected.extend(taken(spool))
            spool.release(spool.taken_seq)

    def produce(name: str) -> None:
        for number in range(4000):
            while not spool.append(msgspec.msgpack.encode([name, number])):
                pass

    previous = signal.signal(signal.SIGALRM, on_signal)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    collector = threading.Thread(target=collect)
    threads = [threading.Thread(target=produce, args=(name,)) for name in "ab"]
    for thread in (collector, *threads):
        thread.start()
    try:
        produce("main")
        for thread in threads:
            thread.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0, 0)
        signal.signal(signal.SIGALRM, previous)
        done.set()
        collector.join()
    for name in ("a", "b", "main"):
        assert [number for who, number in collected if who == name] == list(range(4000))
    kept = [number for who, number in collected if who == "signal"]
    issued = next(numbers)
    assert kept
    assert len(set(kept)) == len(kept)
    # What was left to an interrupted call and found the ring full is counted; the handler knows of what was refused at once.
    assert len(kept) + len(refused) + spool.file.dropped().get("full", 0) == issued


def test_counters_survive_in_the_file(spool: Spool) -> None:
    """What was not kept is known to whoever finds the spool."""
    spool.file.count_dropped("bad_step", 3)
    spool.file.count_dropped("full")
    assert salvage(spool.file.descriptor, max_events=1, max_bytes=1).dropped == {"bad_step": 3, "full": 1}


class SpoolMachine(RuleBasedStateMachine):
    """Random appends, takes, releases and rewinds against a list."""

    folder: Path

    @initialize()
    def open(self) -> None:
        self.ring = Spool(SpoolFile(self.folder / "machine.spool", capacity=128 * 1024, description=HELLO))
        self.model: list[bytes] = []
        self.released = self.taken = 0

    @rule(size=st.integers(0, 20_000), times=st.integers(1, 30))
    def append(self, size: int, times: int) -> None:
        for _ in range(times):
            event = payload(len(self.model), size)
            if not self.ring.append(event):
                break
            self.model.append(event)

    @rule(count=st.integers(1, 40), size=st.integers(1, 60_000))
    def take(self, count: int, size: int) -> None:
        batch = self.ring.take(count, size)
        if batch is None:
            assert self.taken == len(self.model)
            return
        assert batch.first_seq == self.taken + 1
        expected = self.model[self.taken : self.taken + batch.count]
        assert [msgspec.msgpack.encode(event) for event in msgspec.msgpack.decode(batch.body)] == expected
        self.taken += batch.count

    @rule(back=st.integers(0, 20))
    def release(self, back: int) -> None:
        self.released = self.ring.release(max(self.taken - back, 0))
        assert self.released <= self.taken

    @precondition(lambda self: self.taken > self.released)
    @rule()
    def rewind(self) -> None:
        self.ring.rewind()
        self.taken = self.released

    @invariant()
    def everything_unreleased_can_be_salvaged(self) -> None:
        remains = salvage(self.ring.file.descriptor, max_events=100, max_bytes=50_000)
        events = [event for batch in remains.batches for event in msgspec.msgpack.decode(batch.body)]
        assert [msgspec.msgpack.encode(event) for event in events] == self.model[self.released :]
        assert remains.last_seq == len(self.model) == self.ring.last_seq

    def teardown(self) -> None:
        self.ring.close(unlink=True)


def test_random_use_matches_a_list(tmp_path: Path) -> None:
    """Hypothesis looks for a sequence of calls after which an event is lost, doubled, changed or out of order."""
    machine = type("Machine", (SpoolMachine,), {"folder": tmp_path})
    case = machine.TestCase
    case.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
    case("runTest").runTest()
