"""A file that grows under disks that fill up and syncs that fail."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys

import pytest

from accelbus_sinks import _append_file
from accelbus_sinks._append_file import AppendFile, cut_back


@pytest.fixture
def file(tmp_path):
    """An open file with one durable line."""
    file = AppendFile(tmp_path / "file")
    file.append(b"first\n")
    file.flush()
    return file


def test_nothing_is_written_before_flush(file):
    """Appending touches memory only."""
    file.append(b"second\n")
    assert file.path.read_bytes() == b"first\n"
    file.flush()
    assert file.path.read_bytes() == b"first\nsecond\n"
    assert file.length == 13


def test_a_write_that_fails_half_way_leaves_no_torn_end(file, monkeypatch):
    """On a full disk nothing of the flush stays, everything is still pending, and it is written once when there is room."""
    real = os.write
    written = []

    def fill_up(descriptor, data):
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(real(descriptor, data[:3]))
        return written[0]

    monkeypatch.setattr(os, "write", fill_up)
    file.append(b"second\n")
    with pytest.raises(OSError, match="No space"):
        file.flush()
    assert file.path.read_bytes() == b"first\n"
    monkeypatch.setattr(os, "write", real)
    file.flush()
    assert file.path.read_bytes() == b"first\nsecond\n"


def test_bytes_whose_sync_failed_are_written_again(file, monkeypatch):
    """A second sync of the same pages would succeed without having them on disk."""
    monkeypatch.setattr(_append_file, "_sync", _raise(errno.EIO))
    file.append(b"second\n")
    with pytest.raises(OSError, match="Input/output"):
        file.flush()
    assert file.path.read_bytes() == b"first\n"
    assert file.length == 6
    monkeypatch.undo()
    written = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written.append(bytes(data)) or real(fd, data))
    file.flush()
    assert written == [b"second\n"]
    assert file.path.read_bytes() == b"first\nsecond\n"


def test_a_torn_end_that_cannot_be_cut_is_cut_before_the_next_write(file, monkeypatch, caplog):
    """When even the cut fails the file is repaired first thing at the next flush."""
    monkeypatch.setattr(_append_file, "_sync", _raise(errno.EIO))
    monkeypatch.setattr(os, "ftruncate", _raise(errno.EIO))
    file.append(b"second\n")
    with pytest.raises(OSError, match="Input/output"):
        file.flush()
    with pytest.raises(OSError, match="Input/output"):
        file.flush()
    assert "torn end" in caplog.text
    monkeypatch.undo()
    file.flush()
    assert file.path.read_bytes() == b"first\nsecond\n"


def test_a_full_disk_is_survived_when_there_is_room_again(tmp_path):
    """The same with a real limit of the operating system."""
    script = f"""
import resource, sys
sys.path[:] = {sys.path!r}
from pathlib import Path
from accelbus_sinks._append_file import AppendFile
file = AppendFile(Path({str(tmp_path / "file")!r}))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
file.append(b"x" * 4000); file.flush()
file.append(b"y" * 4000)
for _ in range(3):
    try:
        file.flush()
    except OSError:
        pass
    else:
        raise AssertionError("the limit does not work")
    assert file.path.stat().st_size == file.length == 4000
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
file.append(b"z"); file.close()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert (tmp_path / "file").read_bytes() == b"x" * 4000 + b"y" * 4000 + b"z"


def test_memory_is_bounded_without_flushes(tmp_path, monkeypatch):
    """Making room flushes once a lot is pending."""
    monkeypatch.setattr(_append_file, "BUFFER_BYTES", 10)
    file = AppendFile(tmp_path / "file")
    file.append(b"x" * 10)
    file.make_room()
    assert file.length == 0
    file.append(b"x")
    file.make_room()
    assert file.length == 11


def test_cutting_back_removes_what_came_later(file):
    """The file is as long as it was at the checkpoint, and the next owner appends there."""
    checkpoint = file.length
    file.append(b"second\n")
    file.close()
    cut_back(file.path, checkpoint)
    again = AppendFile(file.path)
    again.append(b"third\n")
    again.close()
    assert file.path.read_bytes() == b"first\nthird\n"


@pytest.mark.parametrize("content, said", [(b"fi", "has 2"), (None, "is gone")])
def test_a_file_shorter_than_its_checkpoint_is_reported(tmp_path, caplog, content, said):
    """Somebody else's doing: nothing is invented, the loss is said."""
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        cut_back(path, 6)
    assert said in caplog.text
    assert path.exists() == (content is not None)


def _raise(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail
