"""Files of one producer: bounds, durability behind its back, and what becomes of those that no event names."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from accelbus.blobs import BlobStore, Reference, read, settling, store as store_module
from accelbus.errors import CorruptDataError


def until(condition, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def slow_disk(monkeypatch):
    """An ``fsync`` that waits for the event that is returned."""
    released = threading.Event()
    sync = os.fsync

    def slow(descriptor):
        assert released.wait(10)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    yield released
    released.set()


def made(path: Path, **arguments) -> BlobStore:
    return BlobStore(path / "blobs", "me", **{"quota": 1000, **arguments})


def names(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "blobs").iterdir())


def test_what_is_kept_can_be_read_and_is_durable_soon(tmp_path):
    """The caller waits for the system only; the disk is waited for elsewhere."""
    store = made(tmp_path)
    reference = store.keep(b"payload")
    assert read(reference, tmp_path / "blobs") == b"payload"
    store.claim([reference.name])
    assert store.settle(10)
    assert store.safe_seq is None


@pytest.mark.parametrize("keeps_open", [False, True])
def test_a_slow_disk_holds_up_nobody_and_its_events_are_not_safe(tmp_path, slow_disk, keeps_open):
    """Writing returns; until the file is durable, events from its own on are not reported safe."""
    newest = 41
    store = made(tmp_path, last_seq=lambda: newest, keeps_open=lambda _: keeps_open)
    began = time.monotonic()
    reference = store.keep(b"x" * 100)
    newest = 42  # the event that names it
    store.keep(b"y")
    assert time.monotonic() - began < 1
    assert read(reference, tmp_path / "blobs") == b"x" * 100
    assert store.safe_seq == 41
    assert not store.settle(0.05)
    slow_disk.set()
    assert store.settle(10)
    assert store.safe_seq is None


def test_what_waits_for_the_disk_is_bounded(tmp_path, slow_disk):
    """Beyond the bound a file is refused: waiting would be training's."""
    store = made(tmp_path, backlog=150)
    store.keep(b"x" * 100)
    with pytest.raises(OSError, match="150 bytes of large values wait for the disk"):
        store.keep(b"x" * 100)
    slow_disk.set()
    store.claim(list(store.unclaimed))
    assert store.settle(10)
    store.keep(b"x" * 100)


def test_where_nobody_counts_on_a_sync_many_files_do_not_wait_for_theirs(tmp_path, monkeypatch):
    """A disk that syncs fifty files a second must not be why images are dropped; the end waits for none of them."""
    monkeypatch.setattr(settling, "_MANY", 3)
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    store = made(tmp_path, must_sync=False, backlog=1000)
    references = [store.keep(b"x" * 10) for _ in range(20)]
    store.claim([reference.name for reference in references])
    assert store.settle(0)
    until(lambda: store.safe_seq is None)
    assert len(names(tmp_path)) == 20
    assert 0 < len(synced) < 20


def test_a_disk_that_fails_is_said_and_holds_up_nothing(tmp_path, monkeypatch):
    """An fsync is tried once; what it was for may be lost with the machine."""
    lost = []
    store = made(tmp_path, on_lost=lost.append)

    def broken(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    reference = store.keep(b"x")
    store.claim([reference.name])
    assert store.settle(10)
    assert lost == [f"{reference.name} is written, but not known to be on disk: [Errno 5] Input/output error"]
    assert read(reference, tmp_path / "blobs") == b"x"


def test_the_quota_is_free_again_when_a_file_is_discarded(tmp_path):
    """An event that was dropped takes its file with it, and no other one."""
    store = made(tmp_path)
    kept, dropped = store.keep(b"x" * 600), store.keep(b"y" * 400)
    with pytest.raises(OSError, match="quota of 1000 bytes"):
        store.keep(b"z")
    store.claim([kept.name, dropped.name])
    store.discard([dropped.name, "somebody-elses-1", "me-../../x"])
    assert names(tmp_path) == [kept.name]
    store.keep(b"z" * 400)
    with pytest.raises(CorruptDataError):
        read(dropped, tmp_path / "blobs")


def test_what_no_event_names_is_removed_at_the_end(tmp_path):
    """A call that failed after it had written a file leaves nothing behind."""
    store = made(tmp_path)
    claimed, _ = store.keep(b"x"), store.keep(b"y")
    store.claim([claimed.name])
    assert store.settle(10)
    assert names(tmp_path) == [claimed.name]


def test_what_no_event_names_is_removed_after_a_while(tmp_path, monkeypatch):
    """Counted in looks of the thread, so that a process that was stopped does not lose a file it is about to name."""
    monkeypatch.setattr(store_module, "_UNCLAIMED_LOOKS", 3)
    monkeypatch.setattr(settling, "_INTERVAL", 0.001)
    store = made(tmp_path)
    store.keep(b"x")
    until(lambda: store._written == 0)
    assert names(tmp_path) == []


def test_nothing_is_removed_while_a_call_is_at_work(tmp_path, monkeypatch):
    """A call may write one file, and then take minutes for the next."""
    monkeypatch.setattr(store_module, "_UNCLAIMED_LOOKS", 3)
    monkeypatch.setattr(settling, "_INTERVAL", 0.001)
    store = made(tmp_path)
    first = store.keep(b"x")
    looks = threading.Event()

    def slowly(source, target):
        until(lambda: store._looks > 100 or looks.wait(0.2))
        Path(target).write_bytes(b"big")
        return []

    monkeypatch.setattr(store_module, "take", slowly)
    (tmp_path / "file").write_bytes(b"big")
    looks.set()
    second = store.adopt(tmp_path / "file")
    assert names(tmp_path) == [first.name, second.name]


def test_a_forked_child_writes_nothing(tmp_path):
    """The names are the parent's: one of the child's would take the place of one of its own."""
    store = made(tmp_path)
    reads, writes = os.pipe()
    if not (pid := os.fork()):
        try:
            store.keep(b"child")
        except OSError as error:
            os.write(writes, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"belongs to another process" in os.read(reads, 1000)
    assert isinstance(store.keep(b"parent"), Reference)


def test_threads_and_handlers_share_the_quota(tmp_path):
    """Many threads at once: each file has a name of its own, and the sum is right."""
    store = made(tmp_path, quota=100_000)
    threads = [threading.Thread(target=lambda: [store.keep(b"x" * 10) for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(tmp_path)) == 400
    assert store._written == 4000
    store.claim(list(store.unclaimed))
    assert store.settle(20)
