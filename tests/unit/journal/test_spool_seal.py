"""Sealing a queue: a handler that interrupts `append` seals, and may close, the queue that the interrupted call goes on with."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from accelbus.journal.memory_queue import MemoryQueue
from accelbus.journal.spool import Spool
from accelbus.journal.spool_file import SpoolFile
from tests.unit.journal.test_spool import HELLO

LAST = msgspec.msgpack.encode("the end")
TRIALS = 150
Queue = Spool | MemoryQueue


def ring(path: Path) -> Spool:
    return Spool(SpoolFile(path, capacity=1 << 20, description=HELLO), largest=1 << 16)


def memory(path: Path) -> MemoryQueue:
    return MemoryQueue(SpoolFile(path, capacity=0, description=HELLO), max_bytes=1 << 20)


@pytest.fixture(params=[ring, memory])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Queue]:
    return lambda number: request.param(tmp_path / f"{number}.spool")


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[[], None], float], None]]:
    """Call a function out of a signal handler, after some seconds."""
    previous = signal.getsignal(signal.SIGALRM)

    def arrange(act: Callable[[], None], seconds: float) -> None:
        def handle(_: int, __: FrameType | None) -> None:
            act()

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield arrange
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


def everything_in(queue: Queue) -> list[bytes]:
    found: list[bytes] = []
    while (batch := queue.take(1000, 1 << 30)) is not None:
        found += (msgspec.msgpack.encode(event) for event in msgspec.msgpack.decode(batch.body))
    return found


@pytest.mark.parametrize("size", [10, 5000, 40_000], ids=["quick", "large", "slow path"])
def test_a_handler_that_seals_and_closes_leaves_no_event_uncounted(
    make: Callable[[int], Queue], on_alarm: Callable[[Callable[[], None], float], None], size: int
) -> None:
    """Each append that returned True is in the queue, before the last event; the interrupted one as well, or it returns False."""
    source = random.Random(size)
    interrupted = 0
    for trial in range(TRIALS):
        queue = make(trial)
        found: list[bytes] = []

        def seal(queue: Queue = queue, found: list[bytes] = found) -> None:
            queue.seal(LAST)
            found += everything_in(queue)
            queue.close(unlink=True)

        kept: list[bytes] = []
        on_alarm(seal, source.uniform(20e-6, 300e-6))
        number = 0
        while not found:
            payload = msgspec.msgpack.encode((number, b"x" * size))
            if queue.append(payload):
                kept.append(payload)
            elif not found:
                queue.take(1000, 1 << 30)
                queue.release(queue.taken_seq)
                kept.clear()
            number += 1
            interrupted += bool(found)
        assert found[-1] == LAST
        assert found[:-1] == kept
        assert not queue.append(LAST)
        assert not queue.append_reserved(LAST)
    assert interrupted


def test_events_that_wait_for_an_interrupted_append_come_before_the_last_one(tmp_path: Path) -> None:
    """A handler logs, and seals: what it logged was promised to it."""
    spool: Spool
    inner: list[bool] = []

    def wake() -> None:  # within an append that has committed its event, or is about to
        if not inner:
            inner.append(spool.append(msgspec.msgpack.encode("inner")))
            spool.seal(LAST)

    spool = Spool(SpoolFile(tmp_path / "a.spool", capacity=1 << 20, description=HELLO), wake=wake)
    outer = spool.append(msgspec.msgpack.encode("outer"))
    assert (outer, inner) == (True, [True])
    assert [msgspec.msgpack.decode(event) for event in everything_in(spool)] == ["outer", "inner", "the end"]
    assert not spool.file.dropped()
    spool.close(unlink=True)


def test_threads_that_append_while_the_queue_is_sealed_know_whether_they_were_in_time(make: Callable[[int], Queue]) -> None:
    """No event follows the last one, and none is lost that `append` returned True for."""
    for trial in range(20):
        queue = make(trial)
        kept: list[list[bytes]] = [[], []]

        def produce(name: int, queue: Queue = queue, kept: list[list[bytes]] = kept) -> None:
            for number in range(10_000):
                payload = msgspec.msgpack.encode((name, number))
                if not queue.append(payload):
                    return
                kept[name].append(payload)

        threads = [threading.Thread(target=produce, args=(name,)) for name in range(2)]
        for thread in threads:
            thread.start()
        while not (kept[0] or kept[1]):
            pass
        queue.seal(LAST)
        for thread in threads:
            thread.join()
        found = everything_in(queue)
        if found[-1] == LAST:  # else the ring was full, also the room that is reserved
            assert sorted(found[:-1]) == sorted(kept[0] + kept[1])
        queue.close(unlink=True)
