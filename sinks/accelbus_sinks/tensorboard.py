"""TensorBoard: event files written directly, with neither torch nor TensorFlow.

Every process that delivers opens an event file of its own, since a TensorBoard that has a file open would stumble over one that
shrinks and grows again; after a crash the file before it is cut back to what the cursor knows.
"""

from __future__ import annotations

import json
import os
import socket
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accelbus.durable import write_atomically
from accelbus.media import Media
from accelbus.tracking import GeneralTracker, Row
from accelbus_sinks._append_file import AppendFile, cut_back, set_aside
from accelbus_sinks._output import relied_on
from accelbus_sinks._side_files import SideFiles
from accelbus_sinks._tensorboard_hparams import forget_status, write_hyperparameters, write_status
from accelbus_sinks._tensorboard_late import LatePoints
from accelbus_sinks._tensorboard_media import (
    alert_value,
    audio_value,
    caption_values,
    file_value,
    histogram_value,
    image_value,
    record_value,
    video_value,
)
from accelbus_sinks._tfevents import EventEncoder, text_value, value_record, version_record

SUFFIX: Final = ".accelbus"
"""End of the names of our event files; others in the directory are not touched."""

WRITER_ARGUMENTS: Final = frozenset({"comment", "max_queue", "flush_secs", "filename_suffix"})
"""Arguments of ``SummaryWriter`` that are accepted; only the last has something to act on here."""


class TensorBoardTracker(GeneralTracker):
    """Write event files to ``<logging_dir>/<run_name>``: one event per row, exactly once, durable after ``flush``.

    Args:
        run_name: becomes the directory, and with that the name of the run in TensorBoard.
        logging_dir: made when missing.
        kwargs: those of ``SummaryWriter`` that still mean something, see `WRITER_ARGUMENTS`.

    Raises:
        TypeError: an argument that this writer does not know.
    """

    name = "tensorboard"
    requires_logging_directory = True
    log_keywords = ()

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str], **kwargs: Any) -> None:
        super().__init__()
        if unknown := kwargs.keys() - WRITER_ARGUMENTS:
            raise TypeError(f"TensorBoardTracker: unexpected argument {min(unknown)!r} (known: {', '.join(sorted(WRITER_ARGUMENTS))})")
        self._directory = Path(logging_dir, *_path_parts(run_name))
        self._suffix = str(kwargs.get("filename_suffix", "")).replace("/", "_") + SUFFIX
        self._encoder = EventEncoder()
        self._late = LatePoints()
        self._file: AppendFile | None = None
        self._position: dict[str, Any] = {"file": "", "offset": 0}
        self._lengths: dict[str, int] = {}
        """{event file, of this process and those before it: bytes that are durable}"""
        self._started = 0.0
        self._open = False
        self._step = 0
        self._side: SideFiles | None = None
        self._summary: dict[str, Any] = {}
        self._record = 0

    @property
    def tracker(self) -> Path:
        """The run's directory; there is no ``SummaryWriter``."""
        return self._directory

    @property
    def url(self) -> str:
        return str(self._directory)

    def restore(self, checkpoint: dict[str, Any]) -> None:
        self._position = {"file": checkpoint.get("file", ""), "offset": checkpoint.get("offset", 0)}
        self._lengths = {**checkpoint.get("lengths", {}), self._position["file"]: self._position["offset"]}
        self._started = checkpoint.get("started", 0.0)
        for path in self._event_files():
            if path.name > self._position["file"]:
                set_aside(path, path.name.replace("tfevents", "superseded"))
        if self._position["file"]:
            cut_back(self._directory / self._position["file"], self._position["offset"])
        self._side = SideFiles(self._directory, self.run_info)
        self._side.restore(checkpoint.get("side", {}))
        self._record = checkpoint.get("record", 0)

    def start(self) -> None:
        self._encoder.notice = self.notice
        self._directory.mkdir(parents=True, exist_ok=True)
        forget_status(self._directory)
        self._started = self._started or time.time()
        self._open = True

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._check_open()
        self._directory.mkdir(parents=True, exist_ok=True)
        write_hyperparameters(self._directory, values, self._started)
        # JSON is YAML, and needs no package.
        text = json.dumps(values, indent=2, default=str)
        write_atomically(self._directory / "hparams.yml", text.encode() + b"\n", mode=0o644)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.log_batch([Row(self._step if step is None else step, dict(values), time.time_ns())])

    def log_batch(self, rows: Sequence[Row]) -> None:
        file = self._events()
        file.make_room()
        # Everything is encoded before anything is remembered: a value that cannot be written refuses the batch as a whole.
        records = [self._encoder.encode(row) for row in rows]
        file.append(b"".join([written for row, record in zip(rows, records, strict=True) for written in self._in_order(row, record)]))
        if rows:
            self._step = rows[-1].step

    # Media

    def log_image(self, key: str, media: Media, step: int) -> None:
        self._show(step, media.time_ns, image_value(key, media), *caption_values(key, media))

    def log_histogram(self, key: str, media: Media, step: int) -> None:
        self._show(step, media.time_ns, histogram_value(key, *media.histogram()))

    def log_table(self, key: str, media: Media, step: int) -> None:
        self._show(step, media.time_ns, text_value(key, media.markdown()))

    def log_text(self, key: str, text: str, step: int) -> None:
        self._show(step, time.time_ns(), text_value(key, text))

    def log_audio(self, key: str, media: Media, step: int) -> None:
        if media.format in {"pcm16", "wav"}:
            self._show(step, media.time_ns, audio_value(key, media))
        else:
            self._log_as_file(key, media, step)

    def log_video(self, key: str, media: Media, step: int) -> None:
        if media.format == "frames":
            self._show(step, media.time_ns, video_value(key, media), *caption_values(key, media))
        else:
            self._log_as_file(key, media, step)

    def log_artifact(self, key: str, media: Media, step: int) -> None:
        """A copy below ``artifacts`` or ``files`` of the run's directory, and where it is on the Text tab."""
        self._show(step, media.time_ns, file_value(key, media, self._beside().media(key, media, step)))

    def _log_as_file(self, key: str, media: Media, step: int) -> None:
        self.log_artifact(key, media, step)

    def _show(self, step: int, time_ns: int, *values: bytes) -> None:
        file = self._events()
        file.make_room()
        file.append(value_record(time_ns / 1e9, step, *values))

    # What is said of the run as a whole

    def alert(self, title: str, text: str, level: str) -> None:
        self._beside().alert(title, text, level, self._step)
        self._show(self._step, time.time_ns(), alert_value(title, text, level))

    def summarise(self, values: Mapping[str, Any]) -> None:
        """In ``summary.json`` at once; with the end of the run as the last points of curves ``summary/…``, which the HParams tab shows."""
        self._beside().summary(values)
        self._summary = {f"summary/{key}": value for key, value in values.items()}

    def define_metric(self, pattern: str, *, axis: str = "", summary: str = "", goal: str = "") -> None:
        self._beside().define(pattern, axis=axis, summary=summary, goal=goal)

    def store_run_record(self, facts: Mapping[str, Any]) -> None:
        """On the Text tab, and in ``run_record.json``; not again after a restart."""
        self._beside().run_record(facts)
        value = record_value(facts)
        if zlib.crc32(value) != self._record:
            self._show(0, time.time_ns(), value)
            self._record = zlib.crc32(value)

    def log_console(self, lines: Sequence[str]) -> None:
        self._beside().console(lines)

    # Durability and the end

    def flush(self) -> None:
        self._beside().flush()
        if self._file:
            for row in self._late.release():
                self._file.append(self._encoder.encode(row))
            self._file.flush()
            self._position = {"file": self._file.path.name, "offset": self._file.length}
            self._lengths[self._file.path.name] = self._file.length

    def checkpoint(self) -> dict[str, Any]:
        side = self._side.checkpoint() if self._side else {}
        files = relied_on(self._directory, {**self._lengths, **side}, self.run_info)
        return {
            **self._position, "lengths": self._lengths, "started": self._started, "side": side, "record": self._record, "files": files,
        }  # fmt: skip

    def finish(self, status: str | None = None) -> None:
        self._check_open()
        if self._summary:
            self.log_batch([Row(self._step, self._summary, time.time_ns())])
            self._summary = {}
        self.flush()
        if self._file:
            self._file.close()
            self._file = None
        self._beside().close()
        write_status(self._directory, status or "finished", time.time())
        self._open = False

    def _in_order(self, row: Row, record: bytes) -> Iterator[bytes]:
        """Yield what to write for *row* now; late points in it wait for the next flush."""
        if row.attempt > self._late.attempt:
            yield from map(self._encoder.encode, self._late.begin_attempt(row.attempt))
        now = self._late.pass_on(row)
        yield record if now is row else self._encoder.encode(now)

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError(f"the run in {self._directory} is not open; call start() first")

    def _beside(self) -> SideFiles:
        self._check_open()
        if self._side is None:
            self._side = SideFiles(self._directory, self.run_info)
        return self._side

    def _events(self) -> AppendFile:
        """Open this process's file with its first row, when the hyperparameters, to be read before it, are most likely there."""
        self._check_open()
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = AppendFile(self._directory / self._new_name(), exclusive=True)
            file.append(version_record(time.time()))
            self._file = file
        return self._file

    def _new_name(self) -> str:
        """Readers take files by name, so this one must sort behind all others even if the clock went back."""
        newest = max((int(path.name.split(".")[3]) for path in self._event_files()), default=0)
        host = socket.gethostname().replace("/", "_") or "localhost"
        return f"events.out.tfevents.{max(int(time.time()), newest + 1):010d}.{host}.{os.getpid()}{self._suffix}"

    def _event_files(self) -> list[Path]:
        return sorted(self._directory.glob(f"events.out.tfevents.[0-9]*{SUFFIX}"))


def _path_parts(run_name: str) -> list[str]:
    """Return *run_name* as directories below the logging directory, whatever it contains."""
    return [part for part in run_name.replace("\0", "").split("/") if part not in {"", ".", ".."}]
