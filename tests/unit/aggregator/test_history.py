"""What the journal knows about producers."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelbus import host
from accelbus.aggregator.history import recall
from accelbus.aggregator.roster import Member, Roster
from accelbus.config import Tuning
from accelbus.control import Hello
from accelbus.events import ProducerJoined, ProducerState, RunClosed
from tests.support.journals import LAUNCH, events_frame, pack, records_frame, start, uuid, written

HOST, ELSEWHERE = "here", "elsewhere"


def joined(number: int, rank: int, attempt: int, *, host: str = HOST, launch: bytes = LAUNCH) -> ProducerJoined:
    return ProducerJoined(1, uuid(number), rank, 2, attempt, "trainer", host, 100 + number, launch)


def hello(number: int, rank: int, launch: bytes) -> Hello:
    return Hello(
        producer=uuid(number), run_id="run", run_dir="/run", rank=rank, world_size=2, local_rank=rank, local_world_size=2, host=HOST, pid=1,
        role="trainer", launch=launch, launcher="", base_seq=1, last_seq=0,
    )  # fmt: skip


def recalled(journal: Path) -> dict[bytes, Member]:
    return {member.producer: member for member in recall(journal, tuning=Tuning()).members}


def test_producers_are_recalled_with_their_attempts_ends_and_events(tmp_path: Path) -> None:
    """From records where a bus process wrote some, else from what the producers say of themselves."""
    written(
        tmp_path / "bus-a",
        records_frame(uuid(90), 1, joined(1, 0, 3), joined(2, 1, 3)),
        events_frame(uuid(1), 1, 4),
        events_frame(uuid(1), 7, 9),
        records_frame(uuid(90), 3, ProducerState(2, uuid(2), "dead", 12, "killed", {"full": 2})),
    ).close()
    written(tmp_path / "spill-b", pack([start(0, launch=b"M" * 16)], producer=uuid(3), first_seq=1, launch=b"M" * 16)).close()
    members = recalled(tmp_path)
    assert {producer: (member.rank, member.attempt) for producer, member in members.items()} == {
        uuid(1): (0, 3),
        uuid(2): (1, 3),
        uuid(3): (0, 4),
    }
    assert (members[uuid(1)].through_seq, members[uuid(1)].last_seq, members[uuid(1)].state) == (4, 9, "alive")
    assert (members[uuid(2)].state, members[uuid(2)].status, members[uuid(2)].last_seq, members[uuid(2)].dropped) == (
        "dead",
        "killed",
        12,
        {"full": 2},
    )


def test_another_host_goes_on_with_the_next_attempt_and_waits_for_nobody_elsewhere(tmp_path: Path) -> None:
    """A requeued job may land on another node: its first attempt there is not the run's first."""
    written(tmp_path / "bus-a", records_frame(uuid(90), 1, joined(1, 0, 0, host=ELSEWHERE), joined(2, 1, 0, host=ELSEWHERE))).close()
    roster = Roster(tmp_path / "producers.json")
    assert roster.is_new
    roster.recall(recall(tmp_path, tuning=Tuning()).members)
    assert not roster.members
    member, record = roster.join(hello(3, 0, b"N" * 16))
    assert member.attempt == 1
    assert record is not None
    roster.save()
    assert not Roster(tmp_path / "producers.json").is_new


def test_it_is_known_whether_the_run_has_ended_before(tmp_path: Path) -> None:
    """Also when somebody joined since: sinks may have seen that end."""
    writer = written(tmp_path / "bus-a", records_frame(uuid(90), 1, joined(1, 0, 0)))
    assert not recall(tmp_path, tuning=Tuning()).was_closed
    writer.append([records_frame(uuid(90), 2, RunClosed(1, "killed"), joined(2, 0, 1))])
    assert recall(tmp_path, tuning=Tuning()).was_closed


def test_a_producer_that_was_known_from_its_spill_keeps_its_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes after the bus process finds it by the list: it may lie in a directory that nobody else knows of."""
    first = start(0)
    monkeypatch.setattr(host, "name", lambda: first.host)
    written(tmp_path / "spill-b", pack([first], producer=uuid(3), first_seq=1)).close()
    roster = Roster(tmp_path / "producers.json")
    roster.recall(recall(tmp_path, tuning=Tuning()).members)
    assert list(roster.members) == [uuid(3)]
    said = hello(3, 0, LAUNCH)
    said.spool = "/spools/3.spool"
    member, _ = roster.join(said)
    assert member.spool == "/spools/3.spool"
