"""Runs of the W&B tracker in this and in other processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelbus.blobs import BlobStore
from accelbus.media import Media, Wrapper
from accelbus.tracking import Row, RunInfo
from accelbus_sinks.wandb import WandBTracker
from tests.support.wandb_server import WandBServer

EPOCH_NS = 1_767_139_200_000_000_000
_PREAMBLE = """
import json, os, signal, sys
sys.path[:] = {path!r}
from pathlib import Path
from tests.support.wandb_runs import kill_service, media, row, started
stdout = os.dup(1)
os.dup2(2, 1)
def report(what):
    os.write(stdout, json.dumps(what).encode())
def die():
    os.kill(os.getpid(), signal.SIGKILL)
path = Path({directory!r})
"""


def started(path: Path, checkpoint: Mapping[str, Any], info: Mapping[str, Any] | None = None, **arguments: Any) -> WandBTracker:
    """Return a tracker of the run that is named after *path*, as delivery starts it, offline unless *arguments* say otherwise."""
    tracker = WandBTracker("project", **{"mode": "offline", **arguments})
    about = {"run_id": path.name, "name": path.name, **(info or {})}
    tracker.run_info = RunInfo(project="project", state_dir=path / "state", output_dir=path / "wandb", resumed=bool(checkpoint), **about)
    tracker.restore(dict(checkpoint))
    tracker.start()
    return tracker


def row(step: int, attempt: int = 0, **values: Any) -> Row:
    return Row(step, values, EPOCH_NS + step * 10**9, attempt)


def media(path: Path, wrapper: Wrapper) -> Media:
    """Return what a tracker gets of *wrapper*."""
    made = wrapper.to_media(BlobStore(path / "blobs", uuid.uuid4().hex, quota=2**30))
    made.directory = str(path / "blobs")
    return made


def in_another_process(directory: Path, script: str, *, status: int = 0, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run *script* beside ``path``, ``started``, ``row``, ``media``, ``report``, ``kill_service`` and ``die``; it must end with *status*."""
    source = _PREAMBLE.format(path=sys.path, directory=str(directory)) + script
    done = subprocess.run([sys.executable, "-c", source], check=False, timeout=120, capture_output=True, env={**os.environ, **environ})
    assert done.returncode == status, done.stderr.decode(errors="replace")
    return done


def kill_service() -> None:
    """End W&B's own process, a child of this one, and wait until it is gone."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (entry / "stat").read_text().rpartition(")")
            if name.endswith("(wandb-core") and int(rest.split()[1]) == os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
                while " Z " not in (entry / "stat").read_text():
                    pass


def online(server: WandBServer) -> dict[str, str]:
    """Variables that lead to *server*."""
    return {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "a" * 40, "WANDB_ERROR_REPORTING": "false"}


def upload(directory: Path, server: WandBServer, working_directory: Path) -> None:
    """Upload the offline run in *directory* with W&B's own command."""
    environ = {name: value for name, value in os.environ.items() if name not in {"WANDB_SERVICE", "WANDB_MODE"}}
    command = [sys.executable, "-m", "wandb", "sync", str(directory)]
    subprocess.run(command, env={**environ, **online(server)}, cwd=working_directory, check=True, timeout=120, capture_output=True)


__all__ = ["EPOCH_NS", "in_another_process", "kill_service", "media", "online", "row", "started", "upload"]
