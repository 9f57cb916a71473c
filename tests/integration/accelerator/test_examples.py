"""The examples of `Accelerator`: one script for every machine, and a script of Accelerate with another import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.accelerator.torchrun import FOREIGN

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ROOT / "examples" / "train_digits_accelerator.py"
FROM_ACCELERATE = ROOT / "examples" / "from_accelerate.py"


def run(directory: Path, script: Path, *arguments: str, ranks: int = 1) -> str:
    """Run *script* in *directory*, and return what it printed."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELBUS_FINISH_TIMEOUT": "40"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [sys.executable, *launcher, str(script), *arguments],
        cwd=directory, env=environ, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_script_of_accelerate_does_the_same_after_its_import_has_changed(tmp_path: Path):
    """One line differs; losses and accuracies, also of a resumed run, are equal to the last digit."""
    ours = FROM_ACCELERATE.read_text()
    theirs = ours.replace("from accelbus import Accelerator  # from accelerate import Accelerator", "from accelerate import Accelerator")
    changed = [line for line in ours.splitlines() if line not in theirs.splitlines()]
    assert changed == ["from accelbus import Accelerator  # from accelerate import Accelerator"]
    (tmp_path / "theirs.py").write_text(theirs)

    arguments = ("--cpu", "--num_epochs", "2", "--checkpointing_steps", "100")
    printed = run(tmp_path, FROM_ACCELERATE, *arguments, "--project_dir", "ours")
    assert printed == run(tmp_path, tmp_path / "theirs.py", *arguments, "--project_dir", "theirs")
    assert printed.count("accuracy 0.8") == 1
    resumed = run(tmp_path, FROM_ACCELERATE, *arguments[:3], "--resume_from_checkpoint", "ours/step_100", "--project_dir", "ours")
    assert resumed.splitlines()[-1].split(",")[0] == printed.splitlines()[-1].split(",")[0]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_one_script_for_every_machine(tmp_path: Path, ranks: int):
    """Alone and under torchrun: all values and the profile arrive; with --resume the same run goes on, and no checkpoint is left over."""
    arguments = ("--trackers", "tensorboard", "jsonl", "--batch-size", "128", "--epochs")
    printed = run(tmp_path, DIGITS, *arguments, "1", ranks=ranks)
    assert printed.startswith("accuracy on 360 test images: 0.")
    run(tmp_path, DIGITS, *arguments, "2", "--resume", ranks=ranks)

    project = tmp_path / "runs" / "digits-accelerator"
    (metrics,) = project.glob("*/jsonl/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows = [line["values"] for line in lines]
    media = [key for line in lines for key in line.get("media", {})]
    assert sum(key.endswith(".json.gz") for key in media) == 2  # one cycle in each epoch, in rank 0
    assert media.count("profile/rank0") == 2
    batches = -(-1437 // (128 * ranks))
    assert sum("train/loss" in row for row in rows) == 2 * batches
    assert [row["epoch"] for row in rows if "epoch" in row] == [1, 2]
    assert all("telemetry/grad_norm" in row for row in rows[1 : batches - 1 : 2])
    assert sorted(path.name for path in (project / "checkpoints").iterdir()) == ["checkpoint_0", "checkpoint_1"]
