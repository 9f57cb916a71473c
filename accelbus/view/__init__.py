"""Views: the merged journal of a run turned into the points that trackers get."""

from __future__ import annotations

from accelbus.view.emission import Counts, Point, View, ViewState
from accelbus.view.one_rank import OneRankView
from accelbus.view.rules import Rules

__all__ = ["Counts", "OneRankView", "Point", "Rules", "View", "ViewState"]
