"""Facts about this host and its processes, and directories on it that are ours alone.

A process id means nothing by itself: it is used again. A process is its id together with its start time, within one boot of the
kernel (`boot_id`) and one pid namespace (`pid_namespace`; containers on one host share the boot id).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from accelbus.errors import ConfigurationError

MAX_DIRECTORY_BYTES: Final = 70
"""Longest private directory: a socket below it must stay within 104 bytes (macOS) with room for a run's name."""

_BATCH_VARIABLES: Final = (
    "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID", "OAR_JOB_ID", "SGE_TASK_ID", "AWS_BATCH_JOB_ID",
    "SM_CURRENT_HOST", "AZUREML_RUN_ID", "CLOUD_ML_JOB_ID", "KUBERNETES_SERVICE_HOST", "container",
)  # fmt: skip
_CONTAINER_FILES: Final = ("/.dockerenv", "/run/.containerenv")
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "nfs",
        "nfs3",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "afs",
        "9p",
        "glusterfs",
        "pvfs2",
        "wekafs",
        "vastfs",
    }
)
_MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  checked to be ours before it is used


def name() -> str:
    """Return the name of this host."""
    return os.uname().nodename


@functools.cache
def boot_id() -> str:
    """Return what changes with every boot of this host's kernel."""
    if text := _read("/proc/sys/kernel/random/boot_id"):
        return text
    for fact in ("kern.bootsessionuuid", "kern.boottime"):
        if text := _output(["sysctl", "-n", fact]):
            return text
    return f"unknown-{name()}"


def pid_namespace() -> str:
    """Return the space in which process ids mean something; empty where there is only one."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class _Process(NamedTuple):
    parent: int
    started: int


def process_exists(pid: int) -> bool:
    """Return whether *pid* runs; a zombie does not."""
    return _process(pid) is not None


def process_start_time(pid: int) -> int | None:
    """Return when *pid* was started, None when it does not run. In units of the platform, see `seconds_between`."""
    process = _process(pid)
    return None if process is None else process.started


def seconds_between(started: int, other: int) -> float:
    """Return the seconds between two start times of one boot."""
    return abs(other - started) / (os.sysconf("SC_CLK_TCK") if sys.platform == "linux" else 1)


def parent_of(pid: int) -> int | None:
    """Return the parent of *pid*, None when it does not run."""
    process = _process(pid)
    return None if process is None else process.parent


def command_name(pid: int) -> str:
    """Return the short name of the program that *pid* runs, empty when that is not known."""
    text = _read(f"/proc/{pid}/comm") or _ps(pid, "comm=")
    return os.path.basename(text).lstrip("-")


def environment_of(pid: int) -> Mapping[str, str] | None:
    """Return the environment *pid* was started with, None when that is not known (another user's, or no Linux)."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    return {os.fsdecode(key): os.fsdecode(value) for key, found, value in (entry.partition(b"=") for entry in entries) if found}


def working_directory(environ: Mapping[str, str]) -> str:
    """Return where this process stands, by the name its shell has for it (``PWD``, which may lead through links) if that is still true.

    Empty when the directory has been removed.
    """
    try:
        known = environ.get("PWD", "")
        return known if os.path.isabs(known) and os.path.samefile(known, ".") else os.getcwd()
    except OSError:
        try:
            return os.getcwd()
        except OSError:
            return ""


def in_batch_job_or_container(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether what this process leaves behind is killed when it ends."""
    environ = os.environ if environ is None else environ
    return any(environ.get(variable) for variable in _BATCH_VARIABLES) or any(os.path.exists(path) for path in _CONTAINER_FILES)


def is_on_network(path: Path) -> bool:
    """Return whether *path* is on a network file system, as far as the mount table tells."""
    kind = _file_system(path)
    return kind in _NETWORK_FILE_SYSTEMS or (kind.startswith("fuse.") and kind != "fuse.fuse-overlayfs")


def is_in_memory(path: Path) -> bool:
    """Return whether *path* is on a file system that lives in memory, as far as the mount table tells."""
    return _file_system(path) in _MEMORY_FILE_SYSTEMS


def tmpfs_directory() -> Path | None:
    """Return our directory in memory, None where there is no tmpfs or the directory is not ours alone."""
    if not is_in_memory(_SHARED_MEMORY):
        return None
    directory = _SHARED_MEMORY / f"accelbus-{os.geteuid()}"
    try:
        _make_ours(directory)
    except OSError:
        return None
    return directory


def private_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return a directory for sockets, locks and registries that nobody else can read, write or replace. Made if needed.

    The first that works of ``/tmp/accelbus-<uid>``, ``$XDG_RUNTIME_DIR/accelbus`` and one on tmpfs. /tmp comes first because the
    runtime directory disappears with the user's last session, under a job that outlives it; TMPDIR does not count, because ranks
    of one job may see different ones.

    Raises:
        ConfigurationError: none of them; says what is wrong with each.
    """
    environ = os.environ if environ is None else environ
    candidates = [Path(f"/tmp/accelbus-{os.geteuid()}")]  # noqa: S108  checked to be ours before it is used
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        candidates.append(Path(runtime) / "accelbus")
    if memory := tmpfs_directory():
        candidates.append(memory / "run")
    troubles = []
    for candidate in candidates:
        try:
            make_private(candidate)
        except OSError as error:
            troubles.append(f"{candidate}: {error.strerror or error}")
        else:
            return candidate
    raise ConfigurationError(
        f"no private directory for sockets ({'; '.join(troubles)}); set ACCELBUS_SOCKET_DIR to a directory of yours with mode 0700"
    )


def make_private(directory: Path) -> None:
    """Make *directory* if needed, and check that nobody else can read, write or replace it.

    Raises:
        OSError: it cannot be made, belongs to somebody else, is open to others, is a link, or its path is too long for sockets.
    """
    if len(os.fsencode(directory)) > MAX_DIRECTORY_BYTES:
        raise OSError(0, f"expected a path of at most {MAX_DIRECTORY_BYTES} bytes")
    _make_ours(directory)


def _make_ours(directory: Path) -> None:
    # lstat, and no chmod of what is there: a directory that was open to others may hold what others put into it.
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(0, "expected a directory, found a link or file")
    if found.st_uid != os.geteuid():
        raise PermissionError(0, f"expected a directory of user {os.geteuid()}, it belongs to {found.st_uid}")
    if found.st_mode & 0o077:
        raise PermissionError(0, f"expected mode 0700, found {stat.S_IMODE(found.st_mode):04o}")
    parent = os.stat(directory.parent)
    if parent.st_mode & 0o022 and not parent.st_mode & stat.S_ISVTX:
        raise PermissionError(0, f"others may replace it: {directory.parent} is writable and not sticky")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(0, "it cannot be written")


def give_way(niceness: int) -> None:
    """Lower the priority of this process group, which must be ours alone: all its threads and processes.

    Linux schedules sessions before processes where autogroup is on, as it is on most desktops and servers; there a process's own
    niceness says nothing to other sessions, and the session has one of its own.
    """
    niceness = max(niceness, os.getpriority(os.PRIO_PROCESS, 0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, 0, niceness)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as session:
        session.write(str(niceness))


def _process(pid: int) -> _Process | None:
    if pid <= 0:
        return None
    if sys.platform != "linux":
        return _process_from_ps(pid)
    text = _read(f"/proc/{pid}/stat")
    # The name in parentheses may hold anything, parentheses too.
    state, parent, *others = text.rpartition(")")[2].split() or ("X", "0")
    return None if state in "ZX" else _Process(int(parent), int(others[17]))


def _process_from_ps(pid: int) -> _Process | None:
    import calendar  # noqa: PLC0415  it brings locale, and Linux needs neither

    # "Ss     1 Mon Nov 30 18:15:00 2026"
    columns = _ps(pid, "state=,ppid=,lstart=").split()
    if len(columns) != 7 or columns[0].startswith("Z"):
        return None
    return _Process(int(columns[1]), calendar.timegm(time.strptime(" ".join(columns[3:]), "%b %d %H:%M:%S %Y")))


def _ps(pid: int, columns: str) -> str:
    return _output(["ps", "-o", columns, "-p", str(pid)])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, env={**os.environ, "LC_ALL": "C"}, check=False)  # noqa: S603  our own command
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds *path*, empty when that is not known."""
    target = os.path.realpath(path)
    best, kind = "", ""
    for line in _read("/proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        mounted = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields.split()[4])
        within = target == mounted or target.startswith(mounted.rstrip("/") + "/")
        # The later of two equal mount points hides the earlier.
        if within and len(mounted) >= len(best):
            best, kind = mounted, rest.split()[0]
    return kind
