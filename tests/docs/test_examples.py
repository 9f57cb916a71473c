"""Every Python example in the documentation runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import markdown

PAGES_WITH_CODE = [page for page in markdown.pages() if markdown.blocks(page, "python")]
FOREIGN = ("ACCELBUS_", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_")


def quiet_environment() -> dict[str, str]:
    """As in a fresh shell: no launcher, no settings of ours."""
    return {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=markdown.name)
def test_examples_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path):
    """The blocks of a page, put together, run to the end as one program; ``module=x`` blocks are files beside it."""
    program = []
    for block in markdown.blocks(page, "python"):
        _, _, module = block.info.partition("module=")
        if module:
            (tmp_path / f"{module}.py").write_text(block.code)
        else:
            program.append(block.code)
    (tmp_path / "example.py").write_text("\n\n".join(program))

    # Waiting for the trackers keeps the directory in place until nobody needs it.
    environ = {**quiet_environment(), "ACCELBUS_FINISH_TIMEOUT": "30", "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90, check=False
    )

    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    for run_dir in sorted(tmp_path.glob("*/*/run.json")):
        assert_delivered(run_dir.parent, environ)


def assert_delivered(run_dir: Path, environ: dict[str, str]) -> None:
    """Check that every tracker of the run got everything; on a busy machine the program may have left before that."""
    accelbus = Path(sys.executable).with_name("accelbus")

    def report(*command: str) -> dict[str, Any]:
        if command:
            subprocess.run([accelbus, *command], env=environ, capture_output=True, timeout=60, check=False)
        status = subprocess.run(
            [accelbus, "status", run_dir, "--json", "--exact"], env=environ, capture_output=True, timeout=60, check=False
        )
        return json.loads(status.stdout)

    found = report()
    if any(sink["pending"] for sink in found["sinks"]):
        found = report("sync", str(run_dir), "--timeout", "30")
    assert {sink["sink"]: (sink["pending"], sink["dead_lettered"], sink["last_error"]) for sink in found["sinks"]} == {
        sink["sink"]: (0, 0, "") for sink in found["sinks"]
    }
    assert found["balanced"]
