"""Ask TensorBoard's data server for one curve: ``LOGDIR TAG COUNT`` → JSON list of (step, value)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import tensorboard_data_server
from tensorboard import context
from tensorboard.data import grpc_provider
from tensorboard.util import grpc_util


def main(logdir: Path, tag: str, count: int) -> list[tuple[int, float]]:
    """Serve *logdir* until the curve has *count* points, ten seconds at most."""
    port_file = logdir / "port"
    arguments = [
        tensorboard_data_server.server_binary(),
        f"--logdir={logdir}",
        "--reload=1",
        "--port=0",
        f"--port-file={port_file}",
        "--die-after-stdin",
    ]
    credentials, options = grpc_util.ChannelCredsType.LOCAL.channel_config()
    with subprocess.Popen(arguments, stdin=subprocess.PIPE) as server:
        try:
            port = _polled(lambda: port_file.exists() and port_file.read_text().strip())
            with grpc.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
                provider = grpc_provider.GrpcDataProvider(f"localhost:{port}", grpc_provider.make_stub(channel))
                return _polled(lambda: _shown(provider, tag, count))
        finally:
            server.kill()


def _shown(provider: Any, tag: str, count: int) -> list[tuple[int, float]]:
    ctx = context.RequestContext()
    found = provider.read_scalars(ctx, experiment_id="", plugin_name="scalars", downsample=1000)
    points = [(point.step, point.value) for tags in found.values() for point in tags.get(tag, ())]
    return points if len(points) >= count else []


def _polled(look: Callable[[], Any]) -> Any:
    """Return the first true answer of *look*, the last one after ten seconds."""
    deadline = time.monotonic() + 10
    while not (answer := look()) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    return answer


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
