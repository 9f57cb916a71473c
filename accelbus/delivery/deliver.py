"""Deliver what a run still owes its trackers, from this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio

from accelbus.config import Tuning, from_environment
from accelbus.delivery.status import SinkStatus
from accelbus.delivery.supervisor import Supervisor
from accelbus.delivery.tender import Notice
from accelbus.errors import ConfigurationError, CorruptDataError
from accelbus.rundir import RunDir, RunRecord

Progress = Callable[[Mapping[str, SinkStatus]], None]
PROGRESS_INTERVAL = 0.5


def sync(
    run_dir: RunDir,
    sinks: Sequence[str] | None = None,
    *,
    follow: bool = False,
    take_over: bool = False,
    timeout: float | None = None,
    tuning: Tuning | None = None,
    on_notice: Notice | None = None,
    on_progress: Progress | None = None,
) -> dict[str, SinkStatus]:
    """Deliver what *run_dir* owes to *sinks* and return how each of them stands. Safe to repeat, and to interrupt.

    Args:
        run_dir: the run, alive or dead, from any host.
        sinks: trackers; also ones the run did not have. Not given: the run's own.
        follow: stay until the run is closed, instead of delivering what there is.
        take_over: replace another process that delivers to a sink now.
        timeout: longest stay in seconds; not given: as long as it takes.
        tuning: from the environment when not given.
        on_notice: called with (level, text, sink) for lines a user should see.
        on_progress: called about twice a second with the states.

    Raises:
        OwnershipError: another process delivers to one of the sinks; names it. Nothing was started.
        ConfigurationError: the run has no sinks and none were named.
        CorruptDataError: the run's record cannot be read, and no sinks were named. Named ones are delivered to with their defaults.
    """
    record = _record_of(run_dir, is_needed=sinks is None)
    names = tuple(sinks) if sinks is not None else tuple(sink for sink in record.sinks if _can_be_built(record, sink))
    if not names and record.sinks:
        raise ConfigurationError(
            f"the trackers of run {run_dir.run_id!r} ({', '.join(record.sinks)}) were defined in its script and cannot be built without it; "
            f"name another one"
        )
    if not names:
        raise ConfigurationError(f"run {run_dir.run_id!r} has no tracker to deliver to; name one")
    return anyio.run(
        lambda: _sync(
            run_dir,
            record,
            names,
            follow=follow,
            take_over=take_over,
            timeout=timeout,
            tuning=tuning or from_environment(Tuning),
            on_notice=on_notice,
            on_progress=on_progress,
        )
    )


def _record_of(run_dir: RunDir, *, is_needed: bool) -> RunRecord:
    try:
        record = run_dir.read_record()
    except CorruptDataError:
        if is_needed:
            raise
        record = None
    return record or RunRecord(run_id=run_dir.run_id, project=run_dir.run_id)


def _can_be_built(record: RunRecord, sink: str) -> bool:
    """Whether *sink* can be built outside the process that defined it."""
    origin = record.trackers.get(sink)
    return origin is None or bool(origin.path)


async def _sync(
    run_dir: RunDir,
    record: RunRecord,
    sinks: Sequence[str],
    *,
    follow: bool,
    take_over: bool,
    timeout: float | None,
    tuning: Tuning,
    on_notice: Notice | None,
    on_progress: Progress | None,
) -> dict[str, SinkStatus]:
    supervisor = Supervisor(run_dir, record, tuning=tuning, sinks=sinks, purpose="sync", once=not follow, stays=False, on_notice=on_notice)
    await supervisor.claim(take_over=take_over)
    with anyio.move_on_after(timeout) as within:
        async with anyio.create_task_group() as tasks:
            if on_progress is not None:
                tasks.start_soon(_report, supervisor, on_progress)
            await supervisor.run()
            tasks.cancel_scope.cancel()
    if within.cancelled_caught:
        # The workers were killed where they stood; their cursors say how far they had come.
        pass
    return supervisor.states()


async def _report(supervisor: Supervisor, on_progress: Progress) -> None:
    while True:
        on_progress(supervisor.states())
        await anyio.sleep(PROGRESS_INTERVAL)


__all__ = ["sync"]
