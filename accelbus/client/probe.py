"""A program that looks at what surrounds a run: git, installed packages, processors, graphics cards.

Outside the training process, whose threads would have to wait for the GIL meanwhile, and which a hanging ``git`` must not touch. Run
by its path, with nothing but the standard library: a JSON request on stdin, one JSON line on stdout for each answer, the quickest
first, so that whoever loses patience has the ones before. The last line is ``{}``.

What cannot be found out is None.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_LIFETIME = 120
"""Seconds after which this process ends, whoever may have forgotten it."""
_QUICK = 5.0
_SLOW = 15.0
"""Seconds for what may have to look at every file of a working tree, or to wake a driver."""
_MOST_PACKAGES = 5000
_MOST_UNTRACKED = 100
_SHORT_ANSWER = 64 * 1024
# Reading must change nothing, ask nothing and start nothing that a repository names.
_GIT = ["git", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "-c", "diff.autoRefreshIndex=false"]
_TOUCHED = re.compile(rb"^diff --git .*\n(?=diff --git |\Z)", re.MULTILINE)
"""A file that only has another time than the index says; the index is not ours to refresh."""
_GIT_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def main() -> int:
    """Answer the request on stdin."""
    _settle_process()
    request = json.loads(sys.stdin.readline())
    for name, find in _questions(request):
        answer = None
        with contextlib.suppress(Exception):  # isolation: one unknown is no reason to lose the others
            answer = find()
        _say({name: answer})
    _say({})
    return 0


def _questions(request: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "cpu", cpu
    yield "memory_bytes", memory_bytes
    yield "os", operating_system
    yield "packages", lambda: packages(request["path"])
    root = find_root(request["directories"])
    yield "git", lambda: git_state(root)
    yield "patch", lambda: git_patch(root, request["patch_bytes"])
    yield "gpus", gpus


def _settle_process() -> None:
    """Give way to training, on any core: this one may belong to a rank."""
    signal.alarm(_LIFETIME)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with contextlib.suppress(OSError):
        os.nice(10)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


# Machine


def cpu() -> dict[str, Any]:
    """Return the model and the number of processors."""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    name = found[1].strip() if found else _answer(["sysctl", "-n", "machdep.cpu.brand_string"]) if sys.platform == "darwin" else None
    return {"name": name or platform.machine(), "count": os.cpu_count()}


def memory_bytes() -> int | None:
    """Return the size of the memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def operating_system() -> str:
    """Return what the distribution calls itself, and the kernel."""
    system = os.uname()
    kernel = f"{system.sysname} {system.release} {system.machine}"
    with contextlib.suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']} ({kernel})"
    return kernel


def gpus() -> list[dict[str, Any]] | None:
    """Return all graphics cards of this host; None where no driver is."""
    answer = _answer(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"], timeout=_SLOW)
    if answer:
        lines = [[part.strip() for part in line.rsplit(",", 2)] for line in answer.splitlines()]
        return [{"name": name, "memory_mib": int(memory) if memory.isdigit() else None, "driver": driver} for name, memory, driver in lines]
    files = sorted(glob.glob("/proc/driver/nvidia/gpus/*/information"))
    models = [found[1].strip() for file in files if (found := re.search(r"^Model:\s*(.+)$", _read(file), re.MULTILINE))]
    return [{"name": model} for model in models] or None


# Packages


def packages(path: list[str]) -> dict[str, str]:
    """Return {name: version} of what is installed in the directories of *path*; the first of a name is the one that is imported."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=path):
        with contextlib.suppress(Exception):  # half-removed packages have neither
            found.setdefault(str(distribution.metadata["Name"]), str(distribution.version))
        if len(found) >= _MOST_PACKAGES:
            break
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


# Git


def find_root(directories: list[str]) -> str | None:
    """Return the working tree that holds the first of *directories* to be in one."""
    for directory in directories:
        with contextlib.suppress(OSError):
            if root := _git(directory, "rev-parse", "--show-toplevel"):
                return root
    return None


def git_state(root: str | None) -> dict[str, Any] | None:
    """Return commit, branch, remote and what is changed in the working tree *root*."""
    if root is None:
        return None
    branch = _git(root, "symbolic-ref", "--short", "--quiet", "HEAD")
    upstream = _git(root, "config", "--get", f"branch.{branch}.remote") if branch else None
    remote = _git(root, "config", "--get", f"remote.{upstream or 'origin'}.url")
    changes = _answer([*_GIT, "status", "--porcelain=v1", "-z", "--ignore-submodules=dirty"], cwd=root, timeout=_SLOW)
    untracked = [entry[3:] for entry in (changes or "").split("\0") if entry.startswith("?? ")]
    return {
        "root": root,
        "commit": _git(root, "rev-parse", "--verify", "--quiet", "HEAD"),
        "branch": branch,
        "remote": without_credentials(remote) if remote else None,
        "dirty": None if changes is None else bool(changes),
        "untracked": untracked[:_MOST_UNTRACKED],
    }


def git_patch(root: str | None, limit: int) -> str | None:
    """Return how the working tree differs from the commit, at most *limit* bytes of it; None where there is no commit."""
    if root is None or _git(root, "rev-parse", "--verify", "--quiet", "HEAD") is None:
        return None
    command = [*_GIT, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty"]
    data = _output(command, cwd=root, timeout=_SLOW, limit=limit)
    if data is None or len(data) <= limit:
        return None if data is None else _TOUCHED.sub(b"", data).decode("utf-8", "replace")
    whole_lines, _, _ = data[:limit].rpartition(b"\n")
    return f"{whole_lines.decode('utf-8', 'replace')}\n[cut here: the patch is larger than {limit} bytes]\n"


def without_credentials(address: str) -> str:
    """Return *address* without user, password, token and query; the user of an ssh address says nothing and stays."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    place, slash, path = rest.partition("/")
    user, at, host = place.rpartition("@")
    kept = f"{user.partition(':')[0]}@" if at and "ssh" in scheme else ""
    return f"{scheme}://{kept}{host}{slash}{re.split('[?#]', path)[0]}"


def _git(directory: str, *arguments: str) -> str | None:
    return _answer([*_GIT, *arguments], cwd=directory)


# Programs and files


def _answer(command: list[str], *, cwd: str | None = None, timeout: float = _QUICK) -> str | None:
    """Return what *command* prints, None when it fails, says nothing within *timeout*, or far too much."""
    data = _output(command, cwd=cwd, timeout=timeout, limit=_SHORT_ANSWER)
    return None if data is None else data[:_SHORT_ANSWER].decode("utf-8", "replace").strip("\n")


def _output(command: list[str], *, cwd: str | None, timeout: float, limit: int) -> bytes | None:
    """Return what *command* prints, up to *limit* bytes and one more; None when it fails or takes too long."""
    nothing = subprocess.DEVNULL
    try:
        process = subprocess.Popen(  # noqa: S603  programs named in this file
            command, cwd=cwd, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, env={**os.environ, **_GIT_ENVIRONMENT}
        )
    except OSError:
        return None
    with process:
        assert process.stdout is not None
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        data = process.stdout.read(limit + 1)
        if len(data) > limit:
            process.kill()
        code = process.wait()
        timer.cancel()
    return data if code == 0 or len(data) > limit else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_SHORT_ANSWER)
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
