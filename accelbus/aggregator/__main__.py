"""``python -m accelbus.aggregator RUN_DIR --node-dir DIR``: the bus process of one run on this node.

Started by a rank; see `accelbus.client.launch`. Takes the bus lock before it binds, so of several only one stays.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

import anyio

from accelbus.aggregator.descriptors import raise_limit, why_too_few
from accelbus.aggregator.faults import Faults
from accelbus.aggregator.run import ServedRun
from accelbus.aggregator.server import BusServer
from accelbus.aggregator.socket import RouterSocket
from accelbus.config import Tuning, from_environment
from accelbus.recordlock import try_lock
from accelbus.rundir import RunDir

_log = logging.getLogger(__name__)
_LOCK_PATIENCE = 5.0
"""One that is leaving, of the run's last attempt, holds the lock until everything is written."""


def main(arguments: list[str] | None = None) -> int:
    """Serve one run; 0 also when another process already does, 1 when this one cannot."""
    parser = argparse.ArgumentParser(prog="accelbus.aggregator", description="the bus process of one run on this node")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-dir", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    if reason := why_too_few(raise_limit()):
        _log.error("run %s: %s", options.run_dir.name, reason)
        return 1
    tuning = from_environment(Tuning)
    while (lock := _take_lock(options.node_dir / "bus.lock")) is not None:
        try:
            while (
                run := anyio.run(_serve, RunDir(options.run_dir), f"ipc://{options.node_dir / 'bus.sock'}", tuning)
            ).has_missed_somebody():
                pass
        finally:
            _remove(options.node_dir)
            os.close(lock)
        # Once more without the lock: who ends, says so and then sees the lock held relies on being seen.
        if not run.has_missed_somebody():
            break
    return 0


async def _serve(run_dir: RunDir, endpoint: str, tuning: Tuning) -> ServedRun:
    """Serve the run to its end."""
    faults = Faults()
    socket = RouterSocket(endpoint, max_message=tuning.frame_bytes, receive_burst=tuning.receive_burst, on_malformed=faults.drop_malformed)
    run = ServedRun(run_dir, socket.send, faults, tuning=tuning)
    server = BusServer(socket, faults)
    _log.info("serving run %s", run_dir.run_id)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch_signals, run)
            await run.adopt()
            server.add(run)
            async with anyio.create_task_group() as serving:
                serving.start_soon(server.serve)
                await run.serve()
                serving.cancel_scope.cancel()
            await run.close()
            tasks.cancel_scope.cancel()
    finally:
        socket.close()
    _log.info("leaving run %s", run_dir.run_id)
    return run


async def _watch_signals(run: ServedRun) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            first = run.terminate()
            _log.info(
                "%s: %s",
                signal.Signals(number).name,
                "serving until the ranks are gone, then delivering" if first else "leaving now; everything is kept",
            )


def _take_lock(path: Path) -> int | None:
    deadline = time.monotonic() + _LOCK_PATIENCE
    while True:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the directory was removed in between
            lock = try_lock(path)
            if lock is not None or time.monotonic() > deadline:
                return lock
        time.sleep(0.02)


def _remove(directory: Path) -> None:
    """Leave nothing behind on the node. The lock is still held, so nobody serves from *directory*."""
    with contextlib.suppress(OSError):  # a rank that is starting a bus process may put its lock there again
        for entry in directory.iterdir():
            entry.unlink(missing_ok=True)
        directory.rmdir()


if __name__ == "__main__":
    sys.exit(main())
