"""ClearML's events: how they are written, and the two ways they go: a request to the server, or a line in an offline session.

ClearML's own reporter queues events for a thread, stamps them when they are reported, and only logs it when the server refuses
them. Here an event carries the time of its value, a refusal raises, and what was sent need not be waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from accelbus_sinks._append_file import AppendFile
from accelbus_sinks._clearml_names import Curve

WORKER: Final = "accelbus"
METRICS_FILE: Final = "metrics.jsonl"
"""Name that ``Task.import_offline_session`` reads."""

_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Of one request; ClearML's client leaves out, with a line in its log, what is beyond 15 MiB."""
_REQUEST_EVENTS: Final = 2000

_encode = msgspec.json.Encoder().encode


class Events(Protocol):
    """Where events go, each already encoded as a JSON object."""

    def send(self, events: Sequence[bytes]) -> None:
        """Hand over *events*. They overwrite earlier ones of the same task, iteration and curve, texts excepted."""

    def flush(self) -> None:
        """Make them durable."""


class OfflineEvents:
    """A JSON list of events per line, as ClearML's offline mode has it. Memory only until `flush`.

    Args:
        folder: of the offline session.
    """

    def __init__(self, folder: Path) -> None:
        self._file = AppendFile(folder / METRICS_FILE)

    @property
    def length(self) -> int:
        """Durable bytes of the file."""
        return self._file.length

    def send(self, events: Sequence[bytes]) -> None:
        self._file.make_room()
        for chunk in _chunks(events):
            self._file.append(b"[" + b",".join(chunk) + b"]\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class OnlineEvents:
    """Requests to the server; durable when they return.

    Args:
        session: ``clearml.backend_api.Session``.
    """

    def __init__(self, session: Any) -> None:
        from clearml.backend_api.services import events as service  # noqa: PLC0415  only the worker has ClearML

        self._session = session
        self._version: str = service.AddBatchRequest._version  # noqa: SLF001  the request class says it nowhere else
        self._method: str = service.AddBatchRequest._method  # noqa: SLF001  see above

    def send(self, events: Sequence[bytes]) -> None:
        """Send *events*.

        Raises:
            ConnectionError: no answer, or not from ClearML.
            ValueError: the server refused some.
        """
        for chunk in _chunks(events):
            response = self._session.send_request(
                "events",
                "add_batch",
                version=self._version,
                method=self._method,
                headers={"Content-Type": "application/json-lines"},
                data=b"\n".join(chunk),
            )
            _check(response, len(chunk))

    def flush(self) -> None:
        """Nothing waits."""


class ScalarEncoder:
    """Numbers as events, quickly: what is the same for all values of a key is encoded once.

    Args:
        task_id: of the task.
    """

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._heads: dict[Curve, str] = {}

    def encode(self, curve: Curve, step: int, time_ms: int, value: float) -> bytes:
        """Return the event; *value* must be finite."""
        head = self._heads.get(curve)
        if head is None:
            fields = {"type": "training_stats_scalar", "task": self._task_id, "metric": curve.title, "variant": curve.series}
            head = self._heads[curve] = _encode(fields).decode()[:-1]
        # repr() of a finite float, and of an int that is no bool, is JSON.
        return f'{head},"iter":{step},"timestamp":{time_ms},"value":{value!r}}}'.encode()


def now_ms() -> int:
    """Return the time in the unit of events."""
    return time.time_ns() // 1_000_000


def text_event(task_id: str, text: str, time_ms: int, level: str = "info") -> bytes:
    """Return a line for the console, which is where ClearML keeps text."""
    return _encode({"type": "log", "task": task_id, "timestamp": time_ms, "worker": WORKER, "level": level, "msg": text})


def plot_event(task_id: str, curve: Curve, step: int, time_ms: int, plotly: str) -> bytes:
    """Return a plot, given as JSON of plotly's."""
    return _encode(
        {
            "type": "plot",
            "task": task_id,
            "metric": curve.title,
            "variant": curve.series,
            "iter": step,
            "timestamp": time_ms,
            "plot_str": plotly,
        }
    )


def sample_event(task_id: str, curve: Curve, step: int, time_ms: int, *, key: str, url: str) -> bytes:
    """Return a debug sample: an uploaded picture, sound, video or page."""
    return _encode(
        {
            "type": "training_debug_image",
            "task": task_id,
            "metric": curve.title,
            "variant": curve.series,
            "iter": step,
            "timestamp": time_ms,
            "key": key,
            "url": url,
        }
    )


def _chunks(events: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield *events* in requests of bounded size; a larger one is alone in its request."""
    chunk: list[bytes] = []
    size = 0
    for event in events:
        if chunk and (size + len(event) > _REQUEST_BYTES or len(chunk) == _REQUEST_EVENTS):
            yield chunk
            chunk, size = [], 0
        chunk.append(event)
        size += len(event)
    if chunk:
        yield chunk


def _check(response: Any, count: int) -> None:
    """Raise unless all *count* events were taken."""
    try:
        answer = response.json()
        code = answer["meta"]["result_code"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConnectionError(f"expected an answer of ClearML's API, got HTTP {response.status_code} {response.text[:200]!r}") from error
    if code in {401, 403} or code >= 500:
        raise ConnectionError(f"ClearML refuses events: {code} {answer['meta'].get('result_msg')}")
    if code != 200 or answer.get("data", {}).get("errors"):
        raise ValueError(f"ClearML took not all of {count} events: {code} {answer['meta'].get('result_msg')} {answer.get('data')}")
