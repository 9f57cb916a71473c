"""Every setting: its unit, its environment variable and the reason for its default.

Two tables. `Settings` is what a user decides about a run; ``accelbus.init`` takes its fields as arguments. `Tuning` holds sizes,
intervals and deadlines; nobody should have to touch it. Each field of both is also read from ``ACCELBUS_<FIELD IN CAPITALS>``;
an argument beats the environment, the environment beats the default.

To add a setting: a field with its reason, and nothing else; documentation, environment and validation come from here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from accelbus.errors import ConfigurationError
from accelbus.meant import closest, hint

PREFIX = "ACCELBUS_"
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Positive = Annotated[int, Meta(gt=0)]
Number = Annotated[int, Meta(ge=0, lt=2**31)]
Word = Annotated[str, Meta(min_length=1, max_length=100)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Pause = Annotated[float, Meta(ge=0.001, le=60)]
RingBytes = Annotated[int, Meta(ge=256 * KIB, le=128 * MIB)]
EventBytes = Annotated[int, Meta(ge=KIB, le=8 * MIB)]
FrameBytes = Annotated[int, Meta(ge=96 * KIB, le=16 * MIB)]


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one tracker gets of a run. Patterns are globs over whole keys (``*`` also matches ``/``); what is left out is counted as
    filtered.
    """

    include: tuple[str, ...] = ()
    """Keys it gets; all of them when empty."""
    exclude: tuple[str, ...] = ()
    """Keys it does not get, also among the included."""
    rename: dict[str, str] = {}
    """{pattern with ``*`` and ``?``: new key}; a ``*`` of the new key is what the pattern's ``*`` of the same number matched. The first
    pattern that fits counts."""
    min_interval: Seconds = 0.0
    """Least seconds between two numbers of one key."""
    redact: tuple[str, ...] = ()
    """Keys of the configuration, nested ones joined with ``/``, whose values it does not get."""
    per_rank: bool = False
    """Every rank has a tracker of its own, fed with what that rank logs; as trackers with ``main_process_only = False`` have."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user decides about a run."""

    project: str = ""
    """Name of the project (W&B project, MLflow experiment, …)."""
    name: str | None = None
    """Display name of the run; the run id when not given."""
    run_id: str | None = None
    """Identity of the run and name of its directory; derived from the launcher when not given."""
    resume: Literal["allow", "must", "never"] = "allow"
    """Whether an existing run directory of this id is continued. ``allow``, because an elastic restart is the common case."""
    attempt: Number | None = None
    """Number of the attempt; assigned by the bus process when not given."""
    role: Word = "trainer"
    """``trainer`` ranks hold a step open for each other; other roles (``evaluator``, ``rollout``) never do."""
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    config: dict[str, Any] | None = None
    """Hyperparameters; the same as calling ``run.log_config`` first."""
    log_with: str | tuple[str, ...] | None = None
    """Tracker names. Not given: TensorBoard if it is installed, else JSONL: no account, and curves to look at."""
    init_kwargs: dict[str, dict[str, Any]] = {}
    """{tracker name: arguments for its constructor}"""
    log_kwargs: dict[str, dict[str, Any]] = {}
    """{tracker name: keyword arguments for each call of its ``log``}"""
    sink_options: dict[str, SinkOptions] = {}
    """{tracker name: which keys it gets, under which names, how often}"""
    inline: tuple[str, ...] = ()
    """Trackers that run in the main rank, on a thread beside training: `Run.get_tracker` can then unwrap them. One that blocks or
    crashes takes training with it."""
    dir: str = "runs"
    """Run directories live in here; put it on a file system that survives the job."""
    mode: Literal["online", "offline", "disabled"] = "online"
    """``offline`` writes the journal and starts no tracker; ``disabled`` does nothing at all."""
    endpoint: str | None = None
    """Address of a daemon; not given: this node's own bus process."""
    durability: Literal["memory", "process", "disk"] = "process"
    """What ``log`` survives: nothing more than the thread (``memory``), SIGKILL of any process (``process``), a power cut
    from the ack on (``disk``)."""
    on_full: Literal["drop_newest", "block", "raise"] = "drop_newest"
    """What ``log`` does when ring and spill are full. Training goes first."""
    reduce: dict[str, Any] | None = None
    """{key pattern: how ranks are merged}; the mean where nothing is said."""
    require: tuple[str, ...] = ()
    """Trackers without which the run must not start."""
    config_from: str | None = None
    """Tracker whose sweep, or whose user interface, has the last word on the configuration: every rank's `Run.config` is what it
    resolved, before ``init`` returns."""
    run_record: bool = True
    """Record with what command, code (commit and patch), packages and machine the run was made."""
    record_env: tuple[str, ...] = ()
    """Environment variables for the run record beside those of CUDA, NCCL, PyTorch and the launchers; globs. Never one named like a
    key, token, secret, password or credential."""
    console: bool = False
    """Record what the main rank prints."""
    finish_timeout: Seconds | None = None
    """Seconds ``finish`` waits for the trackers. Not given: 60 in a batch job or container, which kill what is left behind; 0
    elsewhere, where the bus process goes on."""
    state_dir: str | None = None
    """Where runs are looked for by the command line; the ``dir`` of ``init`` when not given."""
    strict: bool = False
    """Programming errors in ``log`` raise; for tests."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes, intervals and deadlines in seconds."""

    # --- spool and pump, in the training process
    spool_bytes: RingBytes = 4 * MIB
    """Ring per rank: 0.4 s of the fastest possible logging, hours of usual logging. From 256 KiB to 128 MiB, in whole pages."""
    spool_min_bytes: RingBytes = 1 * MIB
    """What a ring shrinks to before tmpfs is given up (Docker's /dev/shm is 64 MiB for all)."""
    spool_dir: str | None = None
    """Instead of a directory of ours on tmpfs."""
    socket_dir: str | None = None
    """Instead of a directory of ours under the runtime directory; at most 70 bytes long."""
    memory_bytes: Positive = 64 * MIB
    """Bound of the queue with ``durability="memory"``."""
    event_bytes: EventBytes = 48 * KIB
    """A larger event is split by keys; a larger single value becomes a blob file. At most half a frame, and a quarter of the smallest
    ring."""
    frame_bytes: FrameBytes = 1 * MIB
    """Largest message on the wire; a peer that sends more is disconnected. From 96 KiB, so that a rank can introduce itself, to
    16 MiB."""
    frame_events: Positive = 256
    """Events per frame: joining them holds the GIL for less than 60 µs, far below the switch interval."""
    overload_frame_events: Positive = 2048
    """Events per frame while the ring is more than a quarter full, when the alternative is to drop."""
    pump_interval: Pause = 0.05
    """20 Hz: ten times per second would be enough for people, and 20 costs nothing measurable."""
    credit_bytes: Positive = 2 * MIB
    """Bytes sent and not yet acked."""
    heartbeat_interval: Seconds = 1.0
    ack_timeout: Seconds = 2.0
    """No ack for so long: say hello again and resend."""
    spill_after: Seconds = 1.0
    """Events that nobody acked for so long go to the run directory, which survives the node."""
    spill_bytes: Positive = 1 * GIB
    blob_bytes: Positive = 4 * GIB
    """Files of large values and media that one rank may write. Files beyond it are dropped and counted, values in events are not."""
    blob_backlog_bytes: Positive = 1 * GIB
    """Of them, what may wait for the disk; more is dropped and counted, since waiting would be training's."""
    copy_timeout: Seconds = 600.0
    """Longest wait of ``finish`` for large files that are still being copied from another file system."""
    block_timeout: Seconds = 1.0
    """Longest wait of one ``log`` call with ``on_full="block"``."""
    bus_retry_interval: Seconds = 1.0
    """How often a rank without a bus process tries to start one."""
    exit_timeout: Seconds = 5.0
    """Longest wait of ``finish`` (and of the exit hook) until the events are safe."""

    device_patience: Seconds = 60.0
    """After which a value that has not arrived from its device counts as lost."""

    # --- run record and console, in the main rank
    facts_timeout: Seconds = 30.0
    """Longest search for what belongs into the run record; what was not found by then stays unknown."""
    facts_patience: Seconds = 1.0
    """Longest wait of ``finish`` for the run record; only a run that is shorter than the search waits at all."""
    patch_bytes: Positive = 1 * MIB
    """A larger patch of the working tree is cut."""
    console_interval: Seconds = 1.0
    """How long printed lines are gathered for one event."""
    console_line: Positive = 1000
    """Characters of a line; what is beyond is cut."""
    console_waiting: Positive = 256 * KIB
    """Characters printed at once, or since the last event, that are recorded."""
    console_rate: Positive = 16 * KIB
    """Characters per second that are recorded in the long run: two hundred lines."""
    console_bytes: Positive = 64 * MIB
    """Characters per run that are recorded."""

    # --- bus process
    segment_bytes: Positive = 64 * MIB
    sync_interval: Seconds = 0.5
    """``durability="process"``: acked data is on disk at most this much later."""
    unsynced_bytes: Positive = 64 * MIB
    """Acked but not synced frames kept in memory, to be written again when a sync fails; beyond it acks wait for the sync."""
    receive_burst: Positive = 512
    """Messages taken from the socket before anything else gets a turn."""
    disk_retry_interval: Seconds = 1.0
    tick_interval: Seconds = 0.25
    """How often time is written down while views may wait for it."""
    silent_after: Seconds = 10.0
    """A rank without any message for so long is silent and holds nothing."""
    lost_after: Seconds = 60.0
    """A rank that is silent for so long, and whose record lock proves nothing, is lost. It may come back."""
    probe_interval: Seconds = 0.5
    """How often the record locks of producers are tried."""
    linger: Seconds = 600.0
    """Longest stay after the last rank left, with sinks still owed."""
    restart_grace: Seconds = 30.0
    """A run that ended without every rank's goodbye stays open so long while its launcher lives."""
    drain_grace: Seconds = 30.0
    """After SIGTERM and the last rank: time to bring the sinks up to date."""
    settings_grace: Seconds = 30.0
    """How long rank 0's settings are waited for before the lowest rank's are used."""
    handover_grace: Seconds = 5.0
    """How long the main rank's environment is waited for, while it lives, before trackers are started with the bus process's own."""
    require_timeout: Seconds = 120.0
    """How long the trackers in ``require`` may take to start; then every rank's ``init`` raises."""
    status_interval: Seconds = 1.0

    # --- reading
    gap_hold: Seconds = 10.0
    """Journal time for which a reader waits for missing sequence numbers before it reports and skips them."""
    hold_bytes: Positive = 64 * MIB
    """Frames kept in memory behind missing sequence numbers; beyond it the oldest gap is given up early."""
    torn_hold: Seconds = 2.0
    """Damage in the middle of a segment that is still written is looked at again for so long before it is skipped: on a
    network file system a later page may be seen before an earlier one."""
    unreadable_hold: Seconds = 30.0
    """A segment that cannot be read while a later one can is tried again for so long before it is passed: a network file system
    may refuse a file for a while."""
    read_bytes: Positive = 16 * MIB
    """Read ahead, all writers of a run together."""
    read_events: Positive = 4096
    poll_interval: Seconds = 0.1

    # --- views
    late_after: Seconds = 2.0
    """A step is emitted so long after its first value, whoever is missing."""
    late_horizon_points: Positive = 4096
    """Emitted points that a late value can still change; older ones get ``late/<key>``."""
    view_bytes: Positive = 1 * MIB
    """Bound of the open points, and of the emitted ones that can still change; both are in every cursor. Beyond it the oldest open
    points are emitted early, the oldest emitted ones can no longer change."""

    # --- delivery
    cursor_interval: Seconds = 1.0
    """Flush the tracker and move the cursor; what a crash repeats at most."""
    retry_first: Seconds = 0.5
    retry_max: Seconds = 30.0
    retries_alone: Positive = 3
    """Failures of one row before the next row is tried in its place."""
    kills_of_row: Positive = 9
    """SIGKILLs of workers while they try one row that count like ``retries_alone`` crashes in it: the row may need more memory than
    there is, but the kernel, or an operator, may as well mean something else."""
    failures_of_dead_letter: Positive = 9
    """Failures of such a row, each while another row worked, that send it to the dead letters: a tracker that fails now and then is
    no reason to lose a row (every third call: two rows in a million)."""
    failures_of_last_row: Positive = 7
    """The same when the run is over and no other row is left to compare it with; half a minute."""
    breaker_failures: Positive = 5
    """Failures in a row, of different rows, that open the breaker."""
    restart_after_failures: Positive = 3
    """Failures of start, flush or finish in a row after which a fresh worker process tries: a tracker's own state may be broken."""
    media_seconds: Seconds = 0.05
    """How long media are handed over before the journal is looked at again: scalars never wait for more than one image or file."""
    media_cursor_bytes: Positive = 1 * MIB
    """Media that the tracker has not taken are kept in its cursor, up to so much; while more are waiting, the cursor waits."""
    media_waiting_bytes: Positive = 64 * MIB
    """While more media are waiting, nothing is read."""
    call_rows: Positive = 4096
    """Most rows handed to a tracker in one call; fewer while a call takes long."""
    call_seconds: Seconds = 0.5
    """How long one call should take: the deadlines, commands and cursors wait for it."""
    start_deadline: Seconds = 120.0
    slow_notice: Seconds = 15.0
    """A tracker that has been in one call for so long is reported to the main rank, long before a deadline ends it."""
    log_deadline: Seconds = 60.0
    media_deadline: Seconds = 600.0
    """One image or file; uploads of models take long."""
    flush_deadline: Seconds = 60.0
    finish_deadline: Seconds = 120.0
    exit_deadline: Seconds = 10.0
    """A tracker that was finished has so long for what it leaves to the end of the interpreter; everything is durable then."""
    silence_deadline: Seconds = 30.0
    """A worker that says nothing for so long is stopped or stuck in C code: it is killed and restarted."""
    stop_grace: Seconds = 3.0
    """A worker told to leave finishes its call, flushes and moves its cursor within this time, or is killed."""
    exclusion_patience: Seconds = 2.0
    """A worker whose owner is gone has so long to leave its tracker before the next one kills it."""
    worker_log_bytes: Positive = 8 * MIB
    """The file with a worker's output is set aside when it is larger; one such file is kept."""
    worker_nice: int = 19
    """Niceness of workers and all that their trackers start, up to 19: idle priority. Half of it until the tracker has started."""
    lease_interval: Seconds = 2.0
    lease_expires: Seconds = 15.0
    """An owner that did not renew for so long may be replaced."""


_CLOSE = 0.88
"""Likeness of names from which one counts as the other misspelt; they share a prefix."""
_Table = TypeVar("_Table", Settings, Tuning)


def from_environment(table: type[_Table], environ: Mapping[str, str] | None = None, **explicit: Any) -> _Table:
    """Return *table* filled from *explicit* arguments, then ``ACCELBUS_*`` variables, then defaults.

    Args:
        table: `Settings` or `Tuning`.
        environ: instead of ``os.environ``.
        explicit: values of fields; None means "not given".

    Raises:
        ConfigurationError: naming the argument or variable, what was expected and what came.
    """
    environ = os.environ if environ is None else environ
    known = {field.name: field for field in msgspec.structs.fields(table)}
    values: dict[str, Any] = {}
    for name, field in known.items():
        given = explicit.pop(name, None)
        if given is not None:
            values[name] = _convert(name, given, field.type, f"{name}=", strict=True)
        elif text := environ.get(PREFIX + name.upper()):
            values[name] = _convert(name, _parse(text, field.type), field.type, PREFIX + name.upper() + "=", strict=False)
    if explicit:
        unknown = next(iter(explicit))
        raise ConfigurationError(f"unknown setting {unknown!r}" + (hint(unknown, known) or f" (known: {', '.join(known)})"))
    filled = table(**values)
    if isinstance(filled, Tuning):
        _check_sizes(filled)
    return filled


def misspelt(environ: Mapping[str, str]) -> dict[str, str]:
    """Return {variable that looks like one of ours: the one it is probably meant to be}."""
    known = [PREFIX + name.upper() for table in (Settings, Tuning) for name in table.__struct_fields__]
    unknown = sorted(name for name in environ if name.upper().startswith(PREFIX) and name not in known)
    found = {name: closest(name.upper(), known, cutoff=_CLOSE) for name in unknown}
    return {name: close for name, close in found.items() if close}


def _check_sizes(tuning: Tuning) -> None:
    ring = min(tuning.spool_bytes, tuning.spool_min_bytes)
    for name, size, share in (("FRAME_BYTES", tuning.frame_bytes, 2), ("SPOOL_MIN_BYTES", ring, 4)):
        if tuning.event_bytes > size // share:
            raise ConfigurationError(
                f"{PREFIX}EVENT_BYTES={tuning.event_bytes}: expected at most {size // share}, "
                f"1/{share} of {PREFIX}{name} ({size}); an event has to fit with others"
            )


def _parse(text: str, wanted: Any) -> Any:
    """Lists in a variable are comma-separated, mappings are JSON."""
    described = str(wanted)
    if "dict" in described:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    if "tuple" in described:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _convert(name: str, given: Any, wanted: Any, source: str, *, strict: bool) -> Any:
    if name == "log_with" and isinstance(given, list | tuple):
        given = tuple(str(item) for item in given)
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    try:
        return msgspec.convert(given, wanted, strict=strict)
    except msgspec.ValidationError as error:
        choices = _choices(wanted)
        expected = f"expected one of {', '.join(choices)}" if choices else str(error)
        raise ConfigurationError(f"{source}{given!r}: {expected}") from error


def _choices(wanted: Any) -> list[str]:
    """Return what a field takes if it takes one of a few words."""
    return [str(word) for word in get_args(wanted)] if get_origin(wanted) is Literal else []


__all__ = ["GIB", "KIB", "MIB", "PREFIX", "Settings", "SinkOptions", "Tuning", "from_environment"]
