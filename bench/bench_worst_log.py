"""How long does the slowest call of `log` take while the bus process is killed again and again?

One loop times an empty call and a call of `log` in turn, so that what the machine does to both can be told from what we do. Another
process kills the bus process every five seconds; the rank starts a new one each time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

from bench.harness import ROOT, Bench, Numbers, percentiles

SECONDS = 60.0
QUICK_SECONDS = 16.0
KILL_INTERVAL = 5.0
BURST_CALLS = 50
BURST_INTERVAL = 0.005
VALUES = {"loss": 0.6931471805599453, "accuracy": 0.8125, "lr": 0.0003, "grad_norm": 1.4142135623730951}


def under_kills(quick: bool) -> Numbers:
    """Log 10,000 events a second while the bus process dies every five seconds."""
    import accelbus

    empty, logged = array("q"), array("q")
    clock = time.perf_counter_ns
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-") as directory:
        run = accelbus.init("bench", dir=directory, mode="offline", finish_timeout=0.0)
        command = [sys.executable, "-m", "bench.bench_worst_log", str(run.dir)]
        killer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: S603  our own module
        log, first = run.log, 0
        seconds = QUICK_SECONDS if quick else SECONDS
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(BURST_INTERVAL)
            for step in range(first, first + BURST_CALLS):
                start = clock()
                _nothing(VALUES, step)
                middle = clock()
                log(VALUES, step=step)
                done = clock()
                empty.append(middle - start)
                logged.append(done - middle)
            first += BURST_CALLS
        killer.terminate()
        kills = len(killer.communicate()[0].splitlines())
        run.finish()
        dropped = sum(run.statistics().dropped.values())
    assert not dropped, f"{dropped} events were dropped while measuring"
    assert kills >= seconds // KILL_INTERVAL - 1, f"the bus process was killed {kills} times in {seconds} s: it was not there more often"
    ours, control = percentiles(logged), percentiles(empty)
    return {
        "worst_us": ours["worst"] / 1e3,
        "empty_worst_us": control["worst"] / 1e3,
        "beyond_us": (ours["worst"] - control["worst"]) / 1e3,
        "p99_us": ours["p99"] / 1e3,
        "kills": float(kills),
        "n": ours["n"],
    }


def _nothing(values: object, step: int) -> None:
    pass


def _kill_bus_processes(run_dir: str) -> None:
    while True:
        time.sleep(KILL_INTERVAL)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if "accelbus.aggregator" in command and run_dir in command:
                    os.kill(int(process.name), signal.SIGKILL)
                    print(process.name, flush=True)


BENCH = Bench(
    question="slowest call of log in a minute in which the bus process is killed every 5 s", subjects={"run.log": under_kills}, repeats=3
)


if __name__ == "__main__":
    _kill_bus_processes(sys.argv[1])
