"""Progress on stderr, when somebody watches."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from accelbus.journal.merge import JournalReader
    from accelbus.rundir import RunDir

_INTERVAL: Final = 0.25
"""Seconds between two looks: asking how far a reader is costs a listing of the journal."""


class Bar:
    """A bar of bytes read, on a terminal's stderr; nothing where stderr is a file."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._progress: Any = None  # rich's, which is imported only when there is something to show
        self._task: Any = None
        self._next_at = time.monotonic() + _INTERVAL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def is_due(self) -> bool:
        """Whether it is time to show something new, to somebody."""
        return time.monotonic() >= self._next_at and sys.stderr.isatty()

    def show(self, done: int, total: int) -> None:
        """Show *done* of *total* bytes."""
        self._next_at = time.monotonic() + _INTERVAL
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
            self._task = self._progress.add_task(self._what, total=total)
        self._progress.update(self._task, completed=done, total=max(total, 1))


class ReadingBar(Bar):
    """A `Bar` for a reader of a run's journal."""

    def __init__(self, what: str, run_dir: RunDir) -> None:
        super().__init__(what)
        self._run_dir = run_dir

    def look(self, reader: JournalReader) -> None:
        """Show how far *reader* is, if it is time."""
        if self.is_due:
            from accelbus.reader.export import progress_of

            self.show(*progress_of(self._run_dir, reader.state()))


class Line:
    """One line on a terminal's stderr that is written again and again; nothing where stderr is a file."""

    def __init__(self) -> None:
        self._is_shown = False

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Make room for other output."""
        if self._is_shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._is_shown = False


__all__ = ["Bar", "Line", "ReadingBar"]
