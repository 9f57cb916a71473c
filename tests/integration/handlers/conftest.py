"""Scripts that torchrun starts on two and on four ranks, and what each rank has reported."""

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
from accelbus.handlers.process import let_go_of_group

warnings.simplefilter("error", NoEffectWarning)
out, rank, ranks, report = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), {}

def end():
    (out / f"rank{rank}.json").write_text(json.dumps(report))
    let_go_of_group()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module", params=[2, 4], ids=lambda ranks: f"{ranks} ranks")
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[dict[str, Any]]]]:
    """Run a script on some ranks; returns its directory and the reports of all."""
    ranks: int = request.param

    def run(text: str) -> tuple[Path, list[dict[str, Any]]]:
        directory = tmp_path_factory.mktemp("job")
        script = directory / "job.py"
        script.write_text(PRELUDE + text)
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_"))}
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
        command = [sys.executable, *launcher, str(script), str(directory)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return directory, [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(ranks)]

    return run
