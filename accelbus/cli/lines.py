"""Reports in words, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelbus.reader.document import Report, SinkReport

_LINES = 12
_BUS = {
    "running": "its bus process {pid} on {host} reports",
    "silent": "its bus process {pid} on {host} is there and has said nothing for {age}",
    "left": "its bus process has left, {age} ago",
    "gone": "its bus process {pid} on {host} is gone; it last reported {age} ago",
    "unreachable": "its bus process {pid} on {host} has not reported for {age}",
    "unknown": "no bus process reports",
}


def status_lines(report: Report) -> Iterator[str]:
    """Yield first a line per sink, then one about the run, then what is wrong or odd."""
    yield from (sink_line(sink, report) for sink in report.sinks)
    if not report.sinks:
        yield "no trackers; " + ", ".join([*_losses(report), report.path])
    yield run_line(report)
    yield from _bounded([f"  ! {problem}" for problem in [*report.problems, *_complaints(report)]])
    yield from _bounded([f"  - {note}" for note in report.notes])


def sink_line(sink: SinkReport, report: Report) -> str:
    """Return the line a person wants: how the sink is, how far behind, what is lost, where to look."""
    parts = [f"{sink.sink}: {_state(sink, report)}"]
    if sink.lag_seconds is not None:
        parts.append(f"lag {sink.lag_seconds:.1f} s")
    parts += _losses(report)
    if refused := sink.dead_lettered or sink.dead_letters:
        parts.append(f"{refused:,} refused")
    if sink.url:
        parts.append(sink.url)
    if sink.state == "owed":
        return ", ".join(parts) + f"; deliver the rest with: accelbus sync {report.path}"
    return ", ".join(parts)


def run_line(report: Report) -> str:
    """Return who runs, and who says so."""
    trainers = {rank.rank for rank in report.ranks if rank.role in ("", "trainer")}
    attempts = {rank.attempt for rank in report.ranks if rank.attempt >= 0}
    parts = [f"{report.run_id}: {report.status}", count(len(trainers), "rank")]
    if len(attempts) > 1:
        parts.append(count(len(attempts), "attempt"))
    parts.append(f"{count(sum(rank.logged for rank in report.ranks), 'event')} logged")
    if pending := sum(rank.pending for rank in report.ranks):
        parts.append(f"{pending:,} on their way")
    if report.balanced is not None:
        parts.append("the books balance" if report.balanced else "the books do not balance")
    bus = report.bus
    age = duration(bus.age_seconds) if bus.age_seconds is not None else "long"
    said = _BUS[bus.state].format(pid=bus.pid, host=bus.host, age=age)
    counted = "" if report.source == "bus" else "; counted from the journal"
    return ", ".join(parts) + f" ({said}{counted})"


def progress_line(sinks: dict[str, tuple[str, int, int]]) -> str:
    """Return one line from ``{sink: (state, delivered, pending)}``."""
    return ", ".join(
        f"{name}: {state.replace('_', ' ')}, {delivered:,} delivered, {pending:,} to go"
        for name, (state, delivered, pending) in sinks.items()
    )


def count(number: int, noun: str) -> str:
    """Return *number* with its *noun*."""
    if number != 1:
        noun = noun[:-1] + "ies" if noun.endswith("ry") else noun + "s"
    return f"{number:,} {noun}"


def duration(seconds: float) -> str:
    """Return *seconds* as people say it."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def dropped_words(dropped: dict[str, int]) -> str:
    """Return counts by reason, the largest first."""
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(dropped.items(), key=lambda item: -item[1]))


def _bounded(lines: list[str]) -> Iterator[str]:
    """A thousand ranks with the same trouble need no thousand lines."""
    yield from lines[:_LINES]
    if len(lines) > _LINES:
        yield f"{lines[0][:3]} and {len(lines) - _LINES:,} more of the kind; --json has them all"


def _losses(report: Report) -> list[str]:
    """Lost is what is nowhere and nobody meant to leave out; not kept is what its producer has counted instead."""
    return [f"{report.lost:,} lost", *([f"{report.not_kept:,} not kept"] if report.not_kept else [])]


def _state(sink: SinkReport, report: Report) -> str:
    pending = f"{sink.pending:,} to go"
    match sink.state:
        case "up_to_date":
            return "up to date"
        case "finished" if sink.last_error and sink.restarts:
            return f"finished after {count(sink.restarts, 'restart')}"
        case "finished":
            return "finished"
        case "owed" if sink.pending:
            return f"{sink.pending:,} values owed"
        case "owed" if events := sum(rank.pending for rank in report.ranks):
            return f"{count(events, 'event')} owed"
        case "owed":
            return "delivered, not finished"
        case "running":
            return f"delivering, {pending}"
        case "starting":
            return f"starting, {pending}"
        case "retrying":
            return f"retrying after {count(sink.retries, 'failure')} ({sink.last_error or 'no reason known'}), {pending}"
        case "blocked":
            return f"takes no rows, waiting ({sink.last_error or 'no reason known'}), {pending}"
        case "waiting":
            return f"delivered by somebody else ({sink.last_error})"
        case _:
            return f"{sink.state}, {pending}"


def _complaints(report: Report) -> Iterator[str]:
    for rank in report.ranks:
        if rank.dropped:
            yield f"rank {rank.rank}, attempt {rank.attempt}: not kept: {dropped_words(rank.dropped)}"
        if rank.pending and rank.state not in ("alive", "silent"):
            yield f"rank {rank.rank}, attempt {rank.attempt}: {count(rank.pending, 'event')} still in its spool on {rank.host}; accelbus sync {report.path} brings them in"
    for sink in report.sinks:
        if sink.dead_lettered or sink.dead_letters:
            what = count(sink.dead_lettered, "value") if sink.dead_lettered else "configuration, summary or the like"
            yield f"{sink.sink}: {what} refused by the tracker, kept in {report.path}/sinks/{sink.sink}/dead_letters.jsonl"


__all__ = ["count", "dropped_words", "duration", "progress_line", "run_line", "sink_line", "status_lines"]
