"""Files and directories of the user's, taken as they are now."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from accelbus.blobs import BlobStore, copying, whole
from accelbus.errors import CorruptDataError

KIB = 1024


@pytest.fixture
def small_bounds(monkeypatch):
    """Bounds that files of a few KiB reach, on a file system that cannot clone."""
    monkeypatch.setattr(copying, "COPIED_BYTES", 10 * KIB)
    monkeypatch.setattr(copying, "_clone", lambda source, target: False)


@pytest.fixture
def no_links(monkeypatch):
    """The run directory is on another file system."""

    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)


def store_in(path: Path, **arguments) -> BlobStore:
    return BlobStore(path / "blobs", "me", **{"quota": 1 << 30, **arguments})


def test_a_file_may_be_deleted_or_replaced_right_after_the_call(tmp_path, small_bounds):
    """Small ones are copied, large ones linked; the small also stand being written to."""
    store = store_in(tmp_path)
    kept = {}
    for name, size in (("small", KIB), ("large", 20 * KIB)):
        path = tmp_path / name
        path.write_bytes(os.urandom(size))
        kept[store.adopt(path).name] = path.read_bytes()
        if name == "small":
            path.write_bytes(b"another")
        path.unlink()
    for name, content in kept.items():
        assert whole(tmp_path / "blobs" / name).read_bytes() == content


def test_of_a_directory_the_small_files_are_copied_and_the_large_ones_linked(tmp_path, small_bounds):
    """So that what is rewritten in place, a small state file, is kept as it was, and the call takes no time for the rest."""
    folder = tmp_path / "checkpoint"
    (folder / "part").mkdir(parents=True)
    for name, size in (("state.json", 100), ("part/a.bin", 8 * KIB), ("part/b.bin", 9 * KIB), ("part/c.bin", 9 * KIB)):
        (folder / name).write_bytes(os.urandom(size))
    reference = store_in(tmp_path).adopt(folder)
    (folder / "state.json").write_bytes(b"changed")
    taken = tmp_path / "blobs" / reference.name
    links = {path.name: path.stat().st_nlink for path in taken.rglob("*") if path.is_file()}
    assert links == {"state.json": 1, "a.bin": 1, "b.bin": 2, "c.bin": 2}
    assert (taken / "state.json").stat().st_size == 100
    assert reference.size == 100 + 26 * KIB


def test_a_large_file_on_another_file_system_is_copied_behind_the_callers_back(tmp_path, small_bounds, no_links, monkeypatch):
    """The call returns at once, the original may go; readers wait until all of it is there, and so does the end of the run."""
    monkeypatch.setattr(copying, "_CHUNK", KIB)
    content = os.urandom(50 * KIB)
    path = tmp_path / "weights"
    path.write_bytes(content)
    store = store_in(tmp_path)
    reference = store.adopt(path)
    path.unlink()
    assert not store.settle(0)
    assert whole(tmp_path / "blobs" / reference.name, poll=0.01).read_bytes() == content
    (tmp_path / "again").mkdir()
    store = store_in(tmp_path / "again")
    path.write_bytes(content)
    reference = store.adopt(path)
    store.claim([reference.name])
    assert store.settle(0, copies=10)
    assert sorted(file.name for file in (tmp_path / "again" / "blobs").iterdir()) == [reference.name]


def test_the_large_files_of_a_directory_on_another_file_system_follow(tmp_path, small_bounds, no_links):
    """Those beyond what a call may copy; the directory is whole when all are there."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    contents = {f"{number}.bin": os.urandom(8 * KIB) for number in range(4)}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    store = store_in(tmp_path)
    reference = store.adopt(folder)
    shutil.rmtree(folder)
    taken = whole(tmp_path / "blobs" / reference.name, poll=0.01)
    assert {path.name: path.read_bytes() for path in taken.iterdir()} == contents


def test_a_copy_that_nobody_finishes_is_no_artifact(tmp_path):
    """The process that copied was killed: readers say so after a while, and do not take a part for the whole."""
    part = tmp_path / "me-1"
    part.write_bytes(b"half")
    (tmp_path / "me-1.part").touch()
    with pytest.raises(CorruptDataError, match="is not complete: the process that copied it has ended"):
        whole(part, stalled=0.05, poll=0.01)
    with pytest.raises(CorruptDataError, match="is gone"):
        whole(tmp_path / "me-2")


def test_a_copy_that_fails_leaves_no_part(tmp_path, small_bounds, no_links, monkeypatch):
    """A full disk behind the caller's back is said, counted, and leaves nothing that looks like a file of the user's."""
    lost = []
    store = store_in(tmp_path, on_lost=lost.append)
    (tmp_path / "weights").write_bytes(b"x" * 20 * KIB)

    def full(later, tick):
        later.target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("accelbus.blobs.settling.copy_later", full)
    reference = store.adopt(tmp_path / "weights")
    store.claim([reference.name])
    assert store.settle(10, copies=10)
    assert lost == [f"{reference.name} could not be copied: [Errno 28] No space left on device"]
    assert list((tmp_path / "blobs").iterdir()) == []


def test_clones_are_used_where_the_file_system_can(tmp_path, monkeypatch):
    """A clone is a copy: the original may also be written to."""
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(2 << 20))
    target = tmp_path / "target"
    cloned = copying._clone(path, target)
    assert cloned == target.exists()
    if cloned:
        before = target.read_bytes()
        path.write_bytes(b"changed")
        assert target.read_bytes() == before


def test_what_cannot_be_read_takes_no_room(tmp_path):
    """A missing file, and a directory one of whose files cannot be read, leave nothing and cost no quota."""
    store = store_in(tmp_path, quota=1000)
    with pytest.raises(FileNotFoundError):
        store.adopt(tmp_path / "missing")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(b"x" * 600)
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="named pipe"):
        store.adopt(folder)
    (folder / "pipe").unlink()
    store.adopt(folder)


def test_a_call_takes_no_longer_for_more(tmp_path, no_links):
    """200 MiB on another file system: the caller waits for the first 64 at most."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for number in range(4):
        with (folder / f"{number}.bin").open("wb") as file:
            file.truncate(50 << 20)
    store = store_in(tmp_path)
    began = time.monotonic()
    reference = store.adopt(folder)
    elapsed = time.monotonic() - began
    store.claim([reference.name])
    assert store.settle(60, copies=60)
    assert sum(path.stat().st_size for path in (tmp_path / "blobs" / reference.name).iterdir()) == 200 << 20
    assert elapsed < time.monotonic() - began
