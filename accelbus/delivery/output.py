"""Whether what a tracker has made durable is still there: somebody may have deleted, replaced or cut its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from accelbus.errors import OutputGoneError

FILES: Final = "files"
"""In a checkpoint: {path, relative to the logging directory: bytes that are durable}."""


def check_output(logging_dir: Path, checkpoint: Mapping[str, Any]) -> None:
    """Look whether the files that *checkpoint* names are there, and as long as it says.

    A file that was replaced is found by its length, once more was written to the one that it replaced.

    Raises:
        OutputGoneError: naming the first that is not.
    """
    files = checkpoint.get(FILES)
    for name, length in files.items() if isinstance(files, dict) else ():
        path = logging_dir / name
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise OutputGoneError(f"{path} was deleted: everything is delivered again") from None
        if size < length:
            raise OutputGoneError(f"{path} has {size} bytes of the {length} written to it: everything is delivered again")


__all__ = ["FILES", "check_output"]
