"""``accelbus sync``: deliver what a run still owes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from accelbus.cli.options import DEFAULT_STATE_DIR, Run, StateDir, find, keep_readers_quiet

if TYPE_CHECKING:
    from accelbus.delivery.status import SinkStatus
    from accelbus.rundir import RunDir, RunRecord


def sync(
    run: Run,
    to: Annotated[list[str] | None, typer.Option("--to", metavar="TRACKER", help="Only to this tracker, which may be a new one.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run has ended.")] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="Also where another process delivers now; it stops.")] = False,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Longest stay; not given: no limit.")] = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> int:
    """Deliver what a run still owes its trackers, from this machine.

    First brings in what killed ranks left on this node. Safe to repeat, to interrupt, and beside a run that goes on: a tracker that
    another process delivers to is left to it.
    """
    from accelbus.cli import FINE, TROUBLE
    from accelbus.cli.lines import status_lines
    from accelbus.reader.report import report

    keep_readers_quiet()
    run_dir = find(run, state_dir)
    with _naming(run_dir):
        _bring_in(run_dir)
        sinks = _sinks_to_deliver(run_dir, to, take_over=take_over)
        if sinks:
            _deliver(run_dir, sinks, follow=follow, take_over=take_over, timeout=timeout)
    found = report(run_dir, exact=True)
    for line in status_lines(found):
        print(line)
    return FINE if found.is_fine else TROUBLE


@contextlib.contextmanager
def _naming(run_dir: RunDir) -> Iterator[None]:
    """Say where the system refused something, when it does not: a write that fails does not know the name of its file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(run_dir.path)) from error


def _bring_in(run_dir: RunDir) -> None:
    """Salvage what lies on this node, and close the run when nobody else will: both are the bus process's work while it is there."""
    from accelbus import host
    from accelbus.aggregator.closing import close_run
    from accelbus.aggregator.rescue import rescue_run
    from accelbus.cli.salvage import describe
    from accelbus.config import Tuning, from_environment
    from accelbus.reader.snapshot import read_snapshot

    tuning = from_environment(Tuning)
    snapshot = read_snapshot(run_dir.status_path, tuning=tuning)
    if snapshot.bus_state != "running" or snapshot.bus.host != host.name():
        for result in rescue_run(run_dir, tuning=tuning):
            if result.outcome == "failed" or result.events:
                print(describe(result), file=sys.stderr)
    if snapshot.bus_state not in ("running", "silent"):
        closing = close_run(run_dir, tuning=tuning)
        if not closing.status:
            print(f"the run stays open: {closing.text}", file=sys.stderr)


def _sinks_to_deliver(run_dir: RunDir, to: list[str] | None, *, take_over: bool) -> list[str]:
    """Return the sinks that are ours to deliver to, and say why others are not."""
    from accelbus.config import Tuning, from_environment
    from accelbus.delivery.ownership import is_live, read_owner

    tuning = from_environment(Tuning)
    sinks = []
    for name in _wanted(run_dir, to):
        owner = read_owner(run_dir.sink(name))
        if owner is not None and not take_over and is_live(run_dir.sink(name), owner, tuning=tuning):
            print(f"{name}: {owner} delivers and is left to it; --take-over replaces it", file=sys.stderr)
        else:
            sinks.append(name)
    return sinks


def _wanted(run_dir: RunDir, to: list[str] | None) -> list[str]:
    """Return the sinks that were asked for, or all of the run's that can be delivered to from here."""
    from accelbus.errors import ConfigurationError
    from accelbus.reader.books import sinks_of
    from accelbus.tracking import resolve

    record = _record_of(run_dir)
    origins = record.trackers if record is not None else {}
    given = {name for name, origin in origins.items() if origin.path}
    if to:
        return list(resolve(to, given=given))
    names = sinks_of(run_dir, record)
    if not names:
        raise ConfigurationError(f"run {run_dir.run_id!r} has no tracker to deliver to; name one with --to")
    sinks: list[str] = []
    for name in names:
        if name in origins and name not in given:
            print(f"{name}: its class was defined in the training script and cannot be built without it", file=sys.stderr)
            continue
        try:
            sinks += resolve(name, given=given)
        except ConfigurationError as error:
            # Not installed on this machine, for example; the others are delivered to.
            print(f"{name}: {error}", file=sys.stderr)
    return sinks


def _record_of(run_dir: RunDir) -> RunRecord | None:
    from accelbus.errors import CorruptDataError

    try:
        return run_dir.read_record()
    except CorruptDataError as error:
        print(
            f"accelbus: {error}; trackers that were started, or are named with --to, get the project {run_dir.run_id!r} and no arguments",
            file=sys.stderr,
        )
        return None


def _deliver(run_dir: RunDir, sinks: list[str], *, follow: bool, take_over: bool, timeout: float | None) -> None:
    from accelbus.cli.lines import progress_line
    from accelbus.cli.progress import Line
    from accelbus.delivery import deliver
    from accelbus.errors import OwnershipError

    line = Line()

    def tell(level: str, text: str, sink: str) -> None:
        # Addresses come at the end, beside what was delivered there.
        if level != "info" or follow:
            line.clear()
            print(text, file=sys.stderr)

    def show(states: Mapping[str, SinkStatus]) -> None:
        line.show(progress_line({name: (state.state, state.values.delivered, state.values.pending) for name, state in states.items()}))

    try:
        deliver.sync(run_dir, sinks, follow=follow, take_over=take_over, timeout=timeout, on_notice=tell, on_progress=show)
    except OwnershipError as error:
        # Somebody was quicker since we looked.
        tell("warning", str(error), "")
    finally:
        line.clear()


__all__ = ["sync"]
