"""What the suite logs: names, and the circumstances of a run."""

from __future__ import annotations

from typing import Any, Final

ODD_KEYS: Final = (
    "a/b",
    "a.b",
    "a//b",
    "../x",
    "/x",
    "a b",
    "timing(s)/gen",
    "mean@1",
    "é",
    "损失",
    "🦀/loss",
    "step",
    "timestamp",
    "_step",
    "__x",
    "x" * 600,
    "x" * 599 + "y",
    "line\nbreak",
    "\0control\x1f",
    "",
    "%s",
    'quote"\\',
)
"""What users name their metrics; trackers with a smaller alphabet map them, reversibly and without collisions."""

RECORD_AT_ONCE: Final = {
    "argv": ["train.py", "--lr", "0.1"],
    "command": "python train.py --lr 0.1",
    "executable": "/usr/bin/python",
    "cwd": "/home/me",
    "host": "node1",
    "pid": 12,
    "launcher": {"name": "torchrun", "world_size": 2},
    "python": "3.13.1 (cpython)",
    "environment": {"WORLD_SIZE": "2"},
}
"""The first part of a run record; see `GeneralTracker.store_run_record`."""
RECORD: Final[dict[str, Any]] = {
    "cpu": {"name": "Fast", "count": 8},
    "memory_bytes": 2**34,
    "os": "Linux",
    "packages": {**{f"package-{number}": f"1.{number}" for number in range(300)}, "torch": "2.13.0"},
    "git": {"commit": "c0ffee" * 6 + "c0de", "branch": "main", "remote": "https://example.org/it.git", "dirty": True, "untracked": ["é"]},
    "patch": "diff --git a/x b/x\n" + "+line é\n" * 30_000,
    "gpus": [{"name": "Big", "memory_mib": 81920, "driver": "570.1"}],
    "torch": {"version": "2.13.0", "cuda": "12.8", "hip": None},
}
"""The other part, in which anything may be None."""
