"""The files of the sessions that make up a run: what of each counts, and the way to one file."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from accelbus_sinks._append_file import set_aside
from accelbus_sinks._wandb_log import HEADER_BYTES, Part, join

logger = logging.getLogger(__name__)

_WHOLE: Final = -1
"""Stands for `Part.size` None in a checkpoint."""


class Parts:
    """Files of earlier sessions, the oldest first.

    Args:
        base: paths in checkpoints are relative to it, so that a run directory can be moved.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self.parts: list[Part] = []

    def restore(self, saved: Sequence[Sequence[Any]]) -> None:
        """Go back to what `saved` returned. The rows of a file that is gone are in the one before it: see `join_all`."""
        self.parts = []
        for name, size in saved:
            path = Path(os.path.normpath(self._base / name))
            if path.exists():
                self.parts.append(Part(path, None if size == _WHOLE else size))
            elif self.parts:
                self.parts[-1] = Part(self.parts[-1].path)
            else:
                logger.warning("%s is gone: rows delivered to it earlier are missing", path)

    def saved(self, current: Part | None) -> list[list[Any]]:
        """Return the parts, and *current* as the last one, as plain data."""
        parts = [*self.parts, current] if current else self.parts
        return [[os.path.relpath(part.path, self._base), _WHOLE if part.size is None else part.size] for part in parts]

    def add(self, part: Part) -> None:
        """A session has ended, in whatever way; without anything durable its file is forgotten."""
        if part.size is None or part.size > HEADER_BYTES:
            self.parts.append(part)
        elif part.path.exists():
            put_aside(part.path)

    def join_all(self) -> None:
        """Make all parts one, in the place of the first, and remove the others.

        Raises:
            OSError: nothing that was durable is lost, the same call may be made again.
        """
        first, *later = self.parts
        if not later:
            return
        for part in later:
            _move_files(part.path.parent / "files", first.path.parent / "files")
        join(self.parts)
        # A run that was uploaded has something new now.
        first.path.with_name(first.path.name + ".synced").unlink(missing_ok=True)
        for part in later:
            part.path.unlink(missing_ok=True)
            shutil.rmtree(part.path.parent, ignore_errors=True)
        self.parts = [Part(first.path)]


def put_aside(path: Path) -> None:
    """Keep ``wandb sync`` from taking *path*: its rows are delivered again."""
    set_aside(path, path.name + ".superseded")


def _move_files(source: Path, target: Path) -> None:
    """Put what lies below *source* (media, saved files) below *target* too, over older files of the same name."""
    for folder, _, names in os.walk(source):
        into = target / os.path.relpath(folder, source)
        into.mkdir(parents=True, exist_ok=True)
        for name in names:
            (into / name).unlink(missing_ok=True)
            shutil.copy2(os.path.join(folder, name), into / name)


__all__ = ["Parts", "put_aside"]
