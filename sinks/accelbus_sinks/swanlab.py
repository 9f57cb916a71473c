"""SwanLab: one run per process, each value under its own time, no value skipped for its step.

SwanLab silently skips a second value of a key at a step. Such a value, of a later attempt or changed by a rank that was late, goes
under a name of its own: ``attempt-1/loss``, ``revised/loss``. Offline, all processes that deliver a run write one run directory.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accelbus.tracking import RefusedRow, Row
from accelbus_sinks import _swanlab_run as runs
from accelbus_sinks._append_file import cut_back
from accelbus_sinks._config import spelled_out, text_of, write_config
from accelbus_sinks._keys import KeyMap
from accelbus_sinks._step_text import step_text
from accelbus_sinks._swanlab_core import LARGEST_STEP, SwanLabCore, attach, read_points
from accelbus_sinks._swanlab_media import SwanLabMedia
from accelbus_sinks._swanlab_names import LONGEST, name_of, revisions, virtual_key
from accelbus_sinks._swanlab_public import PublicCore
from accelbus_sinks._swanlab_refusals import Handed, OnTheWay

logger = logging.getLogger(__name__)

STATES: Final = {None: "success", "finished": "success", "preempted": "aborted"}
"""{our status: SwanLab's}; everything else is crashed."""


class SwanLabTracker(SwanLabMedia):
    """Record a run with SwanLab.

    Args:
        run_name: project; characters that SwanLab does not take are replaced.
        kwargs: of ``swanlab.init``.
    """

    name = "swanlab"
    requires_logging_directory = False
    log_keywords = ()

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self._run_name = run_name
        self._arguments = kwargs
        self._run: Any = None
        self._core: SwanLabCore | PublicCore | None = None
        self._before: Path | None = None
        self._checkpoint: dict[str, Any] = {}
        self._offset = 0
        self._step = 0
        self._delivered: Mapping[tuple[str, int], float | None] = {}
        """What the process before this one had logged behind its cursor, and may have uploaded."""
        self._on_the_way = OnTheWay()
        self._refused: list[RefusedRow] = []

    @property
    def tracker(self) -> Any:
        """The ``swanlab.Run``."""
        return self._run

    @property
    def url(self) -> str | None:
        """Its page, or the directory for ``swanlab sync``."""
        if self._run is None:
            return None
        return str(self._run.url if self._run.mode == "online" else self._run.dir)

    def restore(self, checkpoint: dict[str, Any]) -> None:
        self._checkpoint = checkpoint

    def start(self) -> None:
        if self._core is not None:
            return
        arguments = runs.arguments_of(self._run_name, self.run_info, self._arguments)
        directory = runs.directory_of(arguments)
        if self._run is None:
            self._before = runs.put_aside(directory)
            self._run = runs.open_run(arguments, directory)
        self._names = KeyMap(self.run_info.state_dir / "keys.json", name_of, longest=LONGEST)
        core = attach(self._run)
        if self._before is not None:
            self._go_on(core, self._before, directory)
            self._before = None
        self.durable_after = core.durable_after
        core.flush()
        self._offset = core.length
        self._core = core

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        given = self._arguments.get("config")
        ours = {name: kept for name, kept in self._kept_config().items() if name in {"definitions", "summary"}}
        self._store_config({**ours, **(given if isinstance(given, dict) else {}), **values})

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Keep *values* in the configuration, under ``summary``: SwanLab has no other place for single values."""
        self._store_config({**self._kept_config(), "summary": dict(values)})

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        """Show *pattern* over *axis*: in the first run of a project that logs such a key, if it has not logged it yet.

        SwanLab knows no *summary* and no *goal*: they are kept in the configuration, under ``definitions``.
        """
        core = self._opened()
        if summary or goal:
            said = {name: text for name, text in (("summary", summary), ("goal", goal)) if text}
            kept = self._kept_config()
            self._store_config({**kept, "definitions": {**kept.get("definitions", {}), pattern: said}})
        if axis:
            self._run.define_metric(pattern, x_axis=self._names[axis])
            core.settle()

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        """Save *facts* as one of the run's files, ``run-record.json``."""
        root = self.run_info.output_dir / "saved"
        self._save(write_config(root / "run-record.json", facts), root)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(self._step if step is None else step, values, time.time_ns())])

    def log_batch(self, rows: Sequence[Row]) -> None:
        core = self._opened()
        sorted_rows = _Sorted(rows)
        self._names.names(key for key, _ in sorted_rows.numbers)
        records = []
        for (key, step), (value, row) in sorted_rows.numbers.items():
            name = self._free_name(core, key, step, row.attempt, value=value)
            if name:
                self._on_the_way.value(name, step, Handed(row.attempt, step, key))
                records.append(core.scalar(name, step, value, row.time_ns))
        core.store_scalars(records)
        for (key, step), (text, row) in sorted_rows.texts.items():
            self._store_text(key, step, text, row)
        for line, row, keys in sorted_rows.lines:
            self._store_line(line, row, keys)
        if rows:
            self._step = rows[-1].step

    def log_console(self, lines: Sequence[str]) -> None:
        self._opened().store_lines(lines, time.time_ns())

    def flush(self) -> None:
        core = self._opened()
        core.flush()
        self._note_refusals(core)
        self._offset = core.length

    def refused_rows(self) -> list[RefusedRow]:
        refused, self._refused = self._refused, []
        return refused

    def checkpoint(self) -> dict[str, Any]:
        return {"offset": self._offset}

    def finish(self, status: str | None = None) -> None:
        self._opened().settle()
        self.flush()
        state = STATES.get(status, "crashed")
        self._run.finish(state=state, error=f"accelbus: {status}" if state == "crashed" else None)
        self._run = self._core = None

    def _note_refusals(self, core: SwanLabCore | PublicCore) -> None:
        rows, said = self._on_the_way.rows(core.refused())
        self._refused += rows
        for text in said:
            self.notice(text)
        self._on_the_way.arrived()

    def _go_on(self, core: SwanLabCore | PublicCore, before: Path, directory: Path) -> None:
        """Continue what an earlier process left in *before*, or leave it beside the run where everything will be delivered again."""
        file = runs.run_file(before)
        is_online = self._run.mode == "online"
        if file is None or not core.can_continue or not (self._checkpoint or is_online):
            runs.supersede(before, directory)
            return
        offset = self._checkpoint.get("offset", 0)
        if is_online:
            self._delivered = read_points(file, offset)
        else:
            cut_back(file, offset)
        runs.merge(before, directory)
        core.continue_file(file, rebuild=not is_online)
        shutil.rmtree(before)
        if config := self._kept_config():
            self._write_config(core, config)

    def _free_name(
        self, core: SwanLabCore | PublicCore, key: str, step: int, attempt: int, kind: str = "", value: float | None = None
    ) -> str | None:
        """Return the name under which SwanLab will not skip a value; None if it has this very *value* already.

        Media come without *value*: what the process before this one logged behind its cursor is taken for the same.
        """
        for revision in revisions(attempt):
            name = self._names[virtual_key(key, kind, revision)]
            if not core.is_used(name, step):
                return name
            if self._delivered.get((name, step), math.nan) == value:
                return None
        raise AssertionError("there is always another name")

    def _store_media(self, key: str, kind: str, step: int, value: Any, time_ns: int, attempt: int = 0) -> bool:
        core = self._opened()
        if not 0 <= step < LARGEST_STEP:
            return False
        name = self._free_name(core, key, step, attempt, kind)
        if name is None:
            return True
        self._on_the_way.value(name, step, Handed(attempt, step, key))
        return core.store_media(name, step, value, time_ns)

    def _store_text(self, key: str, step: int, text: str, row: Row) -> None:
        import swanlab  # noqa: PLC0415  only the worker imports trackers

        if not self._store_media(key, "text", step, swanlab.Text(text), row.time_ns, row.attempt):
            self._store_line(step_text(step, {key: text}), row, [key])

    def _store_line(self, line: str, row: Row, keys: Iterable[str]) -> None:
        self._on_the_way.line(line, [Handed(row.attempt, row.step, key) for key in keys])
        self._opened().store_lines([line], row.time_ns)

    def _store_config(self, config: dict[str, Any]) -> None:
        core = self._opened()
        write_config(self._config_file, config)
        self._write_config(core, config)

    def _write_config(self, core: SwanLabCore | PublicCore, config: dict[str, Any]) -> None:
        self._run.config.clean()
        # SwanLab makes {} of a None that is not inside anything, and "Inf" of either infinity inside something.
        self._run.config.update({key: "None" if value is None else value for key, value in spelled_out(config).items()})
        core.settle()

    def _kept_config(self) -> dict[str, Any]:
        try:
            config: dict[str, Any] = json.loads(self._config_file.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return config

    @property
    def _config_file(self) -> Path:
        return self.run_info.state_dir / "config.json"

    def _opened(self) -> SwanLabCore | PublicCore:
        if self._core is None:
            raise RuntimeError("the run is not open; call start() first")
        return self._core

    def _run_object(self) -> Any:
        return self._run


class _Sorted:
    """Values of rows by where they go. The last value of a key at a step counts.

    Raises:
        TypeError: there is one that goes nowhere.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.numbers: dict[tuple[str, int], tuple[float, Row]] = {}
        self.texts: dict[tuple[str, int], tuple[str, Row]] = {}
        self.lines: list[tuple[str, Row, list[str]]] = []
        for row in rows:
            self._add(row)

    def _add(self, row: Row) -> None:
        step = int(row.step)
        has_step = 0 <= step < LARGEST_STEP
        rest: dict[str, Any] = {}
        for key, value in row.values.items():
            if isinstance(value, int | float):
                number = float(value)
                if has_step:
                    self.numbers[key, step] = number, row
                # On its way to the server SwanLab makes NaN of an infinity.
                if not has_step or math.isinf(number):
                    rest[key] = value
            elif isinstance(value, str | list | tuple | dict):
                if has_step:
                    self.texts[key, step] = text_of(value), row
                else:
                    rest[key] = value
            elif value is not None:
                raise TypeError(f"{key}: expected a number, text or list, got {type(value).__name__}")
        if rest:
            self.lines.append((step_text(step, rest), row, list(rest)))
