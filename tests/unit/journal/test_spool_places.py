"""Spools that were never finished: removed when their producer is gone, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accelbus.journal import spool_file
from accelbus.journal.spool_file import HEADER_BYTES, SpoolFile
from accelbus.journal.spool_places import remove_abandoned
from tests.unit.journal.test_spool import HELLO

NAME = f"{7:032x}.spool"
MAKE = """
import os, pathlib, signal, sys
from accelbus.journal import spool_file
from tests.unit.journal.test_spool import HELLO

path, at, number = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def wrap(module, name):
    original = getattr(module, name)
    def call(*arguments, **keywords):
        result = original(*arguments, **keywords)
        if name == at:
            os.kill(os.getpid(), number)
        return result
    setattr(module, name, call)

wrap(spool_file.fcntl, "lockf")
wrap(spool_file, "_allocate")
wrap(spool_file.mmap, "mmap")
wrap(spool_file.SpoolFile, "set_tail")
wrap(spool_file.SpoolFile, "__init__")
spool_file.SpoolFile(path, capacity=1 << 20, description=HELLO)
"""
STEPS = ["lockf", "_allocate", "mmap", "set_tail"]


def make(path: Path, step: str, number: int) -> subprocess.Popen[bytes]:
    """Start a process that makes a spool and sends itself a signal after one of its steps; return when it has."""
    process = subprocess.Popen([sys.executable, "-c", MAKE, str(path), step, str(int(number))])
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        assert os.WSTOPSIG(status) == number
    else:
        process.returncode = -os.WTERMSIG(status)
        assert process.returncode == -number
    return process


def grow_old(path: Path) -> None:
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))


@pytest.mark.parametrize("step", STEPS)
def test_what_a_killed_producer_had_not_finished_is_removed(tmp_path: Path, step: str) -> None:
    """Whatever it had come to; there is no event in it."""
    path = tmp_path / NAME
    make(path, step, signal.SIGKILL)
    assert not remove_abandoned(path)  # too young
    grow_old(path)
    assert remove_abandoned(path)
    assert not path.exists()
    assert not remove_abandoned(path)


@pytest.mark.parametrize("step", STEPS)
def test_what_a_living_producer_has_not_finished_stays(tmp_path: Path, step: str) -> None:
    """Also when it has been at it for long: a stopped process, a slow disk."""
    path = tmp_path / NAME
    process = make(path, step, signal.SIGSTOP)
    try:
        grow_old(path)
        assert not remove_abandoned(path)
        assert path.exists()
    finally:
        process.kill()
        process.wait()
    assert remove_abandoned(path)


def test_a_finished_spool_is_never_abandoned(tmp_path: Path) -> None:
    """It may hold events: that is for the salvage."""
    path = tmp_path / NAME
    make(path, "__init__", signal.SIGKILL)
    grow_old(path)
    assert not remove_abandoned(path)
    assert path.exists()


@pytest.mark.parametrize("name, data", [("notes.spool", b""), (NAME, b"x" * 100), (NAME, b"ABSPOOL9" + bytes(HEADER_BYTES))])
def test_foreign_files_are_left_alone(tmp_path: Path, name: str, data: bytes) -> None:
    """A name that no producer makes, or content that no producer leaves."""
    path = tmp_path / name
    path.write_bytes(data)
    grow_old(path)
    assert not remove_abandoned(path)
    assert path.exists()


def test_links_and_directories_are_left_alone(tmp_path: Path) -> None:
    """Nor what a link points at."""
    target, link, directory = tmp_path / "target", tmp_path / NAME, tmp_path / f"{8:032x}.spool"
    target.touch()
    link.symlink_to(target)
    directory.mkdir()
    assert not any(remove_abandoned(path, min_age=-1) for path in (link, directory))
    assert target.exists()
    assert link.is_symlink()


def test_a_spool_of_this_process_is_left_alone_and_keeps_its_lock(tmp_path: Path) -> None:
    """Opening it a second time would give up the lock."""
    file = SpoolFile(tmp_path / NAME, capacity=0, description=HELLO)
    file.map[:8] = bytes(8)
    assert not remove_abandoned(file.path, min_age=-1)
    assert file.path.exists()
    file.close(unlink=True)


def test_a_producer_whose_file_is_taken_for_abandoned_before_it_has_locked_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped for long in the one instant in which it cannot be told from a dead one; it makes a spool somewhere else."""
    path = tmp_path / NAME
    lock = spool_file.fcntl.lockf

    def lock_late(descriptor: int, operation: int) -> None:
        path.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(spool_file.fcntl, "lockf", lock_late)
    with pytest.raises(OSError, match=r"No such file|abandoned"):
        SpoolFile(path, capacity=0, description=HELLO)
    assert not spool_file._OPEN
    monkeypatch.undo()
    SpoolFile(path, capacity=0, description=HELLO).close(unlink=True)
