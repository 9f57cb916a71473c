"""The process that feeds one tracker: ``python -P -m accelbus.delivery.worker RUN_DIR SINK``.

It follows the journal from the sink's cursor, lets the view merge the ranks, hands rows to the tracker, and moves the cursor when
the tracker has made them durable. It may be killed at any moment: the next one goes on from the cursor. Exit codes are in
`accelbus.delivery.repeating`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from accelbus import host
from accelbus.config import Tuning
from accelbus.delivery.channel import Channel, claim_pipes
from accelbus.delivery.exclusion import exclude_others
from accelbus.delivery.feeder import describe
from accelbus.delivery.loop import Loop
from accelbus.delivery.repeating import RESTART
from accelbus.delivery.status import SinkStatus
from accelbus.rundir import RunDir

logger = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Run as a process; returns the exit code."""
    directory, sink = arguments
    commands, reports = claim_pipes()
    run_dir = RunDir(Path(directory))
    status = SinkStatus(sink=sink, pid=os.getpid())
    channel = Channel(commands, reports, status)
    spec = channel.read_spec()
    tuning = Tuning(**spec.tuning)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _settle_process(tuning)
    status.generation = spec.generation
    channel.open(interval=tuning.status_interval / 2)
    channel.enter("start")
    run_dir.sink(sink).mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        exclude_others(run_dir.sink(sink), patience=tuning.exclusion_patience, timeout=tuning.start_deadline / 2)
    except TimeoutError as error:
        status.last_error = describe(error)
        status.state, status.leaving = "retrying", RESTART
        channel.push_now()
        return RESTART
    status.leaving = Loop(run_dir, sink, spec, channel, on_started=lambda: host.give_way(tuning.worker_nice)).run()
    # What a tracker leaves to the end of the interpreter has a deadline too.
    channel.enter("exit")
    channel.push_now()
    return status.leaving


def _stay(number: int, _: object) -> None:
    logger.info("signal %d is left to the supervisor", number)


def _settle_process(tuning: Tuning) -> None:
    """Undo what the training process or its launcher left behind: signals, core binding; give way to training."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # A batch system that ends a job signals every process in it; the supervisor decides when this one leaves. Handlers and not
    # SIG_IGN, which a tracker's own processes would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stay)
    if hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        except OSError as error:
            logger.debug("core binding stays: %s", error)
    # Half of it at first: importing a tracker costs seconds of a processor, and a run should not wait for minutes to be seen.
    host.give_way(tuning.worker_nice // 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
