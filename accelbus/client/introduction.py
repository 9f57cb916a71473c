"""What a rank says about itself: to the bus process, in its spool, in its first event and in ``run.json``."""

from __future__ import annotations

import os
import sys
import uuid
from time import time_ns

import msgspec

from accelbus import __version__, control, host
from accelbus.client.finishing import may_restart
from accelbus.client.identity import Identity, launcher_process
from accelbus.client.trackers import Trackers
from accelbus.config import Settings
from accelbus.errors import NotInitializedError
from accelbus.events import TRAINER, RunStart
from accelbus.rundir import RunDir, RunRecord


class Introduction:
    """One producer of one run; a disabled run has none."""

    def __init__(self, run_dir: RunDir, settings: Settings, identity: Identity | None, trackers: Trackers) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.identity = identity
        self.trackers = trackers
        self.producer = uuid.uuid4().bytes
        self._created_ns = time_ns()
        self._started_by: tuple[int, int] | None = None
        self._environ: dict[str, str] = {}
        # Once, and for all trackers: the script may go elsewhere.
        self._directory = host.working_directory(os.environ)

    def look_around(self) -> None:
        """Note what started this process, and its environment, before training changes it."""
        self._started_by = launcher_process(os.environ)
        # A shell's word on it is no longer true when the script has moved.
        self._environ = {**os.environ, "PWD": self._directory}

    @property
    def rank(self) -> int:
        return 0 if self.identity is None else self.identity.rank

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0 of the trainers, whose settings rule."""
        return self.rank == 0 and self.settings.role == TRAINER

    @property
    def is_alone(self) -> bool:
        """Whether the run has no other rank."""
        return self.identity is not None and self.identity.world_size == 1

    def hello(self, base_seq: int, last_seq: int, *, spool: str | None = None, spool_kind: str = "") -> control.Hello:
        """Return what the bus process needs to know; the spool keeps it too.

        Args:
            base_seq: number of the first event that may still come.
            last_seq: of the last event there is.
            spool: its path.
            spool_kind: what it lies on.
        """
        identity = self.identity
        if identity is None or self.settings.mode == "disabled":
            raise NotInitializedError("a disabled run has no producer")
        return control.Hello(
            producer=self.producer,
            run_id=self.run_dir.run_id,
            run_dir=str(self.run_dir.path),
            rank=identity.rank,
            world_size=identity.world_size,
            local_rank=identity.local_rank,
            local_world_size=identity.local_world_size,
            host=identity.host,
            pid=os.getpid(),
            role=self.settings.role,
            launch=identity.launch,
            launcher=identity.launcher,
            base_seq=base_seq,
            last_seq=last_seq,
            spool=spool,
            spool_kind=spool_kind,
            attempt=self.settings.attempt,
            main=self.is_main,
            record=msgspec.to_builtins(self.record()),
            may_restart=may_restart(os.environ),
            started_by=self._started_by,
        )

    def start_event(self) -> RunStart:
        """Return the producer's first event."""
        hello = self.hello(1, 0)
        return RunStart(
            time_ns(),
            hello.run_id,
            hello.rank,
            hello.world_size,
            hello.local_rank,
            hello.host,
            hello.pid,
            hello.role,
            hello.launch,
            hello.attempt,
            hello.launcher,
        )

    def handover(self, *, limit_bytes: int) -> control.Handover | None:
        """Return what the main rank's trackers need and nobody may store; None in other ranks, and for a bus process that is not ours
        alone.

        Args:
            limit_bytes: for the environment. A larger one stays here: the bus process has that of the rank that started it.
        """
        endpoint = self.settings.endpoint
        if not self.is_main or (endpoint is not None and not endpoint.startswith("ipc://")):
            return None
        environ = {name: value for name, value in self._environ.items() if _is_text(name) and _is_text(value)}
        if sum(map(len, environ.values())) > limit_bytes:
            environ = {}
        return control.Handover(environ, dict(self.trackers.carried))

    def record(self) -> RunRecord:
        """Return ``run.json`` as this rank would write it."""
        settings = self.settings
        record = RunRecord(
            run_id=self.run_dir.run_id,
            project=settings.project,
            name=settings.name,
            group=settings.group,
            tags=settings.tags,
            notes=settings.notes,
            sinks=self.trackers.sinks,
            init_kwargs=settings.init_kwargs,
            log_kwargs=settings.log_kwargs,
            sink_options=settings.sink_options,
            inline=self.trackers.inline,
            trackers=dict(self.trackers.origins),
            reduce=settings.reduce,
            require=settings.require,
            config_from=settings.config_from,
            has_config=settings.config is not None,
            mode=settings.mode,
            durability=settings.durability,
            world_size=1 if self.identity is None else self.identity.world_size,
            created_ns=self._created_ns,
            directory=self._directory,
            accelbus=__version__,
            settings_of_rank=self.rank,
            search_path=tuple(os.path.abspath(path) for path in sys.path) if self._needs_search_path else (),
        )
        return self.trackers.spread(record)

    @property
    def _needs_search_path(self) -> bool:
        return bool(self.trackers.origins) or any(":" in sink for sink in self.trackers.sinks)


def _is_text(text: str) -> bool:
    """Whether it can be encoded: a variable of bytes that are no UTF-8 has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


__all__ = ["Introduction"]
