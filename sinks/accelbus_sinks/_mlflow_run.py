"""One open run of MLflow: rows, hyperparameters, tags, texts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from accelbus.tracking import Row
from accelbus_sinks._config import flat_config, shorten, text_of, write_config
from accelbus_sinks._keys import KeyMap
from accelbus_sinks._mlflow_files import GrowingArtifact, text_line, text_table
from accelbus_sinks._mlflow_media import TABLES_TAG, RunArtifacts
from accelbus_sinks._mlflow_names import LIMITS, file_rule, metric_rule, requests, size_of
from accelbus_sinks._mlflow_points import RecentPoints

logger = logging.getLogger(__name__)

OURS: Final = "accelbus"
"""Directory of artifacts that are about the run."""
_REFUSED: Final = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_LIMIT_EXCEEDED"})
"""What a server says to a parameter that it will never take."""


class _Parted(NamedTuple):
    """The values of a row by where they go."""

    numbers: dict[str, float]
    """{name of the metric: value}"""
    texts: dict[str, Any]
    """{key: text or list}"""


class OpenRun:
    """The run, with what has to be known of it.

    Args:
        client: of the server.
        run: as it is now.
        state_dir: for names, timestamps, and lines that are not sent yet.
        checkpoint: what `position` returned at the cursor.
    """

    def __init__(self, client: MlflowClient, run: Run, state_dir: Path, checkpoint: Mapping[str, Any]) -> None:
        self.client = client
        self.run = run
        self.id = str(run.info.run_id)
        self._state_dir = state_dir
        self._params = dict(run.data.params)
        self._tags = dict(run.data.tags)
        self._summary: dict[str, float] = {}
        self.notice: Callable[[str], None] = logger.warning
        """Tell the user something once."""
        self.metric_names, self._param_names, self._tag_names = (
            KeyMap(state_dir / f"{kind}-names.jsonl", metric_rule(), longest=LIMITS.key) for kind in ("metric", "param", "tag")
        )
        file_names, image_names = (KeyMap(state_dir / f"{kind}-names.jsonl", file_rule(), longest=150) for kind in ("file", "image"))
        self.artifacts = RunArtifacts(client, self.id, state_dir, file_names, image_names, self._tags.get(TABLES_TAG))
        self.points = RecentPoints(state_dir / "points", checkpoint.get("points", 0))
        self.texts = GrowingArtifact(state_dir / "texts.jsonl", checkpoint.get("texts", 0), self._send_texts, text_table)
        self.console = GrowingArtifact(state_dir / "console.log", checkpoint.get("console", 0), self.artifacts.put)
        # {key: (attempt, step) of the text that its tag shows}
        self._shown: dict[str, tuple[int, int]] = {}
        self._sizes: dict[str, int] = {}

    def position(self) -> dict[str, Any]:
        """Return what a later process needs to go on from here."""
        return {"run_id": self.id, "points": self.points.position, "texts": self.texts.length, "console": self.console.length}

    def log(self, rows: Sequence[Row]) -> None:
        """Store *rows*. Nothing is stored twice, however often the same rows come.

        Raises:
            TypeError: a value is neither number, text nor list, naming its key; nothing is stored.
            MlflowException: the server refuses or cannot be reached.
        """
        self.texts.make_room()
        parted = [self._part(row) for row in rows]
        stamps = self.points.timestamps(
            [(row.step, row.time_ns // 1_000_000, numbers) for row, (numbers, _) in zip(rows, parted, strict=True)]
        )
        metrics: list[tuple[Metric, int]] = []
        for row, (numbers, _), stamped in zip(rows, parted, stamps, strict=True):
            more = {"model_id": row.log_kwargs["model_id"]} if row.log_kwargs.get("model_id") else {}
            for name, value in numbers.items():
                metrics.append((Metric(name, value, stamped[name], row.step, **more), self._size(name)))
        for request in requests(metrics, LIMITS.metrics):
            self.client.log_batch(self.id, metrics=request, synchronous=True)
        self._log_texts([(row, texts) for row, (_, texts) in zip(rows, parted, strict=True) if texts])
        self.points.settle()

    def add_text(self, row: Row, key: str, value: Any) -> None:
        """Store *value*, text or list, in the table of texts only."""
        self.texts.append([text_line(row.step, row.time_ns, row.attempt, key, value)])

    def store_config(self, config: Mapping[str, Any]) -> None:
        """Make *config* parameters; a parameter never changes, so a value that does goes to the tag ``config/<key>``."""
        flat = flat_config(config, longest=LIMITS.param_value, as_text=True)
        new: dict[str, str] = {}
        changed: dict[str, str] = {}
        for (key, text), name in zip(flat.values.items(), self._param_names.names(flat.values), strict=True):
            tag = f"config/{key}"
            if name not in self._params:
                new[name] = text
            elif text != self._params[name] or self._tag_names[tag] in self._tags:
                changed[tag] = text
        self._log_params(new)
        self.set_tags(changed)
        self.artifacts.put(write_config(self._state_dir / "config.json", config), OURS)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set those of *tags* that are not set so already."""
        texts = {self._tag_names[name]: shorten(text_of(value), LIMITS.tag_value) for name, value in tags.items()}
        new = {name: text for name, text in texts.items() if self._tags.get(name) != text}
        for request in requests(((RunTag(name, text), size_of(name, text)) for name, text in new.items()), LIMITS.tags):
            self.client.log_batch(self.id, tags=request, synchronous=True)
        self._tags |= new

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Make numbers metrics ``summary/<key>``, so that runs can be sorted by them; the rest tags of that name."""
        now = time.time_ns() // 1_000_000
        named = {f"summary/{key}": value for key, value in values.items() if value is not None}
        numbers = {self.metric_names[key]: float(value) for key, value in named.items() if isinstance(value, int | float)}
        new = {name: value for name, value in numbers.items() if self._summary.get(name) != value}
        for request in requests(((Metric(name, value, now, 0), self._size(name)) for name, value in new.items()), LIMITS.metrics):
            self.client.log_batch(self.id, metrics=request, synchronous=True)
        self._summary |= new
        self.set_tags({key: value for key, value in named.items() if not isinstance(value, int | float)})

    def flush(self) -> None:
        """Make lines durable; everything else is."""
        self.texts.flush()
        self.console.flush()

    def close(self, status: str) -> None:
        """End the run with one of MLflow's statuses, and send what is not sent yet."""
        self.client.set_terminated(self.id, status)
        for names in (self.metric_names, self._param_names, self._tag_names):
            if names.path is not None and names.has_renamed:
                self.artifacts.put(names.path, OURS)
        self.texts.close()
        self.console.close()

    def _part(self, row: Row) -> _Parted:
        numbers: dict[str, float] = {}
        texts: dict[str, Any] = {}
        for key, value in row.values.items():
            if isinstance(value, int | float):
                numbers[key] = _number(value)
            elif isinstance(value, str | list):
                texts[key] = value
            elif value is not None:
                raise TypeError(f"{key!r}: expected a number, text or list, got {type(value).__name__}")
        return _Parted(dict(zip(self.metric_names.names(numbers), numbers.values(), strict=True)), texts)

    def _log_texts(self, rows: Sequence[tuple[Row, dict[str, Any]]]) -> None:
        """Show the newest text of each key as a tag, and keep all of them for the table."""
        tags: dict[str, Any] = {}
        shown: dict[str, tuple[int, int]] = {}
        for row, texts in rows:
            for key, value in texts.items():
                place = (row.attempt, row.step)
                if place >= shown.get(key, self._shown.get(key, place)):
                    shown[key] = place
                    tags[f"text/{key}"] = value
        self.set_tags(tags)
        self._shown |= shown
        for row, texts in rows:
            self.texts.append(text_line(row.step, row.time_ns, row.attempt, key, value) for key, value in texts.items())

    def _log_params(self, params: Mapping[str, str]) -> None:
        for request in requests(((Param(name, text), size_of(name, text)) for name, text in params.items()), LIMITS.params):
            try:
                self.client.log_batch(self.id, params=request, synchronous=True)
            except MlflowException as error:
                if error.error_code not in _REFUSED:
                    raise
                self._log_params_alone(request)
        self._params |= params

    def _log_params_alone(self, params: Iterable[Param]) -> None:
        """A server may take fewer or shorter ones than this version of MLflow: leave out those that it refuses."""
        refused: list[str] = []
        error: MlflowException | None = None
        for param in params:
            try:
                self.client.log_batch(self.id, params=[param], synchronous=True)
            except MlflowException as refusal:
                if refusal.error_code not in _REFUSED:
                    raise
                refused.append(param.key)
                error = refusal
        if error is not None:
            self.notice(f"{len(refused)} parameters are only in {OURS}/config.json, {refused[0]!r} among them: {error}")

    def _send_texts(self, path: Path) -> None:
        self.artifacts.put(path)
        self.artifacts.show_as_table(path.name)

    def _size(self, name: str) -> int:
        size = self._sizes.get(name)
        if size is None:
            size = self._sizes[name] = size_of(name)
        return size


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return float("inf") if value > 0 else float("-inf")
