"""The environment of a sink worker: the user's, without what makes a library believe that it is a rank of the job."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import accelbus

_OF_A_RANK: Final = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_NAME|ROLE_WORLD_SIZE"
    r"|MASTER_.*|TORCHELASTIC_.*|TORCH_NCCL_.*|NCCL_.*|OMPI_COMM_WORLD_.*|PMI_.*|PMIX_.*|SLURM_(PROCID|LOCALID|NODEID)|OMP_NUM_THREADS"
    r"|PYTHONINSPECT|PYTHONSTARTUP|PYTHONSAFEPATH"
)
"""ClearML waits 30 s for an anchor task when RANK is above 0 (its own source); others write only from rank 0."""

_FIXED: Final = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONUTF8": "1",
    "PYTHONUNBUFFERED": "1",
}
"""No tracker needs a GPU, and a context on one costs training some hundred MB; threads of maths libraries would compete with it."""


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker started from a process with *environ* gets."""
    kept = {name: value for name, value in environ.items() if not _OF_A_RANK.fullmatch(name)}
    kept |= _FIXED
    if path := _import_path(environ.get("PYTHONPATH", "")):
        kept["PYTHONPATH"] = path
    return kept


def _import_path(given: str) -> str:
    """Return PYTHONPATH for a process in another directory, which must find this very accelbus."""
    entries = [os.path.abspath(entry) for entry in given.split(os.pathsep) if entry]
    root = str(Path(accelbus.__file__).resolve().parent.parent)
    # An installed package is found anyhow, and site-packages on PYTHONPATH would come before the standard library.
    if root not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *entries}:
        entries.append(root)
    return os.pathsep.join(entries)


def worker_command(run_dir: Path, sink: str) -> list[str]:
    """Return the command line; it names accelbus and the run for who looks at the process list."""
    # -P: neither the working directory nor a script's directory is searched for modules.
    return [sys.executable, "-P", "-m", "accelbus.delivery.worker", os.path.abspath(run_dir), sink]


__all__ = ["worker_command", "worker_environment"]
