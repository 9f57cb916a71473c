"""A supervisor in a process of its own, to be killed: ``python -m tests.support.supervise RUN_DIR [TUNING]``."""

from __future__ import annotations

import json
import sys

import anyio
import msgspec

from accelbus.delivery.supervisor import Supervisor
from accelbus.rundir import RunDir
from tests.support.deliveries import QUICK


def main(directory: str, tuning: str = "{}") -> None:
    run_dir = RunDir(directory)
    record = run_dir.read_record()
    assert record is not None
    anyio.run(Supervisor(run_dir, record, tuning=msgspec.structs.replace(QUICK, **json.loads(tuning))).run)


if __name__ == "__main__":
    main(*sys.argv[1:])
