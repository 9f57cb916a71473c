"""ClearML without what it does by itself: its settings and its environment in the delivering process."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

CAPTURES: Final = (
    "detect_repository", "hydra", "scikit", "joblib", "matplotlib", "tensorflow", "tensorboard", "tfdefines", "pytorch", "megengine",
    "xgboost", "catboost", "fastai", "lightgbm", "gradio", "jsonargparse",
)  # fmt: skip
"""Frameworks that ``Task.init`` would look into. Each is named, since it takes one that is not for wanted."""

INIT_FLAGS: Final[Mapping[str, Any]] = {
    "auto_connect_frameworks": dict.fromkeys(CAPTURES, False),
    "auto_connect_arg_parser": False,
    "auto_connect_streams": False,
    "auto_resource_monitoring": False,
}
"""All of it would describe this process and not the training."""

_SETTINGS: Final = {
    # A forked reporter costs 28 ms per call of 10 values (0.3 ms without) and 10 s when the task is closed.
    "sdk.development.report_use_subprocess": False,
    # A click on "abort" would kill this process, which the supervisor starts again; training would not notice.
    "sdk.development.support_stopping": False,
    # 240 retries with pauses of up to 120 s: hours of silence. Delivery repeats calls itself, and says what is wrong.
    "api.http.retries": {"total": 2, "connect": 2, "read": 2, "redirect": 5, "status": 2, "backoff_factor": 1.0, "backoff_max": 5.0},
    # A server under maintenance answers 503, and the client would ask for ever.
    "api.http.wait_on_maintenance_forever": False,
}

_OF_A_RANK: Final = (
    "RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_NODE_RANK", "PMI_RANK", "SLURM_PROCID",
    "SLURM_NODEID", "SLURM_JOB_NUM_NODES",
)  # fmt: skip
"""With these ClearML takes the process for a rank and waits 30 s for the task of rank 0."""

_OF_A_PARENT: Final = ("CLEARML_PROC_MASTER_ID", "TRAINS_PROC_MASTER_ID")
"""Process and task of who called ``Task.init`` first, inherited by its children, which then report to that task."""


@functools.cache
def settle() -> None:
    """Set, once, what ClearML reads from its configuration file; retries only if the user's file does not."""
    from clearml.config import config, config_obj  # noqa: PLC0415  only the worker imports trackers

    overrides: dict[str, Any] = {}
    for name, value in _SETTINGS.items():
        if isinstance(value, dict) and config_obj.get(f"{name}.total", None) != 240:
            continue
        *parents, last = name.split(".")
        place = overrides
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    config_obj.set_overrides(overrides)
    config.clear_config_impl()  # forgets what it read before


@contextlib.contextmanager
def as_no_rank() -> Iterator[None]:
    """Hide what a launcher, or another process with a task, says of itself."""
    hidden = {name: os.environ.pop(name) for name in _OF_A_RANK if name in os.environ}
    for name in _OF_A_PARENT:
        if os.environ.get(name, "").partition(":")[0] not in {"", str(os.getpid())}:
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
