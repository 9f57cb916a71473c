"""What a worker writes to its log."""

from __future__ import annotations

from accelbus.delivery.process import trim


def test_a_large_log_is_set_aside(tmp_path):
    """A tracker that prints for weeks fills no disk, and the last megabytes are kept."""
    log = tmp_path / "wandb.log"
    with open(log, "ab", buffering=0) as writer:
        writer.write(b"old\n" * 10)
        trim(log, 100)
        assert log.stat().st_size == 40
        trim(log, 30)
        writer.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "wandb.log.1").read_bytes() == b"old\n" * 10


def test_no_log_is_no_trouble(tmp_path):
    """The first worker has none."""
    trim(tmp_path / "none.log", 1)
