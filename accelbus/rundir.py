"""The run directory: what lies where, and the run's own record.

::

    <dir>/<run_id>/
        run.json                 who the run is and what it wants: `RunRecord`
        status.json              last snapshot of the bus process
        journal/<writer>/*.seg   one directory per writer, see `accelbus.journal.segments`
        blobs/                   values too large for an event
        sinks/<sink>/            cursor, owner record, dead letters, the tracker's caches
        <sink>/                  what a tracker that needs a logging directory writes
        logs/                    stderr of the bus process and of the sink workers
        traces/                  profiles that have no other place
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from accelbus.config import SinkOptions
from accelbus.digest import digest
from accelbus.durable import write_atomically
from accelbus.errors import ConfigurationError, CorruptDataError, RunNotFoundError

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


_LIVE_WRITERS: Final = ("bus-", "spill-")
"""How journal writers are called that belong to a run that goes on."""


class Origin(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a tracker comes from that is no built-in one and has no entry point."""

    path: str = ""
    """``module:Class``; empty for one that no other process could import: it is handed over in memory, or stays where it is."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    """Arguments of the instance that the user made."""
    is_instance: bool = False
    """The arguments are all there are; else the class is built as Accelerate builds it."""
    state: dict[str, Any] | None = None
    """Attributes of an instance whose arguments nobody noted."""


class RunRecord(msgspec.Struct, kw_only=True):
    """``run.json``: written by rank 0 at ``init``, read by the bus process, by ``sync`` and by the command line."""

    run_id: str
    project: str
    name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    sinks: tuple[str, ...] = ()
    """Names of the trackers, as resolved at ``init``."""
    init_kwargs: dict[str, dict[str, Any]] = {}
    log_kwargs: dict[str, dict[str, Any]] = {}
    sink_options: dict[str, SinkOptions] = {}
    inline: tuple[str, ...] = ()
    """Trackers that the main rank runs itself."""
    trackers: dict[str, Origin] = {}
    """{sink: where its class comes from}, of those given as class or instance."""
    reduce: dict[str, Any] | None = None
    require: tuple[str, ...] = ()
    """Trackers without which the run must not start."""
    config_from: str | None = None
    """Tracker that has the last word on the configuration."""
    has_config: bool = False
    """The rank that wrote this has given a configuration, which is in the journal or on its way there."""
    mode: str = "online"
    durability: str = "process"
    world_size: int = 1
    created_ns: int = 0
    directory: str = ""
    """Where ``init`` was called: what the user gave trackers as a relative path is meant from here. Empty when that is not known."""
    accelbus: str = ""
    """Version that wrote this."""
    settings_of_rank: int = 0
    search_path: tuple[str, ...] = ()
    """Where the trainer finds modules; only for trackers given as ``module:Class``."""


class RunDir:
    """Names of everything in one run directory. Creating one touches no file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def record_path(self) -> Path:
        return self.path / "run.json"

    @property
    def status_path(self) -> Path:
        return self.path / "status.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def blobs(self) -> Path:
        return self.path / "blobs"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def node_name(self) -> str:
        """Name of a node's private directory of the run, which has its socket and its locks; the same for every name of the run's
        directory: ranks may come to it through links.
        """
        return digest(os.fsencode(os.path.realpath(self.path)), 8).hex()

    def sink(self, name: str) -> Path:
        """Directory of what delivery keeps for one sink."""
        return self.path / "sinks" / name

    def tracker_output(self, name: str) -> Path:
        """Logging directory handed to a tracker that needs one."""
        return self.path / name

    def create(self) -> None:
        """Make the directories, private to the user.

        Raises:
            ConfigurationError: the directory cannot be made or written.
        """
        try:
            for directory in (self.path, self.journal, self.path / "sinks", self.logs):
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"run directory {str(self.path)!r} cannot be written ({error.strerror or error}); pass dir= or set ACCELBUS_DIR to a directory that can be"
            ) from error

    def read_record(self) -> RunRecord | None:
        """Return ``run.json``, None when there is none yet.

        Raises:
            CorruptDataError: the file is there and cannot be read.
        """
        try:
            data = self.record_path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=RunRecord)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CorruptDataError("run_record", f"{self.record_path} is not a run record ({error})") from error

    def write_record(self, record: RunRecord) -> None:
        """Replace ``run.json``."""
        write_atomically(self.record_path, msgspec.json.format(msgspec.json.encode(record)))


def check_run_id(run_id: str) -> str:
    """Return *run_id* if it is a safe directory name.

    Raises:
        ConfigurationError: it is not.
    """
    if not RUN_ID.fullmatch(run_id):
        raise ConfigurationError(f"run_id={run_id!r}: expected 1 to 128 letters, digits, '.', '_' or '-', starting with a letter or digit")
    return run_id


def slug(text: str) -> str:
    """Return *text* as the readable part of a run id."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]+", "-", plain).strip("-").lower()[:40] or "run"


def find_run(reference: str, state_dir: Path | str = "runs") -> RunDir:
    """Return the run directory for an id below *state_dir*, or for a path.

    Raises:
        RunNotFoundError: naming the places looked at and the runs that are there, or why its directory cannot be read.
    """
    for candidate in (Path(state_dir) / reference, Path(reference)):
        try:
            if _is_run(candidate):
                return RunDir(candidate)
        except OSError as error:
            raise RunNotFoundError(f"run {reference!r}: {str(candidate)!r} cannot be read ({error.strerror or error})") from error
    known = list_runs(state_dir)
    there = f"runs there: {', '.join(run.run_id for run in known[:5])}" if known else "there are no runs there"
    raise RunNotFoundError(f"no run {reference!r} in {str(state_dir)!r}, and no run directory of that path; {there}")


def list_runs(state_dir: Path | str = "runs", *, on_unreadable: Callable[[Path, OSError], None] | None = None) -> list[RunDir]:
    """Return the run directories below *state_dir*, the one that something happened in last first.

    Args:
        state_dir: it need not exist.
        on_unreadable: called for what cannot be looked into, another user's run for example; it is left out.
    """
    ages: dict[RunDir, float] = {}
    for entry in sorted(_entries(Path(state_dir))):
        try:
            if _is_run(entry):
                ages[RunDir(entry)] = _last_activity(entry)
        except OSError as error:
            if on_unreadable is not None:
                on_unreadable(entry, error)
    return sorted(ages, key=lambda run: ages[run], reverse=True)


def _entries(root: Path) -> list[Path]:
    try:
        return list(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_run(path: Path) -> bool:
    """Whether *path* has a journal.

    Raises:
        OSError: it may have one, and nobody lets us see.
    """
    try:
        is_run = stat.S_ISDIR((path / "journal").stat().st_mode)
        if is_run:
            # Mode 0711, for example: it is there, and its content is not for us.
            with os.scandir(path / "journal"):
                pass
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return is_run


def _last_activity(path: Path) -> float:
    """Return when the run in *path* was started or went on: by its record and what ranks and bus processes wrote. Looking at a run,
    delivering or salvaging it changes everything else, and makes it no newer.
    """
    writers = [writer for writer in (path / "journal").iterdir() if writer.name.startswith(_LIVE_WRITERS)]
    newest = [max(writer.glob("*.seg"), default=writer) for writer in writers]
    return max((file.stat().st_mtime for file in (path / "run.json", *newest) if file.exists()), default=0.0)
