"""The run's directory, which somebody may delete while the run goes on: what can be written there again is."""

from __future__ import annotations

import logging
import os
import stat
import sys

import anyio
import anyio.to_thread

from accelbus import host
from accelbus.aggregator.ledger import Ledger
from accelbus.aggregator.lifetime import Lifetime
from accelbus.aggregator.roster import Roster
from accelbus.aggregator.settings import Notify
from accelbus.config import Tuning
from accelbus.errors import ConfigurationError
from accelbus.rundir import RunDir, RunRecord

_log = logging.getLogger(__name__)


class Home:
    """Looks for ``run.json`` at the probe interval; without it nobody can deliver the run, nor tell what it is.

    Args:
        run_dir: of the run.
        ledger: is told again who takes part.
        roster: who that is.
        lifetime: whose directory is deleted after its end is left alone.
        tuning: the interval.
        notify: gets a line for the user.
    """

    def __init__(self, run_dir: RunDir, ledger: Ledger, roster: Roster, lifetime: Lifetime, *, tuning: Tuning, notify: Notify) -> None:
        self._run_dir = run_dir
        self._ledger = ledger
        self._roster = roster
        self._lifetime = lifetime
        self._tuning = tuning
        self._notify = notify
        self._has_failed = False

    async def keep(self, record: RunRecord) -> None:
        """Look until cancelled; *record* is what ``run.json`` says."""
        while True:
            await anyio.sleep(self._tuning.probe_interval)
            if self._lifetime.is_closed or await anyio.to_thread.run_sync(self._run_dir.record_path.exists):
                continue
            try:
                await anyio.to_thread.run_sync(self._write, record)
            except (OSError, ConfigurationError) as error:
                if not self._has_failed:
                    _log.error("%s is gone and cannot be written again: %s", self._run_dir.record_path, error)
                self._has_failed = True
            else:
                self._has_failed = False
                await self._introduce()
                self._say()

    def _write(self, record: RunRecord) -> None:
        self._run_dir.create()
        self._run_dir.write_record(record)
        _reopen_log(self._run_dir)

    async def _introduce(self) -> None:
        """The journal has forgotten who takes part; what still comes would be of nobody."""
        for member in self._roster.members.values():
            self._ledger.record(self._roster.joined_record(member))
            self._ledger.record(self._roster.state_record(member))
        self._roster.forget_saved()
        await self._ledger.append([])

    def _say(self) -> None:
        text = (
            f"the run's directory {self._run_dir.path} was deleted, or much of it, while the run goes on: what was logged before is lost "
            "where no tracker outside of it has it; the run goes on there"
        )
        _log.error("%s", text)
        self._notify("error", text, "")


def _reopen_log(run_dir: RunDir) -> None:
    """Standard error is the log that the rank has opened, and that is gone with the directory."""
    found = os.fstat(sys.stderr.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
        log = os.open(run_dir.logs / f"bus-{host.name()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.close(log)


__all__ = ["Home"]
