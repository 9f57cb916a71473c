"""Scripts that torchrun starts on two ranks, and what each rank has reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PRELUDE = """
import json, os, sys, warnings
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from accelbus.handlers import *

warnings.simplefilter("error", NoEffectWarning)
out, rank, report = Path(sys.argv[1]), int(os.environ["RANK"]), {}

def end():
    (out / f"rank{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[dict[str, Any]]]]:
    """Run a script on two ranks; returns its directory and the reports of both."""

    def run(text: str) -> tuple[Path, list[dict[str, Any]]]:
        directory = tmp_path_factory.mktemp("job")
        script = directory / "job.py"
        script.write_text(PRELUDE + text)
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_"))}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), str(directory)]
        environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return directory, [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(2)]

    return run
