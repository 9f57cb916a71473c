"""Comet, online or offline.

Comet has no way to make values durable offline before the experiment ends: only then its archive is written. After a crash everything
is therefore delivered again, into a new archive, and what the process before left is removed. Online, ``flush`` waits until the server
has everything.

Its calls log errors instead of raising them, cut names and texts, and write the step as a parameter beside each metric. Metrics are
handed over as the messages that those calls make, checked before; that also keeps the time of the event.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from accelbus.tracking import Row
from accelbus.values import flatten
from accelbus_sinks._comet_media import MEDIA, CometMedia
from accelbus_sinks._comet_metrics import epoch_of, metrics_of, sender, sink_name
from accelbus_sinks._comet_start import Archives, alone, experiment_key, forget, is_complete, is_online, start_arguments
from accelbus_sinks._comet_texts import Texts
from accelbus_sinks._config import flat_config, shorten, spelled_out, text_of
from accelbus_sinks._keys import KeyMap
from accelbus_sinks._pace import Pace
from accelbus_sinks._places import from_job_directory, job_directory

logger = logging.getLogger(__name__)

LONGEST_NAME: Final = 100
"""Characters; Comet cuts longer names, and two of them become one (``MAXIMAL_KEY_LENGTH``)."""
LONGEST_TEXT: Final = 1000
"""The same for texts (``MAXIMAL_VALUE_LENGTH``)."""
VALUES_PER_MINUTE: Final = 12_000
"""What the server takes of metrics; more is throttled and may be missing (Comet's page "Rate limits and performance")."""
PARAMETERS_PER_MINUTE: Final = 10_000
"""The same of parameters."""
PARAMETERS_AT_ONCE: Final = 500
PARAMETERS_PER_CALL: Final = 5_000
"""Half a minute's, so that no call is taken for a hanging one."""
PARAMETERS_PER_FLUSH: Final = 1_000
"""Of what is left then."""
BURST: Final = 2_000
"""Values sent at once: so few that a call never waits for as long as a hanging one."""
VALUES_PER_METRIC: Final = 15_000
"""What Comet keeps of one metric; beyond, it keeps a sample (same page, and ``comet upload``)."""
TEMPORARY: Final = "temporary"
"""Where Comet gathers what it will archive, below the tracker's state."""
QUEUED: Final = 20_000
"""Messages that may wait in Comet's queue, which has no bound of its own."""
FLUSH_TIMEOUT: Final = 45
"""Seconds for the server to have everything; then it is an error, and tried again."""
QUEUE_TIMEOUT: Final = 0.1
"""Seconds between two looks of Comet's thread at whether the experiment has ended, while there is nothing to write."""
LONGEST_WAIT: Final = 30.0
"""Seconds that one call waits for Comet's queue."""


_NOTHING: Final = object()


class CometMLTracker(CometMedia):
    """Log to Comet through ``comet_ml.start``.

    Args:
        run_name: becomes the project, unless *kwargs* name another; COMET_PROJECT_NAME does not, as with Accelerate.
        kwargs: arguments of ``comet_ml.start`` (``online=False`` needs neither network nor key) and fields of its
            ``ExperimentConfig``, which may also come as a mapping ``experiment_config``. Whatever Comet captures by itself is off
            unless switched on here.
    """

    name = "comet_ml"
    requires_logging_directory = False
    log_keywords = ("epoch",)
    durable_after: Literal["call", "flush", "finish"] = "finish"
    """Offline: an archive comes into being at the end, and nothing else can be read or uploaded. Online ``flush``."""

    @classmethod
    def environment(cls, state_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG003  nothing is cached
        # Comet reports errors of ours to a service of its own, which needs a network.
        wanted = {"COMET_ERROR_TRACKING_ENABLE": "false"}
        if (here := job_directory(environ)) and (here / ".comet.config").is_file():
            wanted["COMET_CONFIG"] = str(here / ".comet.config")
        return {name: value for name, value in wanted.items() if name not in environ}

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self._project = run_name
        self._kwargs = kwargs
        self._online = False
        self._archives = Archives(Path(), None, ())
        self._key = self._archive = ""
        self._checkpoint: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        self._pace = Pace(VALUES_PER_MINUTE / 60, BURST)
        self._parameter_pace = Pace(PARAMETERS_PER_MINUTE / 60, BURST)
        self._parameters: dict[str, Any] = {}
        self._sent: dict[str, Any] = {}
        """Those of them that Comet has."""
        self._step = 0
        self._facts: dict[str, object] = {}

    @property
    def tracker(self) -> Any:
        """The ``comet_ml`` experiment."""
        return self._experiment

    @property
    def url(self) -> str | None:
        if self._online:
            return self._experiment.url if self._experiment else None
        # The name ends in letters of chance; after a crash in others.
        return str(self._archives.directory / f"{self._key}*.zip")

    # Opening

    def restore(self, checkpoint: dict[str, Any]) -> None:
        self._checkpoint = checkpoint

    def start(self) -> None:
        import comet_ml  # noqa: PLC0415  not before `environment` is in force

        state_dir = self._state_dir()
        self.keys = KeyMap(state_dir / "keys.json" if state_dir else None, sink_name, longest=LONGEST_NAME)
        self._texts = Texts(state_dir, self._checkpoint.get("texts", {}))
        if state_dir:
            forget(state_dir / TEMPORARY)
            forget(state_dir / MEDIA)
        arguments, fields = start_arguments(self._kwargs, self.run_info, self._project)
        key = arguments.get("experiment_key") or comet_ml.get_config()["comet.experiment_key"] or experiment_key(self.run_info)
        self._key = arguments["experiment_key"] = key
        self._online = is_online(arguments)
        self.durable_after = "flush" if self._online else "finish"
        if not self._online:
            fields["offline_directory"] = str(self._prepare_archive(arguments, fields))
        self.said.listen()
        known = {path.name for path in self._archives.directory.glob(f"{key}*.zip")}
        with alone(state_dir / TEMPORARY if state_dir else None):
            experiment = comet_ml.start(**arguments, experiment_config=comet_ml.ExperimentConfig(**fields))
        if not experiment.alive:
            raise ConnectionError(f"Comet did not take the experiment{self.said.why()}")
        if not self._online:
            made = {path.name for path in self._archives.directory.glob(f"{key}*.zip")} - known
            self._archive = min(made, default=f"{key}.zip")
            self._archives.add(self._archive)
        self._experiment = experiment
        self._send = sender(experiment)
        if hasattr(experiment.streamer, "queue_timeout"):
            # Comet's thread sees so late that the experiment has ended; a second by default.
            experiment.streamer.queue_timeout = QUEUE_TIMEOUT
        self._describe()

    def _prepare_archive(self, arguments: dict[str, Any], fields: Mapping[str, Any]) -> Path:
        """Return where the archive goes, and clear it of what a killed process left."""
        import comet_ml  # noqa: PLC0415  see `start`

        configured = comet_ml.get_config()["comet.offline_directory"]
        if given := fields.get("offline_directory"):
            directory = from_job_directory(given, os.environ, self.run_info)
        elif configured != comet_ml.config.DEFAULT_OFFLINE_DATA_DIRECTORY:
            directory = from_job_directory(configured, os.environ)
        else:
            directory = self.run_info.output_dir.absolute()
        directory.mkdir(parents=True, exist_ok=True)
        self._archives = Archives(directory, self._state_dir(), self._checkpoint.get("archives", ()))
        self._archives.remove_unfinished(arguments["experiment_key"])
        if self._archives.complete:
            # With "create" the archive of the earlier attempt would be written over.
            arguments["mode"] = "get_or_create"
        return directory

    def _describe(self) -> None:
        info = self.run_info
        for name, value in (("run id", info.run_id), ("group", info.group), ("notes", info.notes)):
            if value:
                self._other(name, value)

    # Values

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._opened()
        flat = flat_config(values, longest=LONGEST_TEXT)
        self._parameters = {self.keys[key]: spelled_out(value) for key, value in flat.values.items()}
        self._send_parameters(PARAMETERS_PER_CALL)
        if flat.shortened or len(flat.values) > BURST or flat.values.keys() != {self.keys[key] for key in flat.values}:
            self._document("config.json", values)

    def _send_parameters(self, most: int | None) -> None:
        """Send those that Comet does not have, at the server's rate; with *most* only so many, the rest with the next flushes."""
        experiment = self._opened()
        names = [name for name, value in self._parameters.items() if not _is_same(self._sent.get(name, _NOTHING), value)]
        for start in range(0, len(names), PARAMETERS_AT_ONCE):
            chunk = names[start : start + PARAMETERS_AT_ONCE]
            if self._online and most is not None:
                if start >= most:
                    return
                self._parameter_pace.wait(len(chunk))
            for name in chunk:
                experiment.log_parameter(name, self._parameters[name])
                self._sent[name] = self._parameters[name]

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(self._step if step is None else step, values, time.time_ns(), log_kwargs=kwargs)])

    def log_batch(self, rows: Sequence[Row]) -> None:
        """Add *rows*; ``epoch`` in the values or among the arguments of ``log`` is Comet's second axis."""
        experiment = self._opened()
        # Everything is checked before anything is sent: a value that cannot be stored refuses the batch as a whole.
        metrics = [(row, list(metrics_of(row))) for row in rows]
        texts = [(row, key, text_of(value)) for row in rows for key, value in row.values.items() if isinstance(value, str | list | tuple)]
        self.keys.names(key for _, numbers in metrics for key, _ in numbers)
        self._texts.make_room()
        for row, numbers in metrics:
            self._make_room(experiment, len(numbers))
            epoch = epoch_of({**row.values, **row.log_kwargs})
            for key, value in numbers:
                self._send(self.keys[key], value, row.step, epoch, row.time_ns // 1_000_000)
            self._count(key for key, _ in numbers)
        for row, key, text in texts:
            self._text(key, text, row.step, row.time_ns)
        if rows:
            self._step = rows[-1].step

    def _make_room(self, experiment: Any, count: int) -> None:
        """Wait for the server's rate, or for Comet's queue, as long as a call may take."""
        if self._online and self._pace.wait(count):
            logger.warning("Comet takes %d values a minute: rows wait for it", VALUES_PER_MINUTE)
        queue = getattr(getattr(experiment, "streamer", None), "messages", None)
        deadline = time.monotonic() + LONGEST_WAIT
        while queue is not None and queue.qsize() > QUEUED and time.monotonic() < deadline:
            time.sleep(0.01)

    def _count(self, keys: Iterator[str]) -> None:
        for key in keys:
            self._counts[key] += 1
            if self._counts[key] == VALUES_PER_METRIC + 1:
                how = "" if self._online else "; set COMET_OFFLINE_SAMPLING_SIZE for `comet upload` to send more"
                self.notice(f"{key!r} has more than {VALUES_PER_METRIC} values, of which Comet keeps a sample{how}")

    def _text(self, key: str, text: str, step: int, time_ns: int) -> None:
        """Comet has no text metric: the newest is an Other, the first ones are on the Text tab, all of them in a file."""
        if self._texts.add(key, text, step, time_ns):
            self._experiment.log_text(text, step=step, metadata={"key": key})

    # What is said of the run as a whole

    def summarise(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            self._other(key, value)

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        said = {"axis": axis, "summary": summary, "goal": goal}
        self._other(f"metric {pattern}", ", ".join(f"{name}={value}" for name, value in said.items() if value) or "shown")

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        """System info, packages on their own tab, everything as a file; what has been said before is not repeated."""
        experiment = self._opened()
        packages = facts.get("packages")
        for name, version in packages.items() if isinstance(packages, Mapping) else ():
            if self._is_news(f"package {name}", version):
                experiment.log_dependency(name, version)
        for key, value in flatten({name: value for name, value in facts.items() if value is not packages}).items():
            if self._is_news(key, value):
                experiment.log_system_info(shorten(key, LONGEST_NAME), shorten(text_of(value), LONGEST_TEXT))
        self._document("run_record.json", facts)

    def _is_news(self, name: str, value: object) -> bool:
        is_known = name in self._facts and self._facts[name] == value
        self._facts[name] = value
        return not is_known

    def log_console(self, lines: Sequence[str]) -> None:
        from comet_ml.messages import StandardOutputMessage  # noqa: PLC0415  see `start`

        output = "".join(line if line.endswith("\n") else line + "\n" for line in lines)
        self._opened()._enqueue_message(StandardOutputMessage.create(context=None, output=output, stderr=False))  # noqa: SLF001  see `sender`

    def alert(self, title: str, text: str, level: str) -> None:
        """On the Text tab; online Comet also sends a mail."""
        self._opened().send_notification(title, level, {"text": text})
        self._text(f"alert/{level}", f"{title}: {text}" if text else title, self._step, time.time_ns())

    def log_text(self, key: str, text: str, step: int) -> None:
        self._opened()
        self._text(key, text, step, time.time_ns())

    def _other(self, key: str, value: Any) -> None:
        value = spelled_out(value)
        if not isinstance(value, bool | int | float | None):
            value = shorten(text_of(value), LONGEST_TEXT)
        self._opened().log_other(self.keys[key], value)

    def _document(self, name: str, values: Mapping[str, Any]) -> None:
        data = json.dumps(spelled_out(values), indent=2, default=str)
        self._checked(self._opened().log_asset_data(data, name=name, overwrite=True), name)

    # Durability and the end

    def flush(self) -> None:
        """Online: wait until the server has everything. Offline there is nothing to be done before the end."""
        experiment = self._opened()
        self._texts.flush()
        if self._online:
            self._send_parameters(PARAMETERS_PER_FLUSH)
            self._send_newest_texts()
            self._deliver(experiment)

    def _deliver(self, experiment: Any) -> None:
        """Comet's ``flush`` is content when there is no connection: it has kept what it could not send, in a temporary file."""
        timeout = {"timeout": FLUSH_TIMEOUT} if "timeout" in inspect.signature(experiment.flush).parameters else {}
        is_connected = getattr(experiment.streamer, "has_connection_to_server", lambda: True)
        if not (is_connected() and experiment.flush(**timeout) and is_connected()):
            raise ConnectionError(f"Comet could not send everything{self.said.why()}; it goes on trying")

    def checkpoint(self) -> dict[str, Any]:
        return {"archives": self._archives.complete, "texts": self._texts.checkpoint()}

    def finish(self, status: str | None = None) -> None:
        experiment = self._opened()
        status = status or "finished"
        self._texts.flush()
        # Beyond their rate, if it must be: later there is no time.
        self._send_parameters(None)
        self._send_newest_texts()
        if texts := self._texts.content():
            self._checked(experiment.log_asset_data(texts, name="texts.jsonl", overwrite=True), "texts.jsonl")
        self._other("status", status)
        if self._online:
            self._deliver(experiment)
        mark = "" if status == "finished" else f"the run ended as {status}"
        if mark:
            # What Comet does about an exception in a script: the experiment is shown as crashed.
            experiment._report_experiment_error(mark, has_crashed=True)  # noqa: SLF001  there is no public way
        experiment.end()
        if not self._online:
            self._check_archive(experiment, mark)
        self._experiment = None
        self.said.leave()
        self._texts.close()
        if state_dir := self._state_dir():
            forget(state_dir / MEDIA)

    def _send_newest_texts(self) -> None:
        for key, text in self._texts.newest():
            self._other(key, text)

    def _check_archive(self, experiment: Any, mark: str) -> None:
        """Comet only logs what goes wrong while it writes; what is not in the archive must be delivered again."""
        trouble = getattr(experiment, "customer_error_message", None) or ""
        path = Path(experiment.offline_directory) / self._archive
        if trouble not in {"", mark}:
            raise OSError(f"Comet could not write everything to {str(path)!r}: {trouble}")
        if not is_complete(path):
            raise OSError(f"Comet's archive {str(path)!r} is not complete")
        self._archives.complete.append(self._archive)


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other
