"""What is shown of a sink."""

from __future__ import annotations

from accelbus.delivery.status import RankCounts, SinkStatus, decode_line, encode_line, read_status, write_status


def test_a_status_travels_as_one_line():
    """Between worker and supervisor, and in files."""
    status = SinkStatus(sink="wandb", state="blocked", ranks={0: RankCounts(read=3, delivered=1, pending=2)}, last_error="a\nb")
    line = encode_line(status)
    assert b"\n" not in line
    assert decode_line(line) == status


def test_the_last_status_stays_behind(tmp_path):
    """For who asks when the processes are gone."""
    status = SinkStatus(sink="jsonl", state="finished", url="/runs/x/metrics.jsonl")
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status


def test_an_unreadable_status_is_none(tmp_path):
    """It is for people; nothing depends on it."""
    assert read_status(tmp_path) is None
    (tmp_path / "status.json").write_bytes(b"{")
    assert read_status(tmp_path) is None


def test_the_sum_over_ranks():
    """One line for a person."""
    status = SinkStatus(sink="x", ranks={0: RankCounts(read=3, delivered=1, pending=2), 1: RankCounts(read=1, late=1, filtered=1)})
    assert status.values == RankCounts(read=4, delivered=1, pending=2, filtered=1, late=1)
