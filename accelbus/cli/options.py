"""Arguments that several commands take, and what they become."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from accelbus.rundir import RunDir

Run: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or the path of its directory.")]
StateDir: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--state-dir",
        envvar=["ACCELBUS_STATE_DIR", "ACCELBUS_DIR"],
        metavar="DIR",
        help="Where runs are looked for by id.",
    ),
]
DEFAULT_STATE_DIR = Path("runs")


def find(run: str | None, state_dir: Path, *, verbose: bool = False) -> RunDir:
    """Return the run called *run*, the newest one of *state_dir* when None; with *verbose* say which ones could not be looked at.

    Raises:
        RunNotFoundError: there is none.
    """
    import os
    import sys

    from accelbus.errors import RunNotFoundError
    from accelbus.rundir import RunDir, find_run, list_runs

    if run is not None:
        # Absolute, so that `accelbus status .` has a name to show, and commands that are printed work anywhere.
        return RunDir(os.path.abspath(find_run(run, state_dir).path))

    def say(path: Path, error: OSError) -> None:
        if verbose:
            print(f"accelbus: {path} is passed over: {error.strerror or error}", file=sys.stderr)

    runs = list_runs(state_dir, on_unreadable=say)
    if not runs:
        raise RunNotFoundError(f"there are no runs in {str(state_dir)!r}; name one, or say where they are with --state-dir")
    return RunDir(os.path.abspath(runs[0].path))


def keep_readers_quiet() -> None:
    """What readers find is part of what the command prints; their log lines would say it twice."""
    import logging

    logging.getLogger("accelbus").setLevel(logging.CRITICAL)
