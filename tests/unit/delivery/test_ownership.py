"""Who may deliver to a sink."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time

import msgspec
import pytest

from accelbus import host
from accelbus.config import Tuning
from accelbus.delivery import ownership
from accelbus.delivery.ownership import Owner, claim, is_live, read_owner
from accelbus.errors import OwnershipError

TUNING = Tuning(lease_expires=15.0)


def age(directory, seconds):
    """Make the lease look as if it was renewed so long ago."""
    then = time.time() - seconds
    for path in (directory / "owner.json", *(directory / "generations").iterdir()):
        os.utime(path, (then, then))


def rewrite(directory, **changes):
    """Make the owner somebody else."""
    path = directory / "owner.json"
    owner = msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=Owner), **changes)
    path.write_bytes(msgspec.json.encode(owner))


def elsewhere(directory):
    rewrite(directory, host="node7", boot_id="another", pid=4711)


class TestClaim:
    def test_the_first_claimer_owns(self, tmp_path):
        """And the record says who it is."""
        lease = claim(tmp_path, tuning=TUNING, purpose="bus")
        owner = read_owner(tmp_path)
        assert owner == lease.owner
        assert (owner.generation, owner.pid, owner.host, owner.purpose) == (1, os.getpid(), host.name(), "bus")

    def test_a_live_lease_is_respected_and_its_owner_named(self, tmp_path):
        """Whoever wants the sink learns whom to ask."""
        claim(tmp_path, tuning=TUNING, purpose="bus")
        elsewhere(tmp_path)
        with pytest.raises(OwnershipError, match="bus process 4711 on node7"):
            claim(tmp_path, tuning=TUNING, purpose="sync")

    def test_a_lease_that_was_not_renewed_is_replaced(self, tmp_path):
        """Whatever became of its owner on another host."""
        old = claim(tmp_path, tuning=TUNING, purpose="bus")
        elsewhere(tmp_path)
        age(tmp_path, 16)
        new = claim(tmp_path, tuning=TUNING, purpose="sync")
        assert new.generation == 2
        assert not old.is_held()
        assert new.is_held()

    def test_a_lease_that_was_deleted_is_still_held_and_is_written_again(self, tmp_path):
        """Whoever deletes the directory takes nothing over; others are kept out as before."""
        directory = tmp_path / "sink"
        lease = claim(directory, tuning=TUNING, purpose="bus")
        shutil.rmtree(directory)
        assert lease.is_held()
        assert lease.renew()
        assert read_owner(directory) == lease.owner
        with pytest.raises(OwnershipError, match=f"bus process {os.getpid()}"):
            claim(directory, tuning=TUNING, purpose="sync")

    def test_a_lease_is_lost_to_whoever_claims_after_it_was_deleted(self, tmp_path):
        """Although their numbers begin from one again: at most one delivers."""
        claim(tmp_path / "sink", tuning=TUNING, purpose="bus").release()
        old = claim(tmp_path / "sink", tuning=TUNING, purpose="bus")
        shutil.rmtree(tmp_path / "sink")
        new = claim(tmp_path / "sink", tuning=TUNING, purpose="sync")
        assert new.generation < old.generation
        assert not old.renew()
        assert new.renew()

    def test_an_owner_whose_process_is_gone_is_replaced_at_once(self, tmp_path):
        """On the same host nobody waits for a lease to expire."""
        child = multiprocessing.get_context("spawn").Process(target=claim, args=(tmp_path,), kwargs={"tuning": TUNING, "purpose": "bus"})
        child.start()
        child.join()
        assert read_owner(tmp_path).pid == child.pid
        assert claim(tmp_path, tuning=TUNING, purpose="bus").generation == 2

    def test_a_process_with_that_number_elsewhere_proves_nothing(self, tmp_path):
        """Pids mean something only within one boot and one pid namespace."""
        claim(tmp_path, tuning=TUNING, purpose="bus")
        for change in ({"boot_id": "before the reboot"}, {"pid_namespace": "pid:[42]"}):
            rewrite(tmp_path, pid=2**22 + 1, **change)
            with pytest.raises(OwnershipError):
                claim(tmp_path, tuning=TUNING, purpose="bus")

    def test_take_over_replaces_a_live_lease(self, tmp_path):
        """The user knows better."""
        old = claim(tmp_path, tuning=TUNING, purpose="bus")
        new = claim(tmp_path, tuning=TUNING, purpose="sync", take_over=True)
        assert new.is_held()
        assert not old.renew()

    def test_a_released_sink_is_free(self, tmp_path):
        """For the next one at once."""
        claim(tmp_path, tuning=TUNING, purpose="bus").release()
        assert claim(tmp_path, tuning=TUNING, purpose="sync").generation == 2

    def test_a_fenced_owner_releases_nothing(self, tmp_path):
        """It must not free the sink under its successor."""
        old = claim(tmp_path, tuning=TUNING, purpose="bus")
        claim(tmp_path, tuning=TUNING, purpose="sync", take_over=True)
        old.release()
        with pytest.raises(OwnershipError):
            claim(tmp_path, tuning=TUNING, purpose="bus")

    def test_a_damaged_record_does_not_free_a_live_sink(self, tmp_path):
        """The generation's own file stands in for it."""
        claim(tmp_path, tuning=TUNING, purpose="bus")
        (tmp_path / "owner.json").write_bytes(b"\0garbage")
        with pytest.raises(OwnershipError, match="bus process"):
            claim(tmp_path, tuning=TUNING, purpose="sync")

    def test_an_empty_claim_is_somebodys(self, tmp_path):
        """Between creation and content, on a file system without hard links."""
        (tmp_path / "generations").mkdir()
        (tmp_path / "generations" / "1").touch()
        with pytest.raises(OwnershipError):
            claim(tmp_path, tuning=TUNING, purpose="sync")

    def test_it_works_without_hard_links(self, tmp_path, monkeypatch):
        """Some network and user-space file systems have none."""

        def no_link(*_):
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", no_link)
        claim(tmp_path, tuning=TUNING, purpose="bus")
        elsewhere(tmp_path)
        with pytest.raises(OwnershipError):
            claim(tmp_path, tuning=TUNING, purpose="sync")


class TestRenewal:
    def test_a_renewed_lease_stays_live(self, tmp_path):
        """Its age starts again."""
        lease = claim(tmp_path, tuning=TUNING, purpose="bus")
        age(tmp_path, 100)
        assert lease.renew()
        assert is_live(tmp_path, lease.owner, tuning=TUNING)

    def test_an_overtaken_owner_cannot_renew_over_its_successor(self, tmp_path):
        """Even if its record was the last to be written, the newest generation owns."""
        old = claim(tmp_path, tuning=TUNING, purpose="bus")
        new = claim(tmp_path, tuning=TUNING, purpose="sync", take_over=True)
        ownership._write_owner(tmp_path, old.owner)
        assert read_owner(tmp_path) == new.owner
        assert not old.is_held()

    def test_the_age_is_the_file_systems(self, tmp_path, monkeypatch):
        """Hosts whose clocks differ by an hour agree on who owns the sink."""
        lease = claim(tmp_path, tuning=TUNING, purpose="bus")
        elsewhere(tmp_path)
        monkeypatch.setattr(time, "time", lambda: 1e9)
        monkeypatch.setattr(time, "time_ns", lambda: 10**18)
        assert is_live(tmp_path, read_owner(tmp_path), tuning=TUNING)
        assert lease.is_held()


class TestRaces:
    def test_one_of_many_simultaneous_claimers_wins(self, tmp_path):
        """The others are told who was quicker."""
        won, lost = [], []
        barrier = threading.Barrier(8)

        def try_it():
            barrier.wait()
            try:
                won.append(claim(tmp_path, tuning=TUNING, purpose="sync"))
            except OwnershipError as error:
                lost.append(error)

        threads = [threading.Thread(target=try_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert len(lost) == 7
        assert won[0].is_held()

    def test_simultaneous_take_overs_leave_one_owner(self, tmp_path):
        """However many think they know better."""
        claim(tmp_path, tuning=TUNING, purpose="bus")
        won, lost = [], []
        barrier = threading.Barrier(8)

        def try_it():
            barrier.wait()
            try:
                won.append(claim(tmp_path, tuning=TUNING, purpose="sync", take_over=True))
            except OwnershipError as error:
                lost.append(error)

        threads = [threading.Thread(target=try_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(lease.is_held() for lease in won) == 1
        assert len(won) + len(lost) == 8

    def test_a_stale_claimer_does_not_win_a_number_that_was_pruned(self, tmp_path, monkeypatch):
        """It slept while two others came and went."""
        claim(tmp_path, tuning=TUNING, purpose="a").release()
        newest = ownership._newest
        answers = iter([1])
        monkeypatch.setattr(ownership, "_newest", lambda directory: next(answers, None) or newest(directory))
        claim_two = ownership._create(tmp_path / "generations" / "5", ownership._this_process(5, "b"))
        assert claim_two
        with pytest.raises(OwnershipError):
            claim(tmp_path, tuning=TUNING, purpose="c")
