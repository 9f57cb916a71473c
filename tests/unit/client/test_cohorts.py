"""Launches told apart by who came before."""

import fcntl
import multiprocessing
import os
import uuid

import pytest

from accelbus import host
from accelbus.client import cohorts

KEY = ("slurm", "77.0")


def members(start=100):
    while True:
        yield start, start * 10
        start += 1


@pytest.fixture
def someone():
    return members()


def test_a_launch_has_one_place_per_rank(tmp_path, someone):
    """A place that is taken means a later launch; one that is free, the first launch without it."""
    order = ["rank 0", "rank 1", "rank 0", "rank 2", "rank 1", "rank 0"]
    found = [cohorts.join(KEY, place, next(someone), directory=tmp_path) for place in order]
    assert [cohort.ordinal for cohort in found] == [0, 0, 1, 0, 1, 2]
    assert len({cohort.nonce for cohort in found}) == 3


def test_the_same_member_gets_the_same_answer(tmp_path, someone):
    """Under any place: an agent's node rank may change."""
    one = next(someone)
    first = cohorts.join(KEY, "node 0", one, directory=tmp_path)
    cohorts.join(KEY, "node 0", next(someone), directory=tmp_path)
    assert cohorts.join(KEY, "node 1", one, directory=tmp_path) == first


def test_a_process_id_used_again_is_another_member(tmp_path):
    """A process is its id and its start time."""
    first = cohorts.join(KEY, "rank 0", (100, 1), directory=tmp_path)
    assert cohorts.join(KEY, "rank 0", (100, 2), directory=tmp_path) != first


def test_groups_do_not_mix(tmp_path, someone):
    """Another key, other launches."""
    first = cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path)
    other = cohorts.join(("slurm", "77.1"), "rank 0", next(someone), directory=tmp_path)
    assert (first.ordinal, other.ordinal) == (0, 0)
    assert first.nonce != other.nonce


def test_a_nonce_is_never_used_again(tmp_path, someone):
    """A registry that was wiped must not lead back to an old run."""
    first = cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    assert cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path).nonce != first.nonce


def test_a_launch_that_lost_a_member_takes_only_what_was_started_with_it(tmp_path, monkeypatch):
    """Whoever comes later belongs to the next launch; while all of it lives, it takes anybody."""
    dead = set()
    monkeypatch.setattr(host, "process_start_time", lambda pid: None if pid in dead else pid * 100)
    monkeypatch.setattr(host, "seconds_between", lambda one, other: abs(one - other) / 100)

    def joined(place, pid):
        return cohorts.join(KEY, place, (pid, pid * 100), gathered_within=5.0, directory=tmp_path).ordinal

    assert joined("rank 0", 100) == 0
    assert joined("rank 1", 200) == 0
    dead.add(100)
    assert joined("rank 2", 204) == 0
    assert joined("rank 3", 300) == 1
    assert cohorts.join(KEY, "rank 4", (400, 40_000), directory=tmp_path).ordinal == 0


def test_the_registry_stays_small(tmp_path, someone):
    """Old launches are forgotten, their numbers are not."""
    found = [cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path).ordinal for _ in range(200)]
    assert found == list(range(200))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 20_000


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff" * 100, b'{"launches": 3}'])
def test_a_registry_that_cannot_be_read_starts_anew(tmp_path, someone, content, caplog):
    """With a warning, and without losing the newcomer."""
    cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path)
    [file] = tmp_path.iterdir()
    file.write_bytes(content)
    assert cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path).ordinal == 0
    assert cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path).ordinal == 1
    assert "cannot be read" in caplog.text


def test_without_a_directory_everybody_is_in_the_first_launch(tmp_path, someone, caplog):
    """All ranks of a node see the same trouble, so they still agree; it is said."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    found = {cohorts.join(KEY, "rank 0", next(someone), directory=blocked) for _ in range(2)}
    assert found == {cohorts.Cohort(0, "")}
    assert "run_id=" in caplog.text


def test_a_stopped_holder_of_the_lock_does_not_hang_the_others(tmp_path, someone, monkeypatch, caplog):
    """The wait is bounded."""
    monkeypatch.setattr(cohorts, "_LOCK_WAIT", 0.02)
    cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path)
    [file] = tmp_path.iterdir()
    descriptor = os.open(file, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path) == cohorts.Cohort(0, "")
    finally:
        os.close(descriptor)
    assert "cannot tell this launch" in caplog.text


def test_a_link_in_place_of_the_registry_is_not_followed(tmp_path, someone):
    """Nobody makes us write somewhere else."""
    cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path)
    [file] = tmp_path.iterdir()
    target = tmp_path / "target"
    target.write_text("mine")
    file.unlink()
    file.symlink_to(target)
    assert cohorts.join(KEY, "rank 0", next(someone), directory=tmp_path) == cohorts.Cohort(0, "")
    assert target.read_text() == "mine"


def _join_at_once(directory, place, barrier, results):
    barrier.wait(30)
    results.put((place, cohorts.join(KEY, place, (os.getpid(), uuid.uuid4().int % 2**40), directory=directory)))


def test_processes_that_come_at_once_are_told_apart(tmp_path):
    """Four launches of two ranks in a race: every launch has every rank once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["accelbus.client.cohorts"])
    barrier, results = context.Barrier(8), context.Queue()
    processes = [context.Process(target=_join_at_once, args=(tmp_path, f"rank {number % 2}", barrier, results)) for number in range(8)]
    for process in processes:
        process.start()
    found = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join(30)
    assert sorted((place, cohort.ordinal) for place, cohort in found) == [
        (f"rank {rank}", launch) for rank in range(2) for launch in range(4)
    ]
    assert len({(cohort.ordinal, cohort.nonce) for _, cohort in found}) == 4
