"""The template for new trackers keeps what it is a template of."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import markdown


def test_the_template_of_a_tracker_passes_the_contract_suite(tmp_path: Path):
    """Tracker and test, copied from the page as they are, pass; what is skipped is what the page says a plain tracker lacks."""
    for block in markdown.blocks(markdown.ROOT / "docs" / "how-to" / "write-a-tracker.md", "python"):
        _, _, module = block.info.partition("module=")
        if module:
            (tmp_path / f"{module}.py").write_text(block.code)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_csv_tracker.py"]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=110, check=False)
    assert result.returncode == 0, result.stdout
    assert "passed" in result.stdout
    skipped = set(re.findall(r"^SKIPPED .*?: (.*)$", result.stdout, re.MULTILINE))
    assert skipped == {"this tracker stamps values itself", "delivery logs row by row", "the class declares nothing"}
