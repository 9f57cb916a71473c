"""All sinks of a run, each with a worker process of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

import anyio

from accelbus.config import Tuning
from accelbus.control import Handover
from accelbus.delivery.status import Resolved, SinkStatus
from accelbus.delivery.tender import MakeWorker, Notice, Tender
from accelbus.rundir import RunDir, RunRecord
from accelbus.tracking import name_and_rank

logger = logging.getLogger(__name__)


class Supervisor:
    """Start one worker per sink, keep them running and within their deadlines, and say how they are.

    A tracker that blocks, leaks, crashes or hangs concerns nobody but its own worker, which is killed and started again. Ending
    `run`, by `stop` or by cancellation, ends the workers and everything they started; so does the end of this process.

    Args:
        run_dir: of the run.
        record: what the run wants.
        tuning: intervals and deadlines.
        environ: instead of ``os.environ``.
        sinks: instead of the record's.
        purpose: what this process is, for others that want a sink: ``bus`` or ``sync``.
        once: deliver what is there and return, instead of following until the run is closed.
        stays: keep running when all sinks are finished, until `stop`; the run may be resumed.
        on_notice: called with (level, text, sink) for a line the user should see: addresses, first failures, the breaker.
        make_worker: instead of a process per sink.
    """

    def __init__(
        self,
        run_dir: RunDir,
        record: RunRecord,
        *,
        tuning: Tuning,
        environ: Mapping[str, str] | None = None,
        sinks: Sequence[str] | None = None,
        purpose: str = "bus",
        once: bool = False,
        stays: bool = True,
        on_notice: Notice | None = None,
        make_worker: MakeWorker | None = None,
    ) -> None:
        self._tuning = tuning
        self._drains = 0
        self._tenders = {
            sink: Tender(
                run_dir,
                record,
                sink,
                tuning=tuning,
                environ=os.environ if environ is None else environ,
                purpose=purpose,
                once=once,
                stays=stays,
                on_notice=on_notice or _log_notice,
                make_worker=make_worker,
            )
            for sink in (record.sinks if sinks is None else sinks)
        }

    def take_over_from(self, handover: Handover) -> None:
        """Give workers that are started from now on what the main rank has handed over."""
        for sink, tender in self._tenders.items():
            tender.environ = handover.environ or tender.environ
            # All ranks' trackers of one name travel once.
            tender.carried = handover.trackers.get(sink) or handover.trackers.get(name_and_rank(sink)[0], tender.carried)

    async def claim(self, *, take_over: bool = False) -> None:
        """Become the owner of all sinks before `run`, which otherwise waits for each of them.

        Raises:
            OwnershipError: somebody else owns one; nothing was started.
        """
        for tender in self._tenders.values():
            await tender.claim(take_over=take_over)

    async def run(self) -> None:
        """Deliver. Returns when every sink is done, with ``stays`` only after `stop`."""
        async with anyio.create_task_group() as tasks:
            for tender in self._tenders.values():
                tasks.start_soon(tender.run)

    def states(self) -> dict[str, SinkStatus]:
        """Return {sink: latest status}."""
        return {sink: tender.status for sink, tender in self._tenders.items()}

    def resolved(self, sink: str) -> Resolved | None:
        """Return what *sink* made of the configuration, None while that is not known."""
        tender = self._tenders.get(sink)
        return None if tender is None else tender.resolved

    async def drain(self, timeout: float) -> bool:
        """Wait until all that is in the journal now is delivered and durable; return whether it is, after at most *timeout* seconds.

        A sink that somebody else delivers to is not waited for.
        """
        self._drains += 1
        number = self._drains
        for tender in self._tenders.values():
            await tender.drain(number)
        with anyio.move_on_after(timeout):
            for tender in self._tenders.values():
                await tender.wait_until_drained(number)
        return all(tender.has_drained(number) for tender in self._tenders.values())

    def resume(self) -> None:
        """Somebody joined a run that was closed: start the sinks that were finished again."""
        for tender in self._tenders.values():
            tender.resume()

    async def stop(self) -> None:
        """Let the workers finish their call, flush and move their cursors, then end them; `run` returns."""
        async with anyio.create_task_group() as tasks:
            for tender in self._tenders.values():
                tasks.start_soon(tender.stop)


def _log_notice(level: str, text: str, sink: str) -> None:
    emit: Callable[..., None] = {"info": logger.info, "warning": logger.warning}.get(level, logger.error)
    emit("%s", text)


__all__ = ["Supervisor"]
