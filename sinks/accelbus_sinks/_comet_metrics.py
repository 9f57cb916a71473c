"""Numbers as Comet's messages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from accelbus.tracking import Row


def sink_name(key: str) -> str:
    """Return what Comet can call *key*: one line, not empty.

    ``comet upload`` gives up all metrics that follow one whose name has a line break.
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "_", key) or "_"


def metrics_of(row: Row) -> Iterator[tuple[str, float]]:
    """Yield the numbers of *row*. A bool as it is would become text."""
    for key, value in row.values.items():
        if isinstance(value, bool):
            yield key, int(value)
        elif isinstance(value, int | float):
            yield key, value
        elif not isinstance(value, str | list | tuple | None):
            raise TypeError(f"value of {key!r} is {value!r} ({type(value).__name__}): expected a number, text, or a list of those")


def epoch_of(values: Mapping[str, Any]) -> float | None:
    """Return what a row says of its epoch; Comet has an axis for it."""
    epoch = values.get("epoch")
    return epoch if isinstance(epoch, int | float) and not isinstance(epoch, bool) and math.isfinite(epoch) else None


def sender(experiment: Any) -> Callable[[str, float, int, float | None, int], None]:
    """Return a function that logs one metric: (name, value, step, epoch, milliseconds).

    ``log_metric`` writes a message that sets the step beside every one of the metric, and its own time. A version of Comet without
    these messages gets its public call.
    """
    try:
        from comet_ml.messages import MetricMessage  # noqa: PLC0415  not before `environment` is in force

        put = experiment._enqueue_message  # noqa: SLF001  the one place through which all of Comet's messages go
    except (ImportError, AttributeError):
        return lambda name, value, step, epoch, _: experiment.log_metric(name, value, step=step, epoch=epoch)

    def send(name: str, value: float, step: int, epoch: float | None, milliseconds: int) -> None:
        message = MetricMessage(timestamp=milliseconds)
        message.set_metric(name, value, step=step, epoch=epoch)
        put(message)

    return send


__all__ = ["epoch_of", "metrics_of", "sender", "sink_name"]
