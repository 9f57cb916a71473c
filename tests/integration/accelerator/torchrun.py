"""Scripts that torchrun starts, and what each rank has reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PRELUDE = """
import json, os, sys, warnings
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from accelbus.accelerator import *
from accelbus.handlers import *

warnings.simplefilter("error")
out, rank, ranks, report = Path(sys.argv[1]), int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), {}

def end():
    (out / f"rank{rank}.json").write_text(json.dumps(report))
"""
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "ACCELBUS_", "ACCELERATE_", "SLURM_", "OMPI_", "PMI_")


class Done(NamedTuple):
    """A job that is over."""

    code: int
    stderr: str
    reports: list[dict[str, Any]]
    """Of the ranks that came to their end."""
    directory: Path

    def rows(self) -> list[dict[str, Any]]:
        """Return what the JSONL tracker of the only run has written."""
        (path,) = self.directory.glob("runs/*/jsonl/metrics.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]


def torchrun(ranks: int, text: str, directory: Path, *, options: Sequence[str] = (), timeout: float = 110.0) -> Done:
    """Run a script on *ranks* ranks, and return what came of it."""
    script = directory / "job.py"
    script.write_text(PRELUDE + text)
    environ = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    environ |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "ACCELBUS_FINISH_TIMEOUT": "40",
        "ACCELBUS_RUN_RECORD": "false",
        "ACCELBUS_DIR": str(directory / "runs"),
        "ACCELBUS_RESTART_GRACE": "0.5",
    }
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *options] if ranks > 1 else []
    command = [sys.executable, *launcher, str(script), str(directory)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout, check=False)
    reports = [json.loads(path.read_text()) for path in sorted(directory.glob("rank*.json"))]
    return Done(done.returncode, done.stderr, reports, directory)
