"""`accelbus salvage`."""

from __future__ import annotations

from accelbus.reader.audit import audit


def test_spools_are_brought_into_their_runs(accelbus, run):
    """A line each: how many events, which rank, which run."""
    path = run.producer().log(3).spool()
    printed = accelbus("salvage", path)
    assert printed == (0, f"{path}: 4 events of rank 0 brought into {run.path}; removed\n", "")
    assert audit(run.dir).producers[0].journal == 4


def test_a_spool_that_cannot_be_read_is_said_and_the_code_is_1(accelbus, run, tmp_path):
    """The others are brought in."""
    good = run.producer().log(3).spool()
    printed = accelbus("salvage", tmp_path / "nope", good)
    assert printed.code == 1
    assert f"{tmp_path / 'nope'}: not salvaged: No such file or directory\n" in printed.out
    assert "4 events of rank 0" in printed.out


def test_a_directory_without_spools_is_no_error(accelbus, tmp_path):
    """It is said."""
    assert accelbus("salvage", tmp_path) == (0, "no spool files there\n", "")
