"""ClearML: one task per run, in its own process, with every automatic capture off.

Values go as events of ClearML's API, which keep the time of their row and overwrite each other by (title, series, iteration); offline
they are lines of the session that ``clearml``'s ``Task.import_offline_session`` reads.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accelbus.durable import write_atomically
from accelbus.tracking import Row
from accelbus_sinks import _clearml_events as events, _clearml_task as tasks
from accelbus_sinks._append_file import cut_back, set_aside
from accelbus_sinks._clearml_media import ClearMLMedia
from accelbus_sinks._clearml_names import Curve, Curves
from accelbus_sinks._config import flat_config, spelled_out, text_of
from accelbus_sinks._run_names import name_of
from accelbus_sinks._step_text import step_text

logger = logging.getLogger(__name__)

SECTION: Final = "General"
"""Of the hyperparameters, and name of the configuration object: what ``Task.connect`` and ``connect_configuration`` take by default."""
SINGLE_VALUE: Final = -(2**31)
"""Iteration of ``Logger.report_single_value``."""

_LONGEST_PARAMETER: Final = 16 * 1024
_LONGEST_DIFF: Final = 500_000
"""Characters; beyond it ClearML itself makes an artifact of a diff."""
_LARGEST_CONFIGURATION: Final = 4 * 1024 * 1024
"""Characters; a task is one document of at most 16 MB in the server's database."""


class ClearMLTracker(ClearMLMedia):
    """Record a run as ClearML task.

    Project and task are named by *kwargs*, else by CLEARML_PROJECT and CLEARML_TASK; else the project is *run_name*, and the task has
    the name that the user gave the run, or *run_name*.

    Args:
        run_name: project, and task if the user gave the run no name.
        kwargs: of ``Task.init``. Those that turn a capture on are obeyed; it would see the delivering process.
    """

    name = "clearml"
    requires_logging_directory = False
    log_keywords = ()

    def __init__(self, run_name: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        self._run_name = run_name or ""
        self._arguments = kwargs
        self._task: Any = None
        self._is_ours = False
        self._events: events.Events | None = None
        self._offline: events.OfflineEvents | None = None
        self._offset = 0
        self._step = self._first_step = self._non_finite = 0
        self._definitions: dict[str, dict[str, str]] = {}
        self.config: dict[str, Any] = {}
        """The configuration as the task has it: where a ClearML agent runs the task, with what was changed in the web interface."""

    @classmethod
    def environment(cls, state_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
        found = {"CLEARML_SUPPRESS_UPDATE_MESSAGE": "1"}
        if not environ.keys() & {"CLEARML_CACHE_DIR", "TRAINS_CACHE_DIR"}:
            found["CLEARML_CACHE_DIR"] = str(state_dir / "clearml")
        return found

    @property
    def tracker(self) -> Any:
        """The ``clearml.Task``."""
        return self._task

    @property
    def url(self) -> str | None:
        """Its page, or the folder of its offline session."""
        if self._task is None:
            return None
        folder = self._task.get_offline_mode_folder()
        return str(folder or self._task.get_output_log_web_page())

    def restore(self, checkpoint: dict[str, Any]) -> None:
        known = tasks.read_identity(self._identity)
        if not (known.task_id and known.cache_dir):
            return
        path = Path(known.cache_dir, "offline", known.task_id, events.METRICS_FILE)
        if "offset" in checkpoint:
            cut_back(path, checkpoint["offset"])
        elif path.exists():
            set_aside(path, "metrics.superseded.jsonl")

    def start(self) -> None:
        if self._events is not None:
            return
        info = self.run_info
        if self._task is None:
            arguments = {
                "project_name": tasks.name_of(os.environ.get("CLEARML_PROJECT") or self._run_name or "accelbus"),
                "task_name": tasks.name_of(os.environ.get("CLEARML_TASK") or name_of(info, self._run_name) or "run"),
                **self._arguments,
            }
            self._task, self._is_ours = tasks.open_task(self._identity, info, arguments)
        task = self._task
        self._first_step = tasks.read_identity(self._identity).first_step
        self._curves = Curves(info.state_dir / "keys.json")
        self._scalars = events.ScalarEncoder(task.id)
        tags = [*info.tags, *([f"group:{info.group}"] if info.group else [])]
        if tags:
            task.add_tags(tags)
        if info.notes:
            task.set_comment(info.notes)
        if task.is_offline():
            self._offline = events.OfflineEvents(Path(str(task.get_offline_mode_folder())))
            self._offset = self._offline.length
        self._events = self._offline or events.OnlineEvents(task.session)
        self._keep()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store *values* twice: flat as hyperparameters, and as they are as configuration object.

        Where a ClearML agent runs the task, the first call takes over what was changed in the web interface: see `config`.
        """
        task = self._opened()
        if not self.config and not task.running_locally():
            values = overridden(values, *_edited(task, values))
        self.config = values
        flat = flat_config(values, longest=_LONGEST_PARAMETER)
        others = {name: value for name, value in (task.get_parameters() or {}).items() if not name.startswith(f"{SECTION}/")}
        task.set_parameters({**others, **{f"{SECTION}/{name}": value for name, value in flat.values.items()}})
        self._store_object(SECTION, values, as_file=bool(flat.shortened))
        self._keep()

    def resolved_config(self) -> dict[str, Any]:
        """Return `config`; of a run that was given none what an agent's task says, empty anywhere else."""
        task = self._opened()
        if not self.config and not task.running_locally():
            self.config = own_config(task)
        return self.config

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(self._step if step is None else step, values, time.time_ns())])

    def log_batch(self, rows: Sequence[Row]) -> None:
        self._opened()
        self._send([event for row in rows for event in self._encoded(row)])
        if rows:
            self._step = rows[-1].step

    def log_console(self, lines: Sequence[str]) -> None:
        now = events.now_ms()
        self._send([events.text_event(self._opened().id, line, now) for line in lines])

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Numbers become single values, the rest user properties of the task."""
        task = self._opened()
        numbers = {key: value for key, value in values.items() if isinstance(value, int | float) and math.isfinite(value)}
        now = events.now_ms()
        self._send([self._scalars.encode(Curve("Summary", key), SINGLE_VALUE, now, _number(value)) for key, value in numbers.items()])
        if texts := [{"name": key, "value": text_of(value)} for key, value in values.items() if key not in numbers]:
            task.set_user_properties(*texts)
            self._keep()

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        """Keep it as configuration object ``Metric definitions``: ClearML has nothing that acts on it."""
        self._definitions[pattern] = {name: text for name, text in (("axis", axis), ("summary", summary), ("goal", goal)) if text}
        self._store_object("Metric definitions", self._definitions)
        self._keep()

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        """Put git and packages where ClearML has a place for them, and everything into the configuration object ``Run record``."""
        task = self._opened()
        git = facts.get("git") or {}
        patch = facts.get("patch") or ""
        packages = [f"{name}=={version}" for name, version in (facts.get("packages") or {}).items()]
        script = {
            "repository": git.get("remote"),
            "branch": git.get("branch"),
            "version_num": git.get("commit"),
            "diff": patch if len(patch) <= _LONGEST_DIFF else "",
            "entry_point": " ".join(map(str, facts.get("argv") or [])),
            "working_dir": facts.get("cwd"),
            "requirements": {"pip": "\n".join(packages)} if packages else None,
        }
        task.update_task({"script": {name: value for name, value in script.items() if value}})
        self._store_object("Run record", {name: value for name, value in facts.items() if name != "patch"})
        if len(patch) > _LONGEST_DIFF:
            path = self.run_info.state_dir / "uncommitted.patch"
            write_atomically(path, patch.encode("utf-8", "backslashreplace"))
            self._upload("uncommitted.patch", path, {})
        self._keep()

    def flush(self) -> None:
        self._opened()
        if self._offline is None:
            return
        self._offline.flush()
        self._offset = self._offline.length

    def checkpoint(self) -> dict[str, Any]:
        return {"offset": self._offset}

    def finish(self, status: str | None = None) -> None:
        task = self._opened()
        self.flush()
        if self._offline is not None:
            self._offline.close()
        if self._non_finite:
            logger.warning("%d values were not finite", self._non_finite)
        if self._is_ours:
            tasks.close_task(task, status)
        self._task = self._events = self._offline = None

    def _encoded(self, row: Row) -> Iterator[bytes]:
        """Yield the events of *row*: numbers, and one line for everything else.

        A number that is not finite goes there, too: the server has no such numbers, and ClearML's own reporter would write 0.
        """
        encode, curves, step = self._scalars.encode, self._curves, int(row.step) + self._first_step
        time_ms = row.time_ns // 1_000_000
        rest: dict[str, Any] = {}
        for key, value in row.values.items():
            if isinstance(value, int | float) and (type(value) is int or math.isfinite(value)):
                yield encode(curves[key], step, time_ms, _number(value))
            elif value is not None:
                rest[key] = value
                if isinstance(value, float):
                    self._count_non_finite(key, step)
        if rest:
            yield events.text_event(self._opened().id, step_text(step, rest), time_ms)

    def _count_non_finite(self, key: str, step: int) -> None:
        self._non_finite += 1
        if self._non_finite == 1:
            self.notice(f"{key} is not finite at step {step}: ClearML has no such numbers, they are lines of the console")

    def _store_object(self, name: str, values: Mapping[str, Any], *, as_file: bool = False) -> None:
        """Store *values* as configuration object, and as artifact where that is too large."""
        text = json.dumps(spelled_out(values), ensure_ascii=False, indent=2, default=str)
        is_small = len(text) <= _LARGEST_CONFIGURATION
        if is_small:
            self._opened().set_configuration_object(name, config_text=text, config_type="json")
        if as_file or not is_small:
            path = self.run_info.state_dir / f"{name}.json"
            write_atomically(path, text.encode("utf-8", "backslashreplace"))
            self._upload(name, path, {})

    def _send(self, encoded: Sequence[bytes]) -> None:
        if self._events is None:
            raise RuntimeError("the task is not open; call start() first")
        if encoded:
            self._events.send(encoded)

    @property
    def _is_offline(self) -> bool:
        return self._offline is not None

    def _opened(self) -> Any:
        if self._events is None:
            raise RuntimeError("the task is not open; call start() first")
        return self._task

    @property
    def _identity(self) -> Path:
        return self.run_info.state_dir / "clearml.json"

    def _keep(self) -> None:
        """Keep a copy of what ClearML writes in place, where a crash could tear it."""
        if self._offline is not None:
            tasks.keep_copy_of_task(self._identity, Path(str(self._task.get_offline_mode_folder())))


def overridden(values: Mapping[str, Any], *edits: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* with what differs in *edits*; later ones win."""
    result = dict(values)
    for edit in edits:
        for key, value in edit.items():
            own = values.get(key)
            if isinstance(own, Mapping) and isinstance(value, Mapping):
                result[key] = overridden(own, *[other[key] for other in edits if isinstance(other.get(key), Mapping)])
            elif value != own:
                result[key] = value
    return result


def _edited(task: Any, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a task that an agent runs says of *values*: its configuration object, its hyperparameters."""
    yield _configuration_object(task)
    yield json.loads(json.dumps(task.connect(copy.deepcopy(values), name=SECTION)))  # it changes what it is given


def own_config(task: Any) -> dict[str, Any]:
    """Return what *task* says by itself: its configuration object, and over it its hyperparameters, as who edits them sees them."""
    whole = _configuration_object(task)
    prefix = f"{SECTION}/"
    kept = flat_config(whole, longest=_LONGEST_PARAMETER).values
    for name, value in (task.get_parameters(cast=True) or {}).items():
        key = name.removeprefix(prefix)
        # One that only says what the object says, in the table's words, must not cost the object's type.
        if name.startswith(prefix) and not (key in kept and _shown(kept[key]) == _shown(value)):
            _put(whole, key.split("/"), value)
    return whole


def _configuration_object(task: Any) -> dict[str, Any]:
    text = task.get_configuration_object(SECTION)
    try:
        found = json.loads(text) if text else {}
    except ValueError:  # somebody changed it to HOCON
        found = task.get_configuration_object_as_dict(SECTION)
    return dict(found or {})


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _put(config: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """Put *value* where it belongs in a nested *config*; a value in its way makes room."""
    *parents, last = parts
    for part in parents:
        inner = config.get(part)
        config[part] = config = dict(inner) if isinstance(inner, Mapping) else {}
    config[last] = value


def _number(value: float) -> float:
    """Return *value* as plain int or float: a bool is no number in JSON, and a subclass may print as it likes."""
    return value if type(value) is float else int(value) if isinstance(value, int) else float(value)
