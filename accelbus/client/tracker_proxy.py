"""What `Run.get_tracker` returns: one tracker of the run, the same in every rank, whatever process it lives in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from accelbus.client.compiled import outside_of_graphs
from accelbus.client.faults import Faults
from accelbus.client.media_methods import MediaMethods
from accelbus.client.statement_methods import StatementMethods
from accelbus.errors import ConfigurationError
from accelbus.events import MetricDefinition, Summary

if TYPE_CHECKING:
    from accelbus.client.run import Run


class TrackerProxy(MediaMethods, StatementMethods):
    """A tracker that lives in a process of its own, as a script may use it: what is logged here goes to this tracker only.

    Of a tracker that every rank has it is this rank's.

    Has the methods of Accelerate's trackers, and those of `Run` for media and definitions. Nothing waits, nothing raises in training.
    """

    def __init__(self, run: Run, name: str) -> None:
        """Use `Run.get_tracker`."""
        self.name = name
        self._run = run
        self._sinks = (run.sink_of(name),)

    @outside_of_graphs
    def log(self, values: Mapping[str, Any], step: int | None = None, **log_kwargs: Any) -> None:
        """`Run.log` for this tracker only; *log_kwargs* go to its ``log``."""
        self._run.put(values, step, sinks=self._sinks, log_kwargs={self.name: log_kwargs} if log_kwargs else None)

    def store_init_configuration(self, values: Any) -> None:
        """`Run.log_config` for this tracker only."""
        self._run.put_config(values, sinks=self._sinks)

    def start(self) -> None:
        """Do nothing: its own process starts it."""

    def finish(self) -> None:
        """Do nothing: it is finished with the run, with the run's status."""

    @property
    def url(self) -> str | None:
        """Where it shows this run; None while that is not known."""
        return self._run.url(self.name)

    @property
    def tracker(self) -> NoReturn:
        """The live object is elsewhere.

        Raises:
            ConfigurationError: naming the ways that work.
        """
        raise cannot_unwrap(self.name)

    def _log_beside(self, values: Mapping[str, Any], step: Any) -> None:
        self._run.put(values, step, sinks=self._sinks, beside=True)

    @property
    def faults(self) -> Faults:
        return self._run.faults

    def put_statement(self, event: MetricDefinition | Summary) -> None:
        self._run.put_statement(msgspec.structs.replace(event, sinks=self._sinks))

    def __repr__(self) -> str:
        return f"<tracker {self.name!r} of {self._run!r}>"


def cannot_unwrap(name: str, *, is_inline: bool = False) -> ConfigurationError:
    """Return the error for whoever asks for the live object where it is not."""
    where = "in the main rank" if is_inline else "in a process of its own"
    return ConfigurationError(
        f"the tracker {name!r} lives {where}, so its live object is not here. Use the methods of "
        f"run.get_tracker({name!r}) (log, log_image, log_table, log_artifact, alert, define_metric, summary, …), which work in every "
        f"rank; or run it in the main rank with accelbus.init(inline=[{name!r}]): then get_tracker({name!r}, unwrap=True) works there, "
        f"and a call of it that blocks or crashes does so to training"
    )


__all__ = ["TrackerProxy", "cannot_unwrap"]
