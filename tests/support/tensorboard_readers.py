"""Read a TensorBoard directory the ways TensorBoard reads it."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from tensorboard import context
from tensorboard.backend.event_processing import data_provider, event_accumulator, event_file_loader, plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

logging.getLogger("tensorboard").setLevel(logging.ERROR)

TEXT = "/text_summary"
EVERYTHING = {"scalars": 0, "tensors": 0}


def runs(logdir: Path) -> list[str]:
    """Names that the runs have in TensorBoard's list."""
    return sorted(_multiplexer(logdir).Runs())


def events(path: Path) -> list[Any]:
    """Every event of one file."""
    return list(event_file_loader.EventFileLoader(str(path)).Load())


def scalars(logdir: Path) -> list[tuple[int, str, float, float]]:
    """(step, key, value, seconds) of all scalars, per key in stored order."""
    found = []
    for accumulator in _accumulators(logdir):
        for tag in accumulator.Tags()["scalars"]:
            found += [(event.step, tag, event.value, event.wall_time) for event in accumulator.Scalars(tag)]
    return found


def texts(logdir: Path) -> list[tuple[int, str, str, float]]:
    """(step, key, text, seconds) of the Text tab."""
    found = []
    for accumulator in _accumulators(logdir):
        for tag in accumulator.Tags()["tensors"]:
            if tag.endswith(TEXT) and accumulator.SummaryMetadata(tag).plugin_data.plugin_name == "text":
                events = accumulator.Tensors(tag)
                found += [(event.step, tag[: -len(TEXT)], event.tensor_proto.string_val[0].decode(), event.wall_time) for event in events]
    return found


def sessions(logdir: Path) -> Any:
    """The HParams tab's session groups, from its own back end."""
    backend = _hparams(logdir)
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=100, allowed_statuses=[0, 1, 2, 3])
    return list_session_groups.Handler(context.RequestContext(), backend, "", request).run().session_groups


def experiment(logdir: Path) -> Any:
    """The HParams tab's columns, from its own back end."""
    request = api_pb2.GetExperimentRequest(experiment_name="")
    return get_experiment.Handler(context.RequestContext(), _hparams(logdir), "", request).run()


def hyperparameters(groups: Any) -> dict[str, Any]:
    """{name: value} of all groups."""
    return {key: getattr(value, value.WhichOneof("kind")) for group in groups for key, value in group.hparams.items()}


def status(groups: Any) -> str | None:
    """Status of the first session, in our words."""
    names = {api_pb2.STATUS_SUCCESS: "finished", api_pb2.STATUS_FAILURE: "failed"}
    return names.get(groups[0].sessions[0].status) if groups else None


def _multiplexer(logdir: Path) -> plugin_event_multiplexer.EventMultiplexer:
    multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0, "text": 0, "hparams": 0})
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    return multiplexer


def _hparams(logdir: Path) -> backend_context.Context:
    provider = data_provider.MultiplexerDataProvider(_multiplexer(logdir), str(logdir))
    return backend_context.Context(base_plugin.TBContext(data_provider=provider, logdir=str(logdir)))


def _accumulators(logdir: Path) -> Iterator[event_accumulator.EventAccumulator]:
    for directory in sorted({path.parent for path in logdir.rglob("*tfevents*")}):
        yield event_accumulator.EventAccumulator(str(directory), size_guidance=EVERYTHING).Reload()


def data_server_scalars(logdir: Path, tag: str, count: int) -> list[tuple[int, float]]:
    """(step, value) of the first run as the data server behind ``tensorboard --logdir`` shows it, once there are *count* of them."""
    import tensorboard_data_server
    from tensorboard.data import grpc_provider
    from tensorboard.util import grpc_util

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
