"""``accelbus export``: every raw event of a run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from accelbus.cli.options import DEFAULT_STATE_DIR, Run, StateDir, find, keep_readers_quiet

if TYPE_CHECKING:
    from accelbus.reader.export import Export


class Format(StrEnum):
    """Formats that a run can be exported to."""

    JSONL = "jsonl"


def export(
    run: Run,
    form: Annotated[Format, typer.Option("--format", help="Format of the output.")] = Format.JSONL,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Instead of standard output.")] = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> int:
    """Write every raw event of every rank, one JSON object a line.

    A FILE appears when it is complete. Exit code 1: events are missing, or wait in the spool of a rank that is gone; what is there was written.
    """
    from accelbus.cli.progress import Bar
    from accelbus.reader.export import Export

    keep_readers_quiet()
    exported = Export(find(run, state_dir))
    with _opened(output) as file, Bar("exporting") as bar:
        for chunk in exported.chunks():
            file.write(chunk)
            if bar.is_due:
                bar.show(*exported.progress())
        file.flush()
    return _conclude(exported, output)


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    """Open *output*; a regular file is written beside its name first, so that half an export is never taken for a whole one."""
    if output is None or str(output) == "-":
        yield sys.stdout.buffer
        return
    if output.exists() and not output.is_file():
        with output.open("wb") as file:
            yield file
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _conclude(exported: Export, output: Path | None) -> int:
    from accelbus.cli import FINE, TROUBLE
    from accelbus.cli.lines import dropped_words

    if output is not None:
        print(f"{exported.lines:,} lines in {output}", file=sys.stderr)
    gaps = exported.gaps()
    for rank, events in sorted(gaps.events.items()):
        print(f"accelbus: rank {rank}: {events:,} events are missing", file=sys.stderr)
    for rank, events in sorted(gaps.pending.items()):
        print(f"accelbus: rank {rank}: {events:,} events are still in its spool; accelbus sync brings them in", file=sys.stderr)
    for rank, events in sorted(gaps.coming.items()):
        print(f"accelbus: rank {rank}: {events:,} events are on their way", file=sys.stderr)
    if gaps.undecodable:
        print(f"accelbus: {gaps.undecodable:,} events cannot be decoded by this version", file=sys.stderr)
    if gaps.corrupt:
        print(f"accelbus: damaged or foreign bytes in the journal were skipped ({dropped_words(gaps.corrupt)})", file=sys.stderr)
    return FINE if gaps.is_whole else TROUBLE


__all__ = ["export"]
