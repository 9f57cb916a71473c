"""Two ways into Trackio: straight into its local store, or through the run object's queue.

Trackio's ``log`` puts rows into a queue; a thread writes them half a second later, and drops a whole batch with one warning when that
fails. It also stamps them itself. Its store takes batches at once, with times, and raises. Only a run on a Space or another server has
to go through the queue.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import orjson
from trackio import fragments, utils
from trackio.remote_client import RemoteClient
from trackio.sqlite_storage import SQLiteStorage

BUFFERED_ROWS: Final = 2_000
"""Beyond this rows are written before the next flush."""
_QUEUES: Final = ("_queued_logs", "_queued_uploads", "_queued_alerts", "_sending_batch", "_has_local_buffer")
"""What Trackio still has to do. The last: a batch could not be sent, is kept on this machine, and sent when the server takes rows again."""
_QUEUE_SECONDS: Final = 30.0
_LOCK_SECONDS: Final = 30.0
_LATEST: Final = 253402300799.0
"""The last second that Python's dates know, and Trackio's readers with them."""
_POLL_SECONDS: Final = 0.02


class Entry(NamedTuple):
    """A row for Trackio: JSON values under its own names."""

    step: int
    time_ns: int
    values: dict[str, Any]
    number: int
    """Of the rows of the run; the same when a row is delivered again."""

    @property
    def log_id(self) -> str:
        """Trackio takes a row once per id, so that a batch may be written again whose writing failed half-way."""
        content = msgspec.msgpack.encode([self.step, self.values])
        return f"{self.number}-{hashlib.blake2b(content, digest_size=12).hexdigest()}"

    @property
    def timestamp(self) -> str:
        return datetime.fromtimestamp(min(max(self.time_ns / 1e9, 0.0), _LATEST), UTC).isoformat()


class Writer(Protocol):
    """What the tracker needs of either way."""

    def write(self, entries: Sequence[Entry]) -> None:
        """Take *entries*; they are durable after `flush`."""

    def store_config(self, config: Mapping[str, Any]) -> None:
        """Replace the run's configuration."""

    def probe(self) -> None:
        """Raises ConnectionError when Trackio's server takes nothing."""

    def flush(self) -> None:
        """Raises OSError when something is not in Trackio's store."""

    def position(self) -> int:
        """Return what `cut` needs to forget later rows."""

    def cut(self, position: int) -> None:
        """Remove the rows written after *position*."""


def can_write_directly(run: Any) -> bool:
    """Whether *run* is kept on this machine, by a Trackio whose store we know."""
    if getattr(run, "_space_id", None) or getattr(run, "_server_base_url", None):
        return False
    parameters = inspect.signature(SQLiteStorage.bulk_log).parameters
    return {"project", "run", "run_id", "metrics_list", "steps", "timestamps", "log_ids", "config"} <= parameters.keys()


class StoreWriter:
    """Straight into the local store: a SQLite database, or JSON lines where the file system is no place for one."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._as_lines = utils.get_storage_mode() == "jsonl"
        # Trackio takes the lines of all writers by their names, so that this one must come behind those before it.
        self._fragments = fragments.FragmentWriter(f"{time.time_ns():020d}-{os.getpid()}") if self._as_lines else None
        self._buffer: list[Entry] = []
        self._config: dict[str, Any] | None = None
        """Not stored yet."""
        self._last_step = 0

    def probe(self) -> None:
        """The first flush raises."""

    def write(self, entries: Sequence[Entry]) -> None:
        if len(self._buffer) > BUFFERED_ROWS:
            self._write_buffer()
        self._buffer.extend(entries)

    def store_config(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)

    def flush(self) -> None:
        if self._buffer:
            self._write_buffer()
        _wait_for_queue(self._run)  # alerts
        if self._config is None:
            return
        if self._fragments:
            # It travels with a row only.
            self._write_lines([Entry(self._last_step, time.time_ns(), {}, -1)])
        else:
            self._write_config(self._config)
        self._config = None

    def position(self) -> int:
        return 0 if self._as_lines else self._newest()

    def cut(self, position: int) -> None:
        # Lines stay: a row that comes again has its id, and is taken once.
        if not self._as_lines and self._path.exists():
            with self._connected() as connection:
                connection.execute("DELETE FROM metrics WHERE run_id = ? AND id > ?", (self._run.id, position))

    def _write_buffer(self) -> None:
        entries = self._buffer
        if self._fragments:
            self._write_lines(entries)
        else:
            before = self._newest()
            SQLiteStorage.bulk_log(
                project=self._run.project,
                run=self._run.name,
                run_id=self._run.id,
                metrics_list=[entry.values for entry in entries],
                steps=[entry.step for entry in entries],
                timestamps=[entry.timestamp for entry in entries],
                log_ids=[self._id(entry) for entry in entries],
            )
            self._check(entries, before)
        self._last_step = entries[-1].step
        self._buffer = []

    def _check(self, entries: Sequence[Entry], before: int) -> None:
        """Trackio inserts with OR IGNORE: what it did not take would be missed by nobody."""
        with self._connected() as connection:
            found = connection.execute("SELECT log_id FROM metrics WHERE run_id = ? AND id > ?", (self._run.id, before))
            missing = {self._id(entry) for entry in entries} - {row[0] for row in found}
            # A batch that was written half-way before has older rows.
            missing = {
                log_id for log_id in missing if not connection.execute("SELECT 1 FROM metrics WHERE log_id = ?", (log_id,)).fetchone()
            }
        if missing:
            raise OSError(f"Trackio has not taken {len(missing)} of {len(entries)} rows of {self._run.name!r}")

    def _write_lines(self, entries: Sequence[Entry]) -> None:
        assert self._fragments is not None
        records = [
            fragments.metric_record(
                {
                    "project": self._run.project, "run": self._run.name, "run_id": self._run.id, "metrics": entry.values, "step": entry.step,
                    "timestamp": entry.timestamp, "config": None, "log_id": self._id(entry),
                }
            )
            for entry in entries
        ]  # fmt: skip
        if self._config is not None:
            records[-1]["config"] = utils.serialize_values(self._config)
        self._fragments.write_local(records)
        self._config = None

    def _id(self, entry: Entry) -> str:
        return f"{self._run.id}-{entry.log_id}"

    def _write_config(self, config: Mapping[str, Any]) -> None:
        SQLiteStorage.init_db(self._run.project)
        with self._connected() as connection:
            connection.execute(
                "INSERT INTO configs (run_id, run_name, config, created_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (run_id) DO UPDATE SET config = excluded.config, run_name = excluded.run_name",
                (self._run.id, self._run.name, orjson.dumps(utils.serialize_values(config)), datetime.now(UTC).isoformat()),
            )

    def _newest(self) -> int:
        if not self._path.exists():
            return 0
        with self._connected() as connection:
            return int(connection.execute("SELECT MAX(id) FROM metrics").fetchone()[0] or 0)

    @property
    def _path(self) -> Path:
        return Path(SQLiteStorage.get_project_db_path(self._run.project))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection to the project's database, for one transaction."""
        connection = sqlite3.connect(self._path, timeout=_LOCK_SECONDS)
        try:
            with connection:
                yield connection
        finally:
            connection.close()


class QueueWriter:
    """Through the run object: Trackio sends, keeps what it cannot send and tries again, and stamps rows with its own time."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._lost = ""
        keep = run._write_records_to_local_inbox  # noqa: SLF001  here and below: what is kept, and lost, is said nowhere else

        def note_lines(records: list[Any], warning_key: str) -> None:
            # Of lines that could not be sent Trackio makes a local run, and never sends them.
            self._lost = self._lost or f"{len(records)} lines were kept locally"
            keep(records, warning_key)

        run._write_records_to_local_inbox = note_lines  # noqa: SLF001  see above

    def write(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._run.log(entry.values, step=entry.step)

    def store_config(self, config: Mapping[str, Any]) -> None:
        self._run.config.update(config)
        self._run._config_logged = False  # noqa: SLF001  Trackio sends a configuration once, and has no call for a later one

    def flush(self) -> None:
        try:
            _wait_for_queue(self._run)
        except TimeoutError:
            self.probe()  # says why
            raise
        lost = self._lost or next((name for name in self._run._warned_failures if name.startswith("persist-")), "")  # noqa: SLF001
        if lost:
            raise OSError(f"Trackio could not send everything ({lost}), and goes on without it: a new process sends it again")

    def probe(self) -> None:
        """Ask whether the server takes rows from this user, by sending it none.

        Raises:
            ConnectionError: it does not, or does not answer. Trackio itself would say nothing, and keep rows on this machine.
        """
        run = self._run
        if run._is_local:  # noqa: SLF001  see above
            return
        server, token = run._server_base_url, None  # noqa: SLF001  see above
        if server is None:
            token = run._hf_token_for_remote()  # noqa: SLF001  see above
        try:
            client = RemoteClient(server or run.url, hf_token=token, write_token=run._write_token, verbose=False)  # noqa: SLF001  see above
            client.predict(api_name="/bulk_log", logs=[], hf_token=token)
        except Exception as error:  # what the client raises is httpx's, gradio's and its own
            raise ConnectionError(f"Trackio's server at {server or run.url} takes no rows: {error}") from error

    def position(self) -> int:
        return 0

    def cut(self, position: int) -> None:
        """Forget what an earlier process could not send, which comes again. A server keeps what it has."""
        pending = SQLiteStorage.get_pending_logs(self._run.project) or {"logs": [], "ids": []}
        ours = [number for log, number in zip(pending["logs"], pending["ids"], strict=True) if log.get("run_id") == self._run.id]
        if ours:
            # Marked as sent they would become rows of a local run.
            with (
                contextlib.closing(sqlite3.connect(SQLiteStorage.get_project_db_path(self._run.project), timeout=_LOCK_SECONDS)) as store,
                store,
            ):
                store.executemany("DELETE FROM metrics WHERE id = ?", [(number,) for number in ours])


def _wait_for_queue(run: Any) -> None:
    """Wait until Trackio's own thread has nothing left to send or write."""
    began = time.monotonic()
    while any(getattr(run, name, None) for name in _QUEUES):
        if time.monotonic() - began > _QUEUE_SECONDS:
            raise TimeoutError(f"Trackio has not sent its queue for {_QUEUE_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


__all__ = ["Entry", "QueueWriter", "StoreWriter", "Writer", "can_write_directly"]
