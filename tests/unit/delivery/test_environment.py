"""What a worker process inherits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import accelbus
from accelbus.delivery.environment import worker_command, worker_environment


def test_nothing_says_that_it_is_a_rank():
    """Launchers' variables make trackers wait for, or leave the work to, another process."""
    launcher = {
        "RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_RESTART_COUNT": "0", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "3", "PMI_RANK": "3",
        "SLURM_PROCID": "3", "NCCL_DEBUG": "INFO",
    }  # fmt: skip
    environ = worker_environment({**launcher, "HOME": "/home/me", "WANDB_API_KEY": "k", "SLURM_JOB_ID": "9"})
    assert not launcher.keys() & environ.keys()
    assert environ["HOME"] == "/home/me"
    assert environ["WANDB_API_KEY"] == "k"
    assert environ["SLURM_JOB_ID"] == "9"


def test_no_gpu_and_utf8():
    """A tracker needs no GPU context, and a metric's name may be in any language."""
    environ = worker_environment({"CUDA_VISIBLE_DEVICES": "0,1"})
    assert environ["CUDA_VISIBLE_DEVICES"] == ""
    assert environ["PYTHONUTF8"] == "1"


def test_this_very_package_is_found_from_another_directory(tmp_path):
    """Relative entries of PYTHONPATH mean the directory they were given in."""
    environ = worker_environment({"PYTHONPATH": os.pathsep.join(["lib", str(tmp_path)])})
    entries = environ["PYTHONPATH"].split(os.pathsep)
    assert entries[:2] == [os.path.abspath("lib"), str(tmp_path)]
    assert str(Path(accelbus.__file__).parent.parent) in entries


def test_the_command_names_accelbus_the_run_and_the_sink(tmp_path):
    """For who reads the process list."""
    command = worker_command(tmp_path / "run", "wandb")
    assert command[0] == sys.executable
    assert command[-3:] == ["accelbus.delivery.worker", str(tmp_path / "run"), "wandb"]
