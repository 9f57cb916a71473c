"""What a run is called where the tracker has a name of its own to choose."""

from __future__ import annotations

from accelbus.tracking import RunInfo


def _given_name(info: RunInfo) -> str:
    """Return the name that the user gave the run; empty where its display name is only the run id."""
    return info.name if info.name != info.run_id else ""


def name_of(info: RunInfo, run_name: str) -> str:
    """Return the display name of a run: the user's own, else *run_name*, as with Accelerate, else the run id.

    Of a tracker that every rank has, each run says which rank it is.
    """
    if given := _given_name(info):
        return given
    _, dash, rank = info.run_id.rpartition("-rank")
    return f"{run_name}{dash}{rank}" if run_name and dash and rank.isdecimal() else run_name or info.run_id


__all__ = ["name_of"]
