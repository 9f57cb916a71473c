"""DVCLive: curves, parameters, images and plots as files that ``dvc plots``, ``dvc metrics``, VS Code and Studio read.

Rows do not go through ``Live.log_metric`` and ``next_step``: these write a file for each value and parse or rewrite all of them at
each step. The same lines are written here, once a flush (`_dvclive_curves`), and ``Live`` writes everything else.
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accelbus.media import Media
from accelbus.tracking import GeneralTracker, Row
from accelbus.values import flatten
from accelbus_sinks._config import spelled_out, text_of
from accelbus_sinks._dvclive_curves import LONGEST_NAME, Curves, curve_name, line_of, nested
from accelbus_sinks._keys import KeyMap
from accelbus_sinks._places import from_job_directory, job_directory
from accelbus_sinks._side_files import FILES, SideFiles

DEFAULTS: Final = {"save_dvc_exp": False, "dvcyaml": False, "report": None}
"""Without them DVCLive makes a DVC repository of the Git repository it finds itself in, writes a ``dvc.yaml`` into it, and saves an
experiment at the end."""


class DVCLiveTracker(GeneralTracker):
    """Write DVCLive's files, exactly once, durable after ``flush``.

    Args:
        run_name: unused, as with Accelerate.
        live: a ``dvclive.Live`` to be used instead of a new one; only where the tracker runs in the process that made it.
        kwargs: arguments of ``dvclive.Live``. ``dir`` is the run's own directory when not given; a relative one is meant from where
            the job was started. ``save_dvc_exp=True`` works in the repository there, with ``dvclive`` as directory.
    """

    name = "dvclive"
    requires_logging_directory = False
    log_keywords = ("plot",)

    def __init__(self, run_name: str | None = None, live: Any = None, **kwargs: Any) -> None:
        super().__init__()
        self._given = live
        self._kwargs = {**DEFAULTS, **kwargs}
        self._live: Any = None
        self._step = 0
        self._checkpoint: dict[str, Any] = {}
        # {name: (attempt, step)} of the values in the summary
        self._newest: dict[str, tuple[int, int]] = {}
        self._values: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._written: dict[str, Any] = {}

    @property
    def tracker(self) -> Any:
        """The ``dvclive.Live``."""
        return self._live

    @property
    def url(self) -> str:
        return str(self._directory())

    # Opening

    def restore(self, checkpoint: dict[str, Any]) -> None:
        self._checkpoint = checkpoint

    def start(self) -> None:
        directory = self._directory()
        directory.mkdir(parents=True, exist_ok=True)
        state_dir = None if self.run_info.state_dir == Path() else self.run_info.state_dir
        self._keys = KeyMap(state_dir / "keys.json" if state_dir else None, curve_name, longest=LONGEST_NAME)
        self._side = SideFiles(directory, self.run_info)
        self._side.restore(self._checkpoint.get("side", {}))
        (directory / "status.json").unlink(missing_ok=True)
        self._curves = Curves(directory / "plots" / "metrics")
        self._live = self._given or self._new_live()

    def _new_live(self) -> Any:
        is_resumed = bool(self._checkpoint)
        # Outside any repository DVCLive would make one of the Git repository around it; where there is none it does without.
        with contextlib.chdir(self._repository or "/"):
            live = _live_class()(**{**self._kwargs, "dir": self._dir_argument(), "resume": is_resumed})
        self._curves.restore(self._checkpoint.get("curves", {}))
        if is_resumed:
            live.step = live.read_step()  # it has begun the next one
            self._values = flatten({name: value for name, value in live.summary.items() if name != "step"})
        return live

    @property
    def _repository(self) -> Path | None:
        """Where DVCLive is to find its repository, if it is to have one."""
        return (job_directory(os.environ, self.run_info) or Path.cwd()) if self._kwargs["save_dvc_exp"] else None

    def _directory(self) -> Path:
        if self._given is not None:
            return Path(self._given.dir).absolute()
        if given := self._kwargs.get("dir"):
            return from_job_directory(given, os.environ, self.run_info)
        return self._repository / "dvclive" if self._repository else self.run_info.output_dir.absolute()

    def _dir_argument(self) -> str:
        """DVC wants paths inside its repository relative to where it stands."""
        directory, repository = self._directory(), self._repository
        return str(directory.relative_to(repository) if repository and directory.is_relative_to(repository) else directory)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield the ``Live``, standing in its repository if it has one."""
        if self._live is None:
            raise RuntimeError("DVCLive is not open; call start() first")
        with contextlib.chdir(self._repository) if self._repository else contextlib.nullcontext():
            yield self._live

    # Values

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        with self._opened() as live:
            if isinstance(params := getattr(live, "_params", None), dict):
                params.clear()  # ``log_params`` only adds
            live.log_params(_for_yaml(values))

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(self._step if step is None else step, values, time.time_ns(), log_kwargs=kwargs)])

    def log_batch(self, rows: Sequence[Row]) -> None:
        """Add *rows*. Of ``log_metric``'s arguments, ``plot=False`` is understood: only the summary has the values then."""
        with self._opened() as live:
            self._curves.make_room()
            # Everything is checked before anything is remembered: a value that cannot be stored refuses the batch as a whole.
            taken = [(row, {key: _plain(key, value) for key, value in row.values.items() if value is not None}) for row in rows]
            self._keys.names(key for _, values in taken for key in values)
            for row, values in taken:
                self._log_row(live, row, values)

    def _log_row(self, live: Any, row: Row, values: Mapping[str, str | float]) -> None:
        milliseconds, plotted = row.time_ns // 1_000_000, row.log_kwargs.get("plot", True)
        newness = (row.attempt, row.step)
        for key, value in values.items():
            name = self._keys[key]
            if self._given is not None:  # whose tables may have other columns
                live.step = row.step
                live.log_metric(name, value, plot=plotted)
            elif plotted:
                self._curves.add(name, line_of(milliseconds, row.step, value))
            if newness >= self._newest.get(name, newness):
                self._newest[name], self._values[name] = newness, value
        if values:
            self._step = row.step

    # Media

    def log_image(self, key: str, media: Media, step: int) -> None:
        """``<key>/<step>.png``: DVC shows such a folder with a slider."""
        with self._opened() as live:
            live.log_image(f"{self._keys[key]}/{step}.png", media.pil())
        if media.caption:
            self.log_batch([Row(step, {f"{key}/caption": media.caption}, media.time_ns)])

    def log_histogram(self, key: str, media: Media, step: int) -> None:
        """A plot of its own for each step: counts over the middles of the bins."""
        counts, edges = media.histogram()
        points = [
            {"bin": (low + high) / 2, "count": count, "from": low, "to": high}
            for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
        ]
        with self._opened() as live:
            live.log_plot(f"{self._keys[key]}/{step}", points, x="bin", y="count", template="simple", title=f"{key}, step {step}")

    def log_table(self, key: str, media: Media, step: int) -> None:
        """A CSV file: what DVC takes for data of plots."""
        columns, rows = media.table()
        path = self._directory() / FILES / f"{self._keys[key]}-{step}.csv"
        with self._opened():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
                csv.writer(file, lineterminator="\n").writerows([columns, *rows])

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        """A copy below ``artifacts``; with ``save_dvc_exp`` DVC tracks it too."""
        meta = media.meta
        with self._opened() as live:
            path = self._directory() / self._side.media(key, media, step)
            if self._kwargs["save_dvc_exp"]:
                live.log_artifact(
                    path, type=meta["type"], name=str(meta["name"]), labels=list(meta["aliases"]), meta=dict(meta["metadata"]) or None
                )

    def _log_as_file(self, key: str, media: Media, step: int) -> None:
        with self._opened():
            self._side.media(key, media, step)

    # What is said of the run as a whole

    def summarise(self, values: Mapping[str, Any]) -> None:
        """In ``metrics.json``, over the newest values of the curves."""
        with self._opened():
            self._summary = {self._keys[key]: _plain(key, value) for key, value in values.items() if value is not None}

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        with self._opened():
            self._side.define(pattern, axis=axis, summary=summary, goal=goal)

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        with self._opened():
            self._side.run_record(facts)

    def log_console(self, lines: Sequence[str]) -> None:
        with self._opened():
            self._side.console(lines)

    def alert(self, title: str, text: str, level: str) -> None:
        with self._opened():
            self._side.alert(title, text, level, self._step)

    # Durability and the end

    def flush(self) -> None:
        with self._opened() as live:
            self._curves.flush()
            self._side.flush()
            said = {**self._values, **self._summary}
            if said != self._written:
                self._update(live, said)
                live.make_summary()
                self._written = said

    def checkpoint(self) -> dict[str, Any]:
        return {"curves": self._curves.lengths(), "side": self._side.checkpoint()}

    def finish(self, status: str | None = None) -> None:
        with self._opened() as live:
            self._curves.flush()
            self._side.document("status", {"status": status or "finished", "time": time.time()})
            self._side.flush()
            self._update(live, {**self._values, **self._summary})
            live.end()
        self._side.close()
        self._live = None

    def _update(self, live: Any, said: Mapping[str, Any]) -> None:
        if self._newest:
            live.step = max(self._newest.values())[1]
            # ``end`` takes the step from here.
            live.summary = {**nested({name: _for_summary(value) for name, value in said.items()}), "step": live.step}
        elif said:
            live.summary = {**live.summary, **nested({name: _for_summary(value) for name, value in said.items()})}


def _live_class() -> Any:
    """Return ``dvclive.Live``, which reads all curves again at each end although no Studio is there to get them."""
    import dvclive  # noqa: PLC0415  the package is imported when the tracker starts

    class Live(dvclive.Live):  # type: ignore[misc]  # not annotated
        def post_data_to_studio(self) -> None:
            if "data" not in getattr(self, "_studio_events_to_skip", ()):
                super().post_data_to_studio()

    return Live


def _plain(key: str, value: Any) -> str | float:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return text_of(value)
    raise TypeError(f"value of {key!r} is {value!r} ({type(value).__name__}): expected a number, text, or a list of those")


def _for_summary(value: Any) -> Any:
    """JSON has no numbers that are not finite; DVCLive writes them as Python does."""
    return str(value) if value != spelled_out(value) else value


def _for_yaml(value: Any) -> Any:
    """YAML takes no lone surrogates."""
    if isinstance(value, Mapping):
        return {_for_yaml(str(key)): _for_yaml(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_for_yaml(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
