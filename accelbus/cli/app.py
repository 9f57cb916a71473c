"""The commands and what they have in common. Each is imported here and imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from accelbus import __version__
from accelbus.cli.export import export
from accelbus.cli.salvage import salvage
from accelbus.cli.status import status
from accelbus.cli.sync import sync

app = typer.Typer(
    name="accelbus",
    help="Look at runs, deliver what they owe, get their data out.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(status)
app.command()(sync)
app.command()(export)
app.command()(salvage)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"accelbus {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit
