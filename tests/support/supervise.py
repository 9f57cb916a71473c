"""A supervisor in a process of its own, to be killed: ``python -m tests.support.supervise RUN_DIR``."""

from __future__ import annotations

import sys

import anyio

from accelbus.delivery.supervisor import Supervisor
from accelbus.rundir import RunDir
from tests.support.deliveries import QUICK


def main(directory: str) -> None:
    run_dir = RunDir(directory)
    record = run_dir.read_record()
    assert record is not None
    anyio.run(Supervisor(run_dir, record, tuning=QUICK).run)


if __name__ == "__main__":
    main(sys.argv[1])
