"""The part of SwanLab behind its queue: what is handed over is stored when the call returns, under its own time, or raises.

``swanlab.Run.log`` stamps values with the time of the call and queues them for a thread that swallows every error, the disk being full
included; there is no way to wait for it, and the file it writes is flushed when the run ends. Here that thread is stopped, and its
work is done in the calling one. These are internals of SwanLab 0.10; `attach` does without them where they are not as they were.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from accelbus_sinks._swanlab_public import PublicCore
from accelbus_sinks._swanlab_refusals import Refusals

logger = logging.getLogger(__name__)

LARGEST_STEP: Final = 2**48

_LAST_SECOND: Final = 253_402_300_799
_UPLOAD_PATIENCE: Final = 60.0
"""Seconds without any progress of an upload after which waiting for it is given up."""
_UPLOAD_POLL: Final = 0.05


class Stored(NamedTuple):
    """One number in a run file."""

    name: str
    step: int
    value: float
    seconds: float


def attach(run: Any) -> SwanLabCore | PublicCore:
    """Return the core of *run*, whose background thread then rests; its public calls if this SwanLab is built differently."""
    try:
        return SwanLabCore(run)
    except (AttributeError, ImportError) as error:
        logger.warning("this SwanLab is built differently from 0.10 (%s): values lose their time, and a crash delivers the run anew", error)
        return PublicCore(run)


class SwanLabCore:
    """One run.

    Args:
        run: ``swanlab.Run``, just opened.

    Raises:
        AttributeError, ImportError: this SwanLab has not what is needed here.
    """

    durable_after: Final = "flush"
    can_continue: Final = True

    def __init__(self, run: Any) -> None:
        from google.protobuf.timestamp_pb2 import Timestamp  # type: ignore[import-untyped]  # noqa: PLC0415  only the worker has SwanLab
        from swanlab.proto.swanlab.metric.column.v1 import column_pb2  # noqa: PLC0415  see above
        from swanlab.proto.swanlab.metric.data.v1 import data_pb2  # noqa: PLC0415  see above
        from swanlab.proto.swanlab.terminal.v1 import log_pb2  # noqa: PLC0415  see above

        self._mode: str = run.mode
        self._timestamp: Any = Timestamp
        self._data: Any = data_pb2
        self._scalar_type: Any = column_pb2.ColumnType.COLUMN_TYPE_SCALAR
        self._logs: Any = log_pb2
        self._core = run._core  # noqa: SLF001  here and below: what this module is about
        self._queue: queue.Queue[Any] = run._components.emitter.queue  # noqa: SLF001
        self._consumer = run._components.consumer  # noqa: SLF001
        self._callbacks = run._ctx.callbacker  # noqa: SLF001
        self._run_file = Path(self._core._ctx.run_file) if self._stores else Path()  # noqa: SLF001
        self._run_dir = Path(run._ctx.run_dir)  # noqa: SLF001
        self._known: set[str] = set()
        self._failed = ""
        for kind in ("scalars", "media", "logs", "columns"):
            getattr(self._core, f"_upsert_{kind}_when_{self._mode}")
        _ = (self._consumer._builder.build_scalar_or_media, self._consumer._resolver.resolve_concrete)  # noqa: SLF001
        if self._stores:
            _ = (self._core._store.ensure_flushed, self._core._store._fp, self._core._store._index, self._core._metrics.get)  # noqa: SLF001
        self._refusals = Refusals(getattr(self._core, "_transport", None))
        self._consumer.stop()
        self._consumer.join()
        self.settle()

    @property
    def _stores(self) -> bool:
        return self._mode != "disabled"

    @property
    def length(self) -> int:
        """Bytes of the run file, those that wait for a `flush` too."""
        return int(self._core._store._index) if self._stores else 0  # noqa: SLF001

    def is_used(self, name: str, step: int) -> bool:
        """Whether SwanLab would skip a value of *name* at *step*, which it does in silence."""
        metric = self._core._metrics.get(name) if self._stores else None  # noqa: SLF001
        return metric is not None and (step <= metric.min_step or step in metric.steps)

    def scalar(self, name: str, step: int, value: float, time_ns: int) -> Any:
        """Return a record for `store_scalars`."""
        time_of = self._time(time_ns)
        number = self._data.ScalarValue(number=value)
        return self._data.ScalarRecord(key=name, step=step, timestamp=time_of, type=self._scalar_type, value=number)

    def store_scalars(self, records: Sequence[Any]) -> None:
        """Store *records*, in order."""
        if not records:
            return
        self._define({record.key for record in records} - self._known)
        self._call("scalars", list(records))
        self._callbacks.on_scalar_flush(list(records))

    def store_media(self, name: str, step: int, value: Any, time_ns: int) -> bool:
        """Store *value*, one of ``swanlab``'s media; return whether SwanLab takes it: it may be too large."""
        time_of = self._time(time_ns)
        record, _ = self._consumer._builder.build_scalar_or_media(value, name, time_of, step)  # noqa: SLF001
        if record is None:
            return False
        self._call("media", [record])
        self._callbacks.on_media_flush([record])
        return True

    def store_lines(self, lines: Sequence[str], time_ns: int, *, is_error: bool = False) -> None:
        """Store lines of the console."""
        level = self._logs.LogLevel.LOG_LEVEL_ERROR if is_error else self._logs.LogLevel.LOG_LEVEL_INFO
        time_of = self._time(time_ns)
        self._call("logs", [self._logs.LogRecord(line=line, level=level, timestamp=time_of) for line in lines])

    def _time(self, time_ns: int) -> Any:
        seconds, nanos = divmod(time_ns, 1_000_000_000)
        # Protocol buffers refuse to print years of more than four digits, which ends SwanLab's upload.
        return self._timestamp(seconds=min(max(seconds, 0), _LAST_SECOND), nanos=nanos)

    def settle(self) -> None:
        """Do what SwanLab's public calls have queued: configuration, files, definitions."""
        while True:
            try:
                event = self._queue.get_nowait()
            except queue.Empty:
                break
            self._consumer._handle_event(event)  # noqa: SLF001
        self._consumer._flush()  # noqa: SLF001
        if not self._consumer._batch_empty:  # noqa: SLF001
            self._failed = "something was not stored"
            raise OSError(f"SwanLab: {self._failed}; see its debug log")

    def refused(self) -> list[tuple[Any, str]]:
        """Return (record, reason) of what the server has refused for good since the last call; `flush` takes that for done."""
        return self._refusals.take()

    def flush(self) -> None:
        """Make everything stored durable; online, that is on the server, or refused by it.

        Raises:
            OSError: it is not, or something before could not be stored: then this run must be opened again.
            TimeoutError: the server takes nothing.
        """
        self._check()
        if not self._stores:
            return
        store = self._core._store  # noqa: SLF001
        store.ensure_flushed()
        os.fsync(store._fp.fileno())  # noqa: SLF001
        if self._mode == "online":
            self._await_upload()

    def continue_file(self, previous: Path, *, rebuild: bool) -> None:
        """Go on with the run file *previous* as if this process had written it.

        Args:
            previous: is moved to where SwanLab has its file now.
            rebuild: learn from it which steps are used. Online the server has said that.
        """
        store, metrics = self._core._store, self._core._metrics  # noqa: SLF001
        end = 0
        lines = numbers = 0
        for record, position in read_records(previous):
            end = position
            numbers = max(numbers, record.num)
            kind = record.WhichOneof("record_type")
            if kind == "log":
                lines = max(lines, record.log.epoch)
            elif rebuild and kind in {"scalar", "media"}:
                self._learn(metrics, kind, getattr(record, kind))
            elif rebuild and kind == "column" and metrics.get(record.column.column_key) is None:
                self._learn_column(metrics, record.column)
        store._fp.close()  # noqa: SLF001
        os.truncate(previous, end)
        os.replace(previous, self._run_file)
        store._fp = self._run_file.open("ab")  # noqa: SLF001
        store._index = end  # noqa: SLF001
        self._core._counter.reset(max(numbers, 0))  # noqa: SLF001
        if rebuild:
            self._core._epoch.reset(lines)  # noqa: SLF001

    def _learn(self, metrics: Any, kind: str, data: Any) -> None:
        from swanlab.sdk.internal.core_python.pkg import builder  # noqa: PLC0415  only the worker has SwanLab

        metric = metrics.get(data.key)
        if metric is None:
            metric = self._learn_column(metrics, builder.build_auto_column(self._core._ctx, data))  # noqa: SLF001
        metric.steps.add(data.step)
        if kind == "scalar":
            metric.update(data)

    def _learn_column(self, metrics: Any, column: Any) -> Any:
        self._known.add(column.column_key)
        if column.column_type == self._scalar_type:
            return metrics.define_scalar(key=column.column_key, column=column)
        return metrics.define_media(key=column.column_key, column=column, path=self._run_dir / "media")

    def _define(self, names: set[str]) -> None:
        """Tell SwanLab how new *names* are to be shown, where `define_metric` said something about them."""
        self._known |= names
        if not self._consumer._resolver.has_rules:  # noqa: SLF001
            return
        columns = []
        for name in sorted(names):
            self._consumer._resolver.resolve_concrete(name, "SCALAR")  # noqa: SLF001
            column = self._consumer._resolver.materialize_column(name, "SCALAR", self._scalar_type)  # noqa: SLF001
            if column is not None:
                columns.append(column)
        if columns:
            self._call("columns", columns)

    def _call(self, kind: str, records: list[Any]) -> None:
        """Call the core below the place where it swallows errors."""
        self._check()
        try:
            getattr(self._core, f"_upsert_{kind}_when_{self._mode}")(records)
        except OSError as error:
            # SwanLab counts the values as stored, and its file may end in the middle of a record: only a new process can go on.
            self._failed = f"{type(error).__name__}: {error}"
            raise

    def _check(self) -> None:
        if self._failed:
            raise OSError(f"the run file could not be written ({self._failed}) and must be opened again by a new process")

    def _await_upload(self) -> None:
        before, since = -1, time.monotonic()
        while True:
            stats = self._core.get_operation_stats().stats
            if stats.uploaded_records >= stats.total_records:
                return
            if stats.uploaded_records != before:
                before, since = stats.uploaded_records, time.monotonic()
            if time.monotonic() - since > _UPLOAD_PATIENCE:
                raise TimeoutError(
                    f"SwanLab has taken nothing for {_UPLOAD_PATIENCE:.0f} s; {stats.total_records - stats.uploaded_records} records wait"
                )
            time.sleep(_UPLOAD_POLL)


def read_records(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield (record, position behind it) of a run file, up to its end or the first damage.

    The start record is among them, a finish record and what follows it is not.
    """
    from swanlab.exceptions import DataStoreError  # noqa: PLC0415  only the worker has SwanLab
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record  # noqa: PLC0415  see above
    from swanlab.sdk.internal.core_python.store import DataStoreReader  # noqa: PLC0415  see above

    reader: Any = DataStoreReader()
    reader.open(path)
    try:
        while (data := reader.scan()) is not None:
            record: Any = Record()
            record.ParseFromString(data)
            if record.HasField("finish"):
                return
            yield record, reader._index  # noqa: SLF001  it has no other word for where it is
    except (DataStoreError, AssertionError, ValueError) as error:
        logger.warning("%s is damaged behind byte %d (%s)", path, reader._index, error)  # noqa: SLF001  see above
    finally:
        reader.close()


def read_points(path: Path, position: int) -> dict[tuple[str, int], float | None]:
    """Return {(name, step): number, None for media} of what *path* has behind *position*."""
    points: dict[tuple[str, int], float | None] = {}
    for record, end in read_records(path):
        if end <= position:
            continue
        if record.HasField("scalar"):
            points[record.scalar.key, record.scalar.step] = record.scalar.value.number
        elif record.HasField("media"):
            points[record.media.key, record.media.step] = None
    return points
