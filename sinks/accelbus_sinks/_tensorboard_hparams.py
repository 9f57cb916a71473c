"""What makes a run appear in TensorBoard's HParams tab, with its own curves as metrics and no run beside it.

Two files in the run's own directory, named to be read before all others: readers keep what they see first, so an update replaces
the file instead of following it. A TensorBoard that is already running keeps what it has seen until it is started again. No
experiment summary is written: with one, the tab shows only the hyperparameters of the run it came from; without, it collects the
hyperparameters and the metrics of all runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

from accelbus.durable import write_atomically
from accelbus.values import flatten
from accelbus_sinks._tfevents import summary_record, valid_text, version_record

START_FILE: Final = "events.out.tfevents.0000000000.hparams-start"
END_FILE: Final = "events.out.tfevents.0000000000.hparams-status"

TEXT_LIMIT: Final = 1024
"""Characters of a value in the tab's table; ``hparams.yml`` has all of them."""

EXACT_INTEGERS: Final = 2**53
"""The tab's numbers are 64-bit floats; larger integers (seeds) are shown as text, with all their digits."""


def write_hyperparameters(directory: Path, values: Mapping[str, Any], started: float) -> None:
    """Show *values*, nested plain data, as the hyperparameters of the run in *directory*."""
    info = plugin_data_pb2.SessionStartInfo(start_time_secs=started)
    for key, value in flatten(values).items():
        _show(value, info.hparams[valid_text(key)])
    data = plugin_data_pb2.HParamsPluginData(session_start_info=info)
    _write(directory / START_FILE, metadata.SESSION_START_INFO_TAG, data, started)


def write_status(directory: Path, status: str, ended: float) -> None:
    """Show how the run in *directory* ended."""
    shown = api_pb2.STATUS_SUCCESS if status == "finished" else api_pb2.STATUS_FAILURE
    info = plugin_data_pb2.SessionEndInfo(status=shown, end_time_secs=ended)
    data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
    _write(directory / END_FILE, metadata.SESSION_END_INFO_TAG, data, ended)


def forget_status(directory: Path) -> None:
    """The run goes on."""
    (directory / END_FILE).unlink(missing_ok=True)


def _write(path: Path, tag: str, data: Any, wall_time: float) -> None:
    value = summary_pb2.Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR)
    summary = summary_pb2.Summary(value=[value])
    write_atomically(path, version_record(wall_time) + summary_record(wall_time, summary), mode=0o644)


def _show(value: Any, cell: Any) -> None:
    """Put *value* into *cell* as one of the three kinds the tab knows; its JSON cannot carry numbers that are not finite."""
    if isinstance(value, bool):
        cell.bool_value = value
    elif (isinstance(value, int) and abs(value) <= EXACT_INTEGERS) or (isinstance(value, float) and math.isfinite(value)):
        cell.number_value = value
    else:
        cell.string_value = valid_text(_shortened(value if isinstance(value, str) else _spelled_out(value)))


def _spelled_out(value: Any) -> str:
    return str(value) if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 1] + "…"
