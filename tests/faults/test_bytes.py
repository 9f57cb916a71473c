"""Bytes at the bus process's socket that no producer of ours would send."""

from __future__ import annotations

import random

import pytest
import zmq

from accelbus import control, frame
from accelbus.reader.audit import audit
from tests.support.job import Job, wait_until
from tests.support.peer import Peer, events, resealed, rubbish, throw_bytes

RANK = """
run = accelbus.init()
step = 0
say("up")
while not os.path.exists(os.environ["ROOT"] + "/stop"):
    run.log({"loss": float(step)}, step=step)
    step += 1
    time.sleep(0.005)
run.finish()
say(f"steps {step}")
"""


@pytest.fixture
def job(quick_job: Job) -> Job:
    return quick_job


def bad_frames(job: Job) -> int:
    return int(job.status().get("bus", {}).get("bad_frames", 0))


def stored(job: Job, peer: Peer) -> int:
    """Events of *peer* that the journal holds, each counted once."""
    return sum(producer.journal for producer in audit(job.run_dir).producers if producer.producer == peer.producer.hex())


def test_rubbish_is_counted_and_costs_nobody_anything(job: Job) -> None:
    """Neither raw bytes nor frames that fail a check, however many, disturb the producers or end the bus process."""
    (rank,) = job.start(RANK)
    rank.said("up")
    bus = wait_until(job.bus_pid)
    source = random.Random(14)
    throw_bytes(job, source)
    messages = rubbish(source)
    with Peer(job) as peer, Peer(job, zmq.REQ) as asker:
        for _ in range(3):
            for message in messages:
                peer.send(message)
        peer.send(b"two", b"parts")
        asker.send(b"a question with an empty frame before it")
        peer.send(bytes(3 * 1024 * 1024))
        wait_until(lambda: bad_frames(job) >= 3 * len(messages), what=f"{3 * len(messages)} bad frames counted: {job.status()}")
    job.signal_file("stop")
    assert rank.wait() == 0
    assert job.bus_pid() in (bus, None)
    job.wait_for_end()
    steps = int(rank.lines[-1].split()[1])
    assert job.points() == {("loss", step): float(step) for step in range(steps)}
    books = audit(job.run_dir)
    assert books.balanced, books.problems
    assert [producer.rank for producer in books.producers] == [0]
    assert job.bus_log().count("\n") < 60, job.bus_log()
    assert "Traceback" not in job.bus_log()


def test_a_producer_that_lies_harms_only_itself(job: Job) -> None:
    """Claims are checked before anything is acked: sequence, count, kind, version, and whose frame it is."""
    (rank,) = job.start(RANK)
    rank.said("up")
    with Peer(job) as peer:
        assert peer.greet().resume_from == 1
        peer.send(events(peer.producer, 1, 3))
        assert peer.answer(control.Ack).through_seq == 3
        for lie in (
            events(peer.producer, 4, 6, count=5_000),
            events(peer.producer, 4, 6, count=0),
            events(peer.producer, 4, 6, count=2),
            frame.pack(frame.EVENTS, b"", producer=peer.producer, first_seq=4, count=1),
            frame.pack(frame.EVENTS, b"\xdd\xff\xff\xff\xff", producer=peer.producer, first_seq=4, count=2**32 - 1),
            events(peer.producer, 0, 6),
            events(peer.producer, 4, 6, kind=frame.RECORDS),
            resealed(events(peer.producer, 4, 6), 8, frame.VERSION + 1),
            control.pack(control.Heartbeat(2**63), producer=peer.producer),
            control.pack(control.Bye(2**64 - 1, "finished"), producer=peer.producer),
            control.pack(control.Bye(3, "marvellous"), producer=peer.producer),
            control.pack(control.Welcome(b"x", 1, 1, 1, 1.0), producer=peer.producer),
            control.pack(peer.hello(base_seq=2**63, last_seq=2**63), producer=peer.producer),
            control.pack(peer.hello(rank=-1), producer=peer.producer),
            control.pack(peer.hello(role="trainer", rank=2**40, world_size=2**41), producer=peer.producer),
            control.pack(peer.hello(producer=b"short"), producer=peer.producer),
            control.pack(peer.hello(spool="/tmp/a\0b"), producer=peer.producer),
        ):
            before = bad_frames(job)
            peer.send(lie)
            wait_until(lambda before=before: bad_frames(job) > before, what=f"{lie!r} counted as bad")
        for stranger in (events(b"somebody else's!", 4, 6), events(peer.producer, 5, 6)):
            peer.ask(stranger, control.WhoAreYou)
        for _ in range(2):
            peer.send(events(peer.producer, 2, 5))
            assert peer.answer(control.Ack).through_seq == 5
        peer.send(events(peer.producer, 6, 6, kind=9))
        assert peer.answer(control.Ack).through_seq == 6
        peer.send(events(peer.producer, 7, 8))
        assert peer.answer(control.Ack).through_seq == 8
        wait_until(lambda: stored(job, peer) == 7, what="1 to 5, 7 and 8 in the journal")
        peer.say(control.Bye(8, "finished"))
        assert peer.answer(control.Ack).final
    job.signal_file("stop")
    assert rank.wait() == 0
    job.wait_for_end()
    assert "Traceback" not in job.bus_log()
    mine = {step: value for (key, step), value in job.points().items() if key == "loss"}
    assert mine == {step: float(step) for step in range(len(mine))}
    assert len(mine) == int(rank.lines[-1].split()[1])


def test_nonsense_in_a_hello_ends_nothing(job: Job) -> None:
    """A path that is no spool of that producer is left alone, and a record that is none is not used."""
    precious = job.root / "checkpoint.pt"
    precious.write_bytes(b"weights" * 1000)
    (rank,) = job.start(RANK, ACCELBUS_ROLE="trainer")
    rank.said("up")
    with Peer(job) as peer:
        for spool in (str(precious), str(job.root), "/dev/zero", str(job.root / "nothing"), "x" * 4000):
            peer.greet(producer=random.Random(spool).randbytes(16), spool=spool, record={"sinks": 5})
        peer.greet(spool=str(precious))
        peer.say(control.Bye(0, "finished"))
        assert peer.answer(control.Ack).final
        peer.say(peer.hello(run_id="another"))
        assert "another" in peer.answer(control.Refused).reason
    job.signal_file("stop")
    assert rank.wait() == 0
    wait_until(lambda: job.status().get("ranks"))
    assert precious.read_bytes() == b"weights" * 1000
    assert "Traceback" not in job.bus_log()
