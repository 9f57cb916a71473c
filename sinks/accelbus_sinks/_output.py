"""Which files a tracker's checkpoint relies on, as delivery looks for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from accelbus.tracking import RunInfo


def relied_on(directory: Path, lengths: Mapping[str, int], info: RunInfo) -> dict[str, int]:
    """Return ``files`` of a checkpoint.

    Args:
        directory: of the files.
        lengths: {name in the directory: durable bytes}; those without any are left out.
        info: of the run. A run's directory may be moved, so names are relative to it as far as the files lie in it.
    """
    base = Path(os.path.abspath(directory))
    home = Path(os.path.abspath(info.output_dir))
    if info.output_dir != Path() and base.is_relative_to(home):
        base = base.relative_to(home)
    return {str(base / name): length for name, length in lengths.items() if name and length}


__all__ = ["relied_on"]
