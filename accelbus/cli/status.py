"""``accelbus status``: how a run is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from accelbus.cli.options import DEFAULT_STATE_DIR, StateDir, find, keep_readers_quiet

if TYPE_CHECKING:
    from accelbus.reader.document import Report


def status(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Id or directory of a run; the newest one if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, for programs.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print tables per rank and tracker.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Count from the journal also while the run goes on.")] = False,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> int:
    """Show how a run is: a line per tracker, then what is wrong, if anything.

    While the run's bus process reports, its word is taken; afterwards everything is counted from the journal, and proved.
    """
    from accelbus.cli import FINE, TROUBLE
    from accelbus.cli.progress import ReadingBar
    from accelbus.reader.report import report

    keep_readers_quiet()
    run_dir = find(run, state_dir, verbose=verbose)
    with ReadingBar("reading the journal", run_dir) as bar:
        found = report(run_dir, exact=exact, progress=bar.look)
    if as_json:
        _print_json(found)
    else:
        _print_lines(found, verbose=verbose)
    return FINE if found.is_fine else TROUBLE


def _print_json(found: Report) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


def _print_lines(found: Report, *, verbose: bool) -> None:
    from accelbus.cli.lines import status_lines

    for line in status_lines(found):
        print(line)
    if verbose:
        from accelbus.cli.tables import print_tables

        print_tables(found)


__all__ = ["status"]
