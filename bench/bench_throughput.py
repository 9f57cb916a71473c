"""How many events per second do four producers bring into the journal, acked, against a bare PUSH/PULL pair?

The bare pair encodes the same events into batches of the same size and throws them away on arrival: no numbering, no check sum, no ring,
no ack, no file. Both are measured from the moment all producers are let go until the last event is where it belongs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.harness import ROOT, Bench, Numbers

PRODUCERS = 4
EVENTS = 400_000
"""Per producer; at the bar of 450,000 events/s the whole takes 3.5 s."""
QUICK_EVENTS = 20_000
WARM_UP_EVENTS = 1_000
VALUES = {"loss": 0.6931471805599453, "accuracy": 0.8125, "lr": 0.0003, "grad_norm": 1.4142135623730951}
TIMEOUT = 120.0


def journal(quick: bool) -> Numbers:
    """Four ranks log into one run and flush."""
    events = QUICK_EVENTS if quick else EVENTS
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-") as directory:
        run_id = f"bench-{uuid.uuid4().hex[:8]}"
        environs = [
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(PRODUCERS),
                "LOCAL_WORLD_SIZE": str(PRODUCERS),
                "ACCELBUS_RUN_ID": run_id,
                "ACCELBUS_DIR": directory,
            }
            for rank in range(PRODUCERS)
        ]
        numbers = _race("_log_events", [(str(events),) for _ in environs], environs)
        stored = _events_in_journal(Path(directory) / run_id / "journal")
    expected = PRODUCERS * (WARM_UP_EVENTS + events)
    assert stored == expected, f"{stored} events in the journal, expected {expected}"
    return numbers


def bare_pair(quick: bool) -> Numbers:
    """Four PUSH sockets, one PULL socket."""
    events = QUICK_EVENTS if quick else EVENTS
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-") as directory:
        address = f"ipc://{directory}/pair"
        return _race("_push_events", [(str(events), address)] * PRODUCERS, [{}] * PRODUCERS, receiver=address)


def _race(role: str, arguments: Sequence[tuple[str, ...]], environs: Sequence[Mapping[str, str]], receiver: str = "") -> Numbers:
    """Start the producers, let them go together, return the rate until the last event has arrived."""
    producers = [_start(role, *given, **environ) for given, environ in zip(arguments, environs, strict=True)]
    finish_line = _start("_pull_events", arguments[0][0], receiver) if receiver else None
    everybody = [*producers, *([finish_line] if finish_line else [])]
    for process in everybody:
        _read(process)
    start = time.monotonic()
    for process in everybody:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [float(_read(process)) for process in everybody]
    for process in everybody:
        process.communicate(timeout=TIMEOUT)
    events = sum(int(given[0]) for given in arguments)
    return {"events_per_s": events / (max(ends) - start), "seconds": max(ends) - start, "n": float(events)}


def _start(role: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.bench_throughput", role, *arguments]
    everything = {**os.environ, **environ}
    return subprocess.Popen(command, cwd=ROOT, env=everything, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603  our own module


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    line = process.stdout.readline()
    assert line, f"a process of the bench ended early: {process.args!r}"
    return line


def _ready_and_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _log_events(events: str) -> None:
    import accelbus

    run = accelbus.init("bench", mode="offline", on_full="block", finish_timeout=0.0)
    for step in range(WARM_UP_EVENTS):
        run.log(VALUES, step=step)
    run.flush(TIMEOUT)
    _ready_and_go()
    log = run.log
    for step in range(int(events)):
        log(VALUES, step=step)
    run.flush(TIMEOUT)
    end = time.monotonic()
    dropped = sum(run.statistics().dropped.values())
    assert not dropped, f"{dropped} events were dropped"
    print(end, flush=True)
    run.finish()


def _push_events(events: str, address: str) -> None:
    import zmq

    from accelbus.config import Tuning
    from accelbus.events import Metrics

    encode = msgspec.msgpack.Encoder().encode
    batch_events = Tuning().frame_events
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        _ready_and_go()
        batch: list[bytes] = []
        for step in range(int(events)):
            batch.append(encode(Metrics(time.time_ns(), step, VALUES)))
            if len(batch) == batch_events:
                socket.send(b"".join(batch))
                batch.clear()
        socket.send(b"".join(batch))
        print(time.monotonic(), flush=True)


def _pull_events(events: str, address: str) -> None:
    """Receive what all producers send: full batches and one that may be short each."""
    import zmq

    from accelbus.config import Tuning

    messages = PRODUCERS * (int(events) // Tuning().frame_events + 1)
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(address)
        _ready_and_go()
        for _ in range(messages):
            socket.recv()
        print(time.monotonic(), flush=True)


def _events_in_journal(directory: Path) -> int:
    from accelbus.config import Tuning
    from accelbus.events import Metrics
    from accelbus.journal.merge import JournalReader

    reader = JournalReader(directory, tuning=Tuning())
    stored = 0
    while items := reader.read(100_000):
        stored += sum(isinstance(item.event, Metrics) for item in items)
    return stored + sum(isinstance(item.event, Metrics) for item in reader.finish())


BENCH = Bench(
    question=f"{PRODUCERS} producers, events of 4 floats, into the journal and acked",
    subjects={"accelbus": journal, "bare PUSH/PULL": bare_pair},
    baselines={"accelbus": "bare PUSH/PULL"},
    ratio_of=("events_per_s",),
    repeats=5,
)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
