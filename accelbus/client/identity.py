"""Who this process is: its run, its rank, its launch. Every rank finds the same answer alone, without a collective.

===========  =====================================================  ==============================================================
launcher     recognised by                                          what all ranks of one launch, and no other, have in common
===========  =====================================================  ==============================================================
torchrun     ``TORCHELASTIC_RUN_ID`` and ``RANK``                   one node: the launcher process; several: its ``--rdzv-id``, or
                                                                    the Slurm step and how many torchruns it has seen
environment  ``RANK`` and ``WORLD_SIZE``                            the Slurm step or batch job, or on one node who came together
Open MPI     ``OMPI_COMM_WORLD_RANK``                               one node: the launcher process; several: its namespace
hydra        ``PMI_RANK``                                           one node: the launcher process
Slurm        ``SLURM_PROCID`` inside a step (``srun``)              job and step
group        an initialised ``torch.distributed``                   as for environment
none         nothing of it                                          nothing: the run is this process
===========  =====================================================  ==============================================================

Not used, because they lie: a rendezvous id ``none`` or copied from an example (``--rdzv-id=100``), a ``MASTER_PORT`` that the next
launch has too, the Slurm job alone (an allocation runs many), a parent that is only a wrapper script around one rank. Where the same
evidence can come back (a shell or an ``srun`` that starts the ranks twice), `accelbus.client.cohorts` tells the launches apart.

An elastic restart keeps the run and changes the launch token. Several nodes without anything that all of them share raise: a run
that falls apart into one per node would be worse.

Limits, all lifted by an explicit ``run_id``: two programs that one torchrun runs one after the other in a wrapper script are one run,
because a worker that comes second looks like a restart; an elastic job that begins on one node and grows becomes another run; the
same rendezvous id used for two launches on several nodes is believed.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from accelbus import host
from accelbus.client import cohorts
from accelbus.client.ranks import Ranks, count_of, ranks_of, slurm_step
from accelbus.config import Settings
from accelbus.digest import digest
from accelbus.errors import ConfigurationError
from accelbus.rundir import check_run_id, slug

_GATHERED_WITHIN: Final = 0.5
"""Seconds between the starts of two ranks that one shell or script starts; between two launches, at least their imports lie."""
_NO_LAUNCHERS: Final = frozenset(
    {"sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "tcsh", "csh", "ash", "busybox"}
    | {"sshd", "sshd-session", "tmux: server", "screen", "login", "su", "sudo", "init", "systemd", "launchd"}
)
"""Programs that may be the parent of one rank, or of ranks of several launches."""
_EXAMPLE_ID: Final = re.compile(r"|none|\d{1,3}")
"""Rendezvous ids that nobody made up for this launch."""
_NAMESPACES: Final = ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "PRTE_MCA_ess_base_nspace")
_BATCH_JOBS: Final = ("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID")
_MARKS: Final = ("RANK", "LOCAL_RANK", "TORCHELASTIC_ERROR_FILE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""What a launcher gives to a rank and does not have itself."""

_Key: TypeAlias = tuple[str, ...]


class Identity(NamedTuple):
    """Who this process is. Pickles."""

    run_id: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host: str
    launcher: str
    launch: bytes
    """Launch token, 16 bytes: the same for all ranks that were started together."""
    restart_count: int


def identify(environ: Mapping[str, str] | None = None, *, settings: Settings, ordinal: int = 0) -> Identity:
    """Return who this process is.

    Args:
        environ: instead of ``os.environ``.
        settings: ``project`` names the run, ``run_id`` is used as it is.
        ordinal: how often this process has opened the run before; without an explicit id, how many runs. All ranks do the same.

    Raises:
        ConfigurationError: the environment contradicts itself, or its ranks are on several nodes and share no job id.
    """
    environ = {variable: value for variable, value in (os.environ if environ is None else environ).items() if value}
    ranks = ranks_of(environ)
    key = _launch_key(environ, ranks)
    if key is None and settings.run_id is None:
        raise ConfigurationError(_unknown(ranks))
    if key is None:
        key = ("explicit", str(settings.run_id), environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", ""))
    again = (f"run {ordinal}",) if ordinal else ()
    restart_count = count_of(environ, "TORCHELASTIC_RESTART_COUNT" if ranks.launcher == "torchrun" else "SLURM_RESTART_COUNT")
    return Identity(
        run_id=check_run_id(settings.run_id)
        if settings.run_id is not None
        else f"{slug(settings.project)}-{_digest(key + again, 4).hex()}",
        rank=ranks.rank,
        world_size=ranks.world_size,
        local_rank=ranks.local_rank,
        local_world_size=ranks.local_world_size,
        host=host.name(),
        launcher=ranks.launcher,
        launch=_digest(key + again + _generation(environ, ranks, restart_count), 16),
        restart_count=restart_count,
    )


def bystander(environ: Mapping[str, str] | None = None, *, settings: Settings) -> Identity:
    """Return who this process would be, for a run that is disabled: its rank is right, its launch is none. Touches no file.

    Raises:
        ConfigurationError: the environment contradicts itself.
    """
    ranks = ranks_of({variable: value for variable, value in (os.environ if environ is None else environ).items() if value})
    return Identity(
        run_id=settings.run_id or "disabled",
        rank=ranks.rank,
        world_size=ranks.world_size,
        local_rank=ranks.local_rank,
        local_world_size=ranks.local_world_size,
        host=host.name(),
        launcher=ranks.launcher,
        launch=bytes(16),
        restart_count=0,
    )


def _unknown(ranks: Ranks) -> str:
    where = "on several nodes" if ranks.one_node is False else "and neither LOCAL_WORLD_SIZE nor LOCAL_RANK to say whether on one node"
    return (
        f"cannot tell which run this is: {ranks.world_size} ranks {where}, and no job id that all of them share; "
        "pass run_id= (the same on every rank, another for every launch) or set ACCELBUS_RUN_ID"
    )


def _generation(environ: Mapping[str, str], ranks: Ranks, restart_count: int) -> _Key:
    """What distinguishes the restarts of one launch, and is the same in all ranks of one."""
    if ranks.launcher != "torchrun":
        return (f"restart {restart_count}",)
    # A restart is counted by each node's agent for itself: nodes of one generation disagree. Where there are several, a restart
    # that changes neither port nor size is recognised by the receiver, from a second producer of the same rank.
    counted = f"restart {restart_count}" if ranks.one_node else ""
    return (counted, environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", ""), str(ranks.world_size))


# Which launch this is.


def _launch_key(environ: Mapping[str, str], ranks: Ranks) -> _Key | None:
    """Return what all ranks of this launch have in common and no other launch has, None when several nodes share nothing."""
    if ranks.launcher == "none":
        return ("process", uuid.uuid4().hex)
    if ranks.launcher == "torchrun":
        return _torchrun_key(environ, ranks)
    shared = _shared_by_nodes(environ, ranks)
    if shared is not None:
        # A requeued job counts from the start again, on old nodes and new ones.
        return (*shared, str(_join((*shared, _requeued(environ)), ranks).ordinal))
    if not ranks.one_node:
        return None
    launcher = launcher_process(environ)
    local = _node_key(environ, ranks, launcher)
    return (*local, _join(local, ranks).nonce)


def _torchrun_key(environ: Mapping[str, str], ranks: Ranks) -> _Key | None:
    agent = launcher_process(environ)
    if ranks.one_node:
        return ("agent", *_this_kernel(), *map(str, agent))
    step: _Key = slurm_step(environ) or ()
    rendezvous = environ["TORCHELASTIC_RUN_ID"]
    if not _EXAMPLE_ID.fullmatch(rendezvous):
        return ("torchrun", rendezvous, *step)
    if not step:
        return None
    # One srun may start torchrun twice; counted by agents, because an agent restarts its workers.
    key = ("torchrun", *step)
    return (*key, str(cohorts.join((*key, _requeued(environ)), f"node {environ.get('GROUP_RANK', '')}", agent).ordinal))


def _shared_by_nodes(environ: Mapping[str, str], ranks: Ranks) -> _Key | None:
    """Return what every node can see of one launch or a sequence of launches."""
    # Under mpirun, the step is that of its daemons, one for everything it starts.
    by_mpirun = "OMPI_COMM_WORLD_RANK" in environ
    if not by_mpirun and (step := slurm_step(environ)):
        return ("slurm", *step)
    if ranks.one_node:
        return None
    variables = _NAMESPACES if by_mpirun else _BATCH_JOBS
    found = tuple(f"{variable}={environ[variable]}" for variable in variables if environ.get(variable))
    return (ranks.launcher, *found) if found else None


def _node_key(environ: Mapping[str, str], ranks: Ranks, launcher: cohorts.Member) -> _Key:
    rendezvous = environ.get("MASTER_PORT", "")
    by_hand = rendezvous and host.command_name(launcher[0]) in _NO_LAUNCHERS
    # Ranks may be started from several terminals; the port holds them together. Any other launcher is the better evidence.
    who = ("shell",) if by_hand else tuple(map(str, launcher))
    return (ranks.launcher, *_this_kernel(), *who, environ.get("MASTER_ADDR", ""), rendezvous, str(ranks.world_size))


def _join(key: _Key, ranks: Ranks) -> cohorts.Cohort:
    # Only where no other node counts launches: what looks over here may not look so there.
    by_hand = ranks.launcher in ("environment", "group") and ranks.one_node
    return cohorts.join(key, f"rank {ranks.rank}", _this_process(), gathered_within=_GATHERED_WITHIN if by_hand else None)


def launcher_process(environ: Mapping[str, str]) -> cohorts.Member:
    """Return the process that started the ranks of this node: the nearest ancestor that is not a wrapper around one rank."""
    marks = {mark: environ[mark] for mark in _MARKS if mark in environ}
    pid = os.getppid()
    while marks and pid > 1:
        inherited = host.environment_of(pid)
        above = host.parent_of(pid)
        if inherited is None or not above or any(inherited.get(mark) != value for mark, value in marks.items()):
            break
        pid = above
    return pid, host.process_start_time(pid) or 0


def _this_process() -> cohorts.Member:
    return os.getpid(), host.process_start_time(os.getpid()) or 0


def _this_kernel() -> _Key:
    return host.boot_id(), host.pid_namespace()


def _requeued(environ: Mapping[str, str]) -> str:
    return f"requeued {environ.get('SLURM_RESTART_COUNT', '0')}"


def _digest(key: _Key, size: int) -> bytes:
    return digest("\0".join(key).encode("utf-8", "surrogateescape"), size)
