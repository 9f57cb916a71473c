"""What does accelbus add to the start of a rank: to import time, to `init`, to memory?

Every number comes from interpreters of its own, alternating with bare ones.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from bench.harness import Bench, Numbers

IMPORTS = 20
QUICK_IMPORTS = 4
INIT = """
import os, time
def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
before = resident()
start = time.perf_counter()
import accelbus
imported = time.perf_counter()
run = accelbus.init("bench", log_with="tensorboard")
ready = time.perf_counter()
for step in range(10_000):
    run.log({"loss": 0.5, "accuracy": 0.5, "lr": 0.1, "grad_norm": 1.0}, step=step)
run.flush(10.0)
print(ready - imported, ready - start, resident() - before)
run.finish(timeout=30.0)
"""


def importing(quick: bool) -> Numbers:
    """Time ``import accelbus`` against an interpreter that imports nothing."""
    rounds = [(_run("pass"), _run("import accelbus")) for _ in range(QUICK_IMPORTS if quick else IMPORTS)]
    bare, with_import = (statistics.median(times) for times in zip(*rounds, strict=True))
    return {"bare_ms": bare * 1e3, "import_ms": with_import * 1e3, "added_ms": (with_import - bare) * 1e3}


def opening(quick: bool) -> Numbers:
    """Time `init` with no bus process there yet, and weigh the rank after 10,000 calls of `log`."""
    with tempfile.TemporaryDirectory(prefix="accelbus-bench-", ignore_cleanup_errors=True) as directory:
        environ = {**os.environ, "ACCELBUS_DIR": directory}
        child = subprocess.run([sys.executable, "-c", INIT], env=environ, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603  our own program
    init, both, kib = (float(part) for part in child.stdout.split())
    return {"init_ms": init * 1e3, "with_import_ms": both * 1e3, "added_mb": kib * 1024 / 1e6}


def _run(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)  # noqa: S603  our own program
    return time.perf_counter() - start


BENCH = Bench(
    question="what accelbus adds to the start of a rank",
    subjects={"import accelbus": importing, "init, bus process cold": opening},
    repeats=5,
)
