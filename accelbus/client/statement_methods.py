"""Metric definitions and the summary: what a script says about its metrics, beside their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from time import time_ns
from typing import Any, Final

from accelbus.client.compiled import outside_of_graphs
from accelbus.client.faults import Faults
from accelbus.events import MetricDefinition, Summary

SUMMARIES: Final = ("", "min", "max", "best", "last", "mean", "first", "none")
GOALS: Final = {"": "", "min": "minimize", "minimize": "minimize", "max": "maximize", "maximize": "maximize"}


class StatementMethods:
    """Mixed into `Run` and into the trackers of `Run.get_tracker`. Never waits; a wrong argument is counted and warned about once.

    All ranks may say the same; where they differ, the lowest rank's word counts.
    """

    @property
    def faults(self) -> Faults:
        """Counters of what was not kept."""
        raise NotImplementedError

    def put_statement(self, event: MetricDefinition | Summary) -> None:
        """Queue *event* for whom it is meant."""
        raise NotImplementedError

    @outside_of_graphs
    def define_metric(self, pattern: str, axis: str | None = None, summary: str | None = None, goal: str | None = None) -> None:
        """Say how keys like *pattern* are to be shown, in trackers that can.

        Args:
            pattern: key, or glob such as ``eval/*``.
            axis: key whose value is the x axis instead of the step.
            summary: min, max, best, last, mean, first or none: the number that stands for the curve.
            goal: minimize or maximize; what ``best`` means.
        """
        summary, goal = summary or "", goal or ""
        if summary not in SUMMARIES:
            self.faults.blame("bad_values", str(pattern), f"summary={summary!r}: expected one of {', '.join(SUMMARIES[1:])}")
        elif goal not in GOALS:
            self.faults.blame("bad_values", str(pattern), f"goal={goal!r}: expected minimize or maximize")
        else:
            self.put_statement(MetricDefinition(time_ns(), _text(pattern), _text(axis or ""), summary, GOALS[goal]))

    @outside_of_graphs
    def summarise(self, values: Mapping[str, Any]) -> None:
        """Record single *values* of the whole run, such as a final score; a later value of a key replaces the earlier one."""
        self.put_statement(Summary(time_ns(), _copied(values)))

    @property
    def summary(self) -> SummaryView:
        """The summary as a mapping: ``run.summary["best"] = 0.9`` records it."""
        view = self.__dict__.get("_summary")
        if view is None:
            view = self.__dict__["_summary"] = SummaryView(self)
        assert isinstance(view, SummaryView)
        return view


class SummaryView(MutableMapping[str, Any]):
    """What this rank has put into the summary. A key that is deleted becomes None in trackers."""

    def __init__(self, to: StatementMethods) -> None:
        self._to = to
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value
        self._to.summarise({key: value})

    def __delitem__(self, key: str) -> None:
        del self._values[key]
        self._to.summarise({key: None})

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def update(self, *arguments: Any, **values: Any) -> None:
        """Record several values at once."""
        given = dict(*arguments, **values)
        self._values.update(given)
        self._to.summarise(given)

    def __repr__(self) -> str:
        return f"<summary {self._values!r}>"


def _copied(values: Any) -> Any:
    return dict(values) if isinstance(values, Mapping) else values  # the latter is refused, with what was expected


def _text(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


__all__ = ["GOALS", "SUMMARIES", "StatementMethods", "SummaryView"]
