"""Which rank this is: the variables of every launcher, and an initialised process group."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from accelbus.errors import ConfigurationError

_LAST_STEP: Final = 0xFFFFFFF0
"""Slurm's batch, interactive and extern steps are numbered from here on; they are no ``srun``."""


class Ranks(NamedTuple):
    """The place of this process among the ranks."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    one_node: bool | None
    """None: nothing says so."""


def ranks_of(environ: Mapping[str, str]) -> Ranks:
    """Return the place of this process, from the strongest evidence; *environ* has no empty values.

    Raises:
        ConfigurationError: the variables of one launcher contradict each other, or one is missing.
    """
    if "TORCHELASTIC_RUN_ID" in environ and "RANK" in environ:
        return _read_ranks(environ, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _read_ranks(environ, "environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if "OMPI_COMM_WORLD_RANK" in environ:
        variables = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
        return _read_ranks(environ, "openmpi", *variables)
    if slurm_step(environ) and environ.get("PMI_RANK", environ.get("SLURM_PROCID")) == environ.get("SLURM_PROCID"):
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
        return _read_ranks(
            {**environ, "SLURM_LOCAL_SIZE": _slurm_local_size(environ)}, "slurm", "SLURM_PROCID", size, "SLURM_LOCALID", "SLURM_LOCAL_SIZE"
        )
    if "PMI_RANK" in environ and "PMI_SIZE" in environ:
        return _read_ranks(environ, "hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    if (ranks := _ranks_of_process_group(environ)) is not None:
        return ranks
    if "RANK" in environ or count_of(environ, "WORLD_SIZE", 1) > 1:
        return _read_ranks(environ, "environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # one is missing: raises
    return Ranks("none", 0, 1, 0, 1, one_node=True)


def _read_ranks(environ: Mapping[str, str], launcher: str, rank: str, size: str, local_rank: str, local_size: str) -> Ranks:
    numbers = {variable: _number(environ, variable) for variable in (rank, size, local_rank, local_size)}
    if (found := numbers[rank]) is None or (world_size := numbers[size]) is None:
        missing, present = (rank, size) if numbers[rank] is None else (size, rank)
        raise ConfigurationError(f"{present}={environ[present]!r} is set and {missing} is not; a rank needs both")
    if not 0 <= found < world_size:
        raise ConfigurationError(f"{rank}={found}: expected a rank below {size}={world_size}")
    return _complete(environ, Ranks(launcher, found, world_size, -1, -1, one_node=None), numbers[local_rank], numbers[local_size])


def _ranks_of_process_group(environ: Mapping[str, str]) -> Ranks | None:
    """Ranks that were passed to ``init_process_group``. Only looked at, never imported."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    ranks = Ranks("group", distributed.get_rank(), distributed.get_world_size(), -1, -1, one_node=None)
    return _complete(environ, ranks, _number(environ, "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE"))


def _complete(environ: Mapping[str, str], ranks: Ranks, local_rank: int | None, local_size: int | None) -> Ranks:
    one_node = _is_one_node(environ, ranks, local_rank, local_size)
    if local_rank is None:
        local_rank = ranks.rank if one_node else 0
    if local_size is None:
        local_size = ranks.world_size if one_node else 1
    return ranks._replace(local_rank=local_rank, local_world_size=local_size, one_node=one_node)


def _is_one_node(environ: Mapping[str, str], ranks: Ranks, local_rank: int | None, local_size: int | None) -> bool | None:
    if local_size is not None:
        return local_size == ranks.world_size
    if ranks.world_size == 1:
        return True
    if local_rank is not None:
        # On other nodes the two differ: if this is the first of several, they stop with an error.
        return local_rank == ranks.rank
    address = environ.get("MASTER_ADDR", "localhost")
    return True if address in ("localhost", "::1") or address.startswith("127.") else None


def slurm_step(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the ``srun`` this process belongs to, None in a batch script or an interactive allocation."""
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    job = environ.get("SLURM_HET_JOB_ID") or environ.get("SLURM_JOB_ID")
    if not job or "SLURM_PROCID" not in environ or not step.isdigit() or int(step) >= _LAST_STEP:
        return None
    return environ.get("SLURM_CLUSTER_NAME", ""), f"{job}.{step}"


def _slurm_local_size(environ: Mapping[str, str]) -> str:
    """Return the tasks on this node, from lists such as ``4(x2),3``; empty when Slurm does not say."""
    listed = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts = [int(tasks) for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", listed) for _ in range(int(times or 1))]
    node = count_of(environ, "SLURM_NODEID")
    return str(counts[node]) if node < len(counts) else ""


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{variable}={text!r}: expected a number") from None


def count_of(environ: Mapping[str, str], variable: str, default: int = 0) -> int:
    """Return a count that a launcher keeps, *default* when it does not."""
    text = environ.get(variable, "")
    return int(text) if text.isdigit() else default
