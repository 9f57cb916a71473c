"""The tables of ``accelbus status -v``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from accelbus.cli.lines import count, dropped_words

if TYPE_CHECKING:
    from accelbus.reader.document import RankReport, Report, SinkReport

_WIDTH_OF_A_FILE = 200
"""Columns when nobody watches: nothing is cut off or wrapped."""


def print_tables(report: Report) -> None:
    """Print one table of the ranks, in events, and one of the sinks, in values."""
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE, highlight=False)
    console.print()
    console.print(_ranks(report))
    for sink in report.sinks:
        console.print(_sink(sink))


def _ranks(report: Report) -> Table:
    table = _table(
        "events, per producer",
        ("rank", "attempt"),
        ("role", "state"),
        ("logged", "acked", "in journal", "pending", "lost"),
        ("dropped", "where"),
    )
    for rank in report.ranks:
        table.add_row(
            str(rank.rank),
            str(rank.attempt),
            rank.role,
            rank.state if not rank.status or rank.status == rank.state else f"{rank.state} ({rank.status})",
            f"{rank.logged:,}",
            f"{rank.acked:,}",
            "" if rank.journal is None else f"{rank.journal:,}",
            f"{rank.pending:,}",
            f"{rank.lost:,}",
            dropped_words(rank.dropped) or "0",
            _where(rank),
        )
    return table


def _sink(sink: SinkReport) -> Table:
    breaker = "open" if sink.breaker_open else "closed"
    facts = [count(sink.retries, "retry"), count(sink.restarts, "restart"), f"breaker {breaker}", *filter(None, [sink.owner])]
    title = f"{sink.sink}: values, per rank ({', '.join(facts)})"
    table = _table(title, ("rank",), (), ("delivered", "pending", "filtered", "superseded", "dead letters", "late"), ())
    for rank, counts in sorted(sink.ranks.items()):
        cells = (counts.delivered, counts.pending, counts.filtered, counts.superseded, counts.dead_lettered, counts.late)
        table.add_row(str(rank), *(f"{cell:,}" for cell in cells))
    if sink.last_error:
        table.caption = f"last error: {sink.last_error}"
        table.caption_justify = "left"
    return table


def _where(rank: RankReport) -> str:
    where = f"{rank.host}, pid {rank.pid}"
    if rank.spool in ("disk", "memory"):
        where = f"{where}, spool {'on disk' if rank.spool == 'disk' else 'in memory'}"
    return where if rank.salvageable else f"{where}, spool not salvageable"


def _table(title: str, numbers: tuple[str, ...], words: tuple[str, ...], counts: tuple[str, ...], more_words: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in numbers:
        table.add_column(name, justify="right")
    for name in words:
        table.add_column(name)
    for name in counts:
        table.add_column(name, justify="right")
    for name in more_words:
        table.add_column(name)
    return table


__all__ = ["print_tables"]
