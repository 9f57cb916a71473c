"""The settings that rule a run: rank 0's, or after a grace the lowest rank's. Every rank offers its own; differences are said."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import anyio
import msgspec

from accelbus.aggregator.faults import Faults
from accelbus.config import Tuning
from accelbus.errors import CorruptDataError, FrameError
from accelbus.events import TRAINER
from accelbus.rundir import RunDir, RunRecord

_log = logging.getLogger(__name__)
_OWN_TO_A_RANK = frozenset({"created_ns", "has_config", "search_path", "settings_of_rank", "world_size"})
_POLL_INTERVAL = 0.05
_RANK_0: tuple[bool, int] = (False, 0)

Notify: TypeAlias = Callable[[str, str, str], None]
"""Called with level, text and sink."""


class RulingSettings:
    """``run.json`` of one run and what ranks offer.

    Args:
        run_dir: of the run.
        tuning: how long rank 0's are waited for.
        faults: counts offers that cannot be used.
        notify: gets a line for each setting in which ranks differ.
    """

    def __init__(self, run_dir: RunDir, *, tuning: Tuning, faults: Faults, notify: Notify) -> None:
        self._run_dir = run_dir
        self._tuning = tuning
        self._faults = faults
        self._notify = notify
        self._since = time.monotonic()
        self._ruling: RunRecord | None = None
        self._offered: dict[tuple[bool, int], RunRecord] = {}
        """{(is no trainer, rank): settings}; the lowest rules where rank 0's are missing."""
        self._differing: set[str] = set()
        """Settings in which some rank differs from those that rule, and was told."""
        self._complained_of = ""

    def offer(self, role: str, rank: int, record: dict[str, Any]) -> None:
        """Take what a rank would write into ``run.json``."""
        who = (role != TRAINER, rank)
        try:
            self._offered[who] = msgspec.convert(record, RunRecord)
        except msgspec.ValidationError as error:
            self._faults.drop(FrameError("record", f"rank {rank} sent settings that cannot be used: {error}"))
        self._compare(who)

    async def wait(self, is_closed: Callable[[], bool]) -> RunRecord:
        """Return the settings that rule, as soon as that is known; a run that *is_closed* waits for nobody any more."""
        while (ruling := self._find(is_closed=is_closed())) is None:
            await anyio.sleep(_POLL_INTERVAL)
        self._ruling = ruling
        for who in self._offered:
            self._compare(who)
        return ruling

    def _find(self, *, is_closed: bool) -> RunRecord | None:
        try:
            record = self._run_dir.read_record()
        except (CorruptDataError, OSError) as error:
            record = self._replace(error)
        waited = time.monotonic() - self._since
        if record is None and self._offered and (waited > self._tuning.settings_grace or is_closed):
            who = min(self._offered)
            _log.warning("rank 0's settings did not come within %.0f s: those of rank %d are used", waited, who[1])
            record = self._offered[who]
            self._write(record)
        return record

    def _replace(self, error: CorruptDataError | OSError) -> RunRecord | None:
        """``run.json`` cannot be read: use what rank 0 says over the wire."""
        if self._complained_of != str(error):
            self._complained_of = str(error)
            _log.warning("%s; waiting for what rank 0 says", error)
        record = self._offered.get(_RANK_0)
        if record is not None:
            self._write(record)
        return record

    def _write(self, record: RunRecord) -> None:
        try:
            self._run_dir.write_record(record)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._run_dir.record_path, error)

    def _compare(self, who: tuple[bool, int]) -> None:
        """Say once which settings of a rank differ from those that rule."""
        ruling, offered, rank = self._ruling, self._offered.get(who), who[1]
        if ruling is None or offered is None:
            return
        for name in set(RunRecord.__struct_fields__) - _OWN_TO_A_RANK - self._differing:
            if getattr(offered, name) != getattr(ruling, name):
                self._differing.add(name)
                what = f"rank {rank} was started with {name}={getattr(offered, name)!r}"
                self._notify("warning", f"{what}; rank {ruling.settings_of_rank}'s {getattr(ruling, name)!r} is used", "")


__all__ = ["Notify", "RulingSettings"]
