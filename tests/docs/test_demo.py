"""The demo is what a newcomer runs first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.docs.test_examples import quiet_environment
from tests.support import markdown

RANKS, EPOCHS, STEPS = 2, 2, 23


def test_demo_trains_on_two_ranks_and_loses_nothing(tmp_path: Path):
    """`torchrun` of the example: every rank's values are in the journal and in TensorBoard, and the books balance."""
    tools = Path(sys.executable).parent
    example = str(markdown.ROOT / "examples" / "train_digits.py")
    environ = {**quiet_environment(), "OMP_NUM_THREADS": "1", "ACCELBUS_FINISH_TIMEOUT": "60", "PATH": f"{tools}:/usr/bin:/bin"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=110, check=False)

    trained = run(str(tools / "torchrun"), "--standalone", f"--nproc-per-node={RANKS}", example, f"--epochs={EPOCHS}")
    assert trained.returncode == 0, trained.stderr
    assert "accelbus sync" not in trained.stderr

    status = run(str(tools / "accelbus"), "status", "--json", "--exact")
    assert status.returncode == 0, status.stdout + status.stderr
    report = json.loads(status.stdout)
    assert report["status"] == "finished"
    assert report["balanced"] is True
    assert {rank["rank"]: rank["dropped"] for rank in report["ranks"]} == {0: {}, 1: {}}
    values = EPOCHS * (5 * STEPS + 2)
    (tensorboard,) = report["sinks"]
    assert {rank: counts["delivered"] for rank, counts in tensorboard["ranks"].items()} == {"0": values, "1": values}

    exported = run(str(tools / "accelbus"), "export", report["path"])
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    losses = sorted((line["rank"], line["step"]) for line in lines if "train/loss" in line.get("values", {}))
    assert losses == [(rank, step) for rank in range(RANKS) for step in range(1, EPOCHS * STEPS + 1)]
