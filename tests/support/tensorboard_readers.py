"""Read a TensorBoard directory the ways TensorBoard reads it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def shown(logdir: Path, plugin: str) -> dict[str, tuple[str, list[tuple[int, float, Any]]]]:
    """{tag: (name that is shown, [(step, seconds, content)])} of one tab, from TensorBoard's own data provider.

    The content is an array for histograms, a list of bytes for images and sound.
    """
    provider = data_provider.MultiplexerDataProvider(_multiplexer(logdir), str(logdir))
    about: dict[str, Any] = {"experiment_id": "", "plugin_name": plugin}
    ctx, found = context.RequestContext(), {}
    if plugin == "histograms":
        listed, read = provider.list_tensors(ctx, **about), provider.read_tensors(ctx, downsample=1000, **about)
    else:
        listed, read = provider.list_blob_sequences(ctx, **about), provider.read_blob_sequences(ctx, downsample=1000, **about)
    for run, tags in listed.items():
        for tag, series in tags.items():
            points = [(datum.step, datum.wall_time, _content(provider, ctx, datum)) for datum in read[run][tag]]
            found[tag] = (series.display_name, points)
    return found


def _content(provider: Any, ctx: Any, datum: Any) -> Any:
    if hasattr(datum, "numpy"):
        return datum.numpy
    return [provider.read_blob(ctx, blob_key=reference.blob_key) for reference in datum.values]


def _multiplexer(logdir: Path) -> plugin_event_multiplexer.EventMultiplexer:
    multiplexer = plugin_event_multiplexer.EventMultiplexer(
        tensor_size_guidance=dict.fromkeys(("scalars", "text", "hparams", "images", "histograms", "audio"), 0)
    )
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
    """(step, value) as the data server behind ``tensorboard --logdir`` shows it, once there are *count* of them.

    Asked from another process: gRPC leaves threads behind, and other tests fork.
    """
    arguments = [sys.executable, str(Path(__file__).with_name("tensorboard_data_server_client.py")), str(logdir), tag, str(count)]
    answer = subprocess.run(arguments, check=True, timeout=60, stdout=subprocess.PIPE).stdout
    return [(step, value) for step, value in json.loads(answer)]
