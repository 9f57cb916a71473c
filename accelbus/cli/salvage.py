"""``accelbus salvage``: spool files into their runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accelbus.cli.options import DEFAULT_STATE_DIR, StateDir, keep_readers_quiet

if TYPE_CHECKING:
    from accelbus.aggregator.rescue import Rescued


def salvage(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE_OR_DIR...", help="Spool files, or directories with some.")],
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> int:
    """Bring what killed ranks left in their spool files into their runs.

    A spool file names its run. Originals are removed once everything in them is safe in the run; copies are left. Safe to repeat.
    """
    from accelbus.aggregator.rescue import rescue_paths
    from accelbus.cli import FINE, TROUBLE
    from accelbus.config import Tuning, from_environment

    keep_readers_quiet()
    results = rescue_paths(paths, state_dir=state_dir, tuning=from_environment(Tuning))
    for result in results:
        print(describe(result))
    if not results:
        print("no spool files there")
    return FINE if all(result.outcome == "rescued" for result in results) else TROUBLE


def describe(result: Rescued) -> str:
    """Return what became of one spool, in words."""
    if result.outcome == "rescued":
        end = "; removed" if result.removed else "; left there"
        return f"{result.path}: {result.events:,} events of rank {result.rank} brought into {result.run_path}{end}"
    if result.outcome == "failed":
        return f"{result.path}: not salvaged: {result.text}"
    return f"{result.path}: rank {result.rank} is left alone: {result.text}"


__all__ = ["describe", "salvage"]
