"""Which timestamp a value gets, so that MLflow stores each point once and shows the newest value."""

from __future__ import annotations

import errno
import math
import os

import pytest
from hypothesis import given, settings, strategies as st

from accelbus_sinks._mlflow_points import RecentPoints


class Store:
    """What MLflow's store does: keeps each (key, timestamp, step, value) once, newest by timestamp."""

    def __init__(self):
        self.kept = set()

    def log(self, points, rows, fails=False):
        rows = [(step, time, values) for step, time, values in rows]
        stamps = points.timestamps(rows)
        for number, ((step, _, values), stamped) in enumerate(zip(rows, stamps, strict=True)):
            if fails and number == len(rows) // 2:
                return
            self.kept |= {(key, stamped[key], step, value) for key, value in values.items()}
        points.settle()

    def newest(self):
        return {(key, step): value for key, _, step, value in sorted(self.kept)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "points"


def test_a_point_keeps_the_time_of_its_row(path):
    """What is new is stored with the rank's own clock."""
    assert RecentPoints(path).timestamps([(1, 1000, {"loss": 1.0}), (2, 1000, {"loss": 1.0, "lr": 0.5})]) == [
        {"loss": 1000},
        {"loss": 1000, "lr": 1000},
    ]


def test_a_changed_value_is_later_than_the_one_before(path):
    """Also when its row carries the same time, or an earlier one."""
    points = RecentPoints(path)
    stamps = points.timestamps([(1, 1000, {"loss": 1.0}), (1, 1000, {"loss": 2.0}), (1, 900, {"loss": 1.0}), (1, 5000, {"loss": 3.0})])
    assert [stamp["loss"] for stamp in stamps] == [1000, 1001, 1002, 5000]


def test_a_call_that_failed_is_repeated_with_the_same_timestamps(path):
    """A value that changes back within the call too."""
    rows = [(1, 1000, {"loss": 1.0}), (1, 1000, {"loss": 2.0}), (1, 1000, {"loss": 1.0})]
    points = RecentPoints(path)
    first = points.timestamps(rows)
    assert points.timestamps(rows) == first
    points.settle()
    assert points.timestamps([(1, 1000, {"loss": 2.0})]) == [{"loss": 1003}]


def test_what_a_killed_process_logged_comes_again_with_its_timestamps(path):
    """However the rows are grouped now, and whatever time that gives them; NaN is a value like others."""
    before = RecentPoints(path)
    stamps = before.timestamps([(1, 1000, {"loss": 1.0}), (1, 1200, {"eval": math.nan}), (1, 1300, {"loss": 2.0})])
    assert RecentPoints(path).timestamps([(1, 1300, {"loss": 2.0, "eval": math.nan})]) == [{"loss": 1300, "eval": 1200}]
    assert RecentPoints(path).timestamps([(1, 1, {"loss": 1.0}), (1, 1, {"loss": 2.0})]) == [stamps[0], stamps[2]]


def test_a_value_that_changed_since_the_crash_is_newer(path):
    """Steps that come again with other values hide what the killed process logged."""
    RecentPoints(path).timestamps([(1, 1000, {"loss": -1.0})])
    after = RecentPoints(path)
    assert after.timestamps([(1, 1000, {"loss": -5.0})]) == [{"loss": 1001}]


def test_a_torn_end_costs_what_it_speaks_of(path):
    """What was not written whole was not logged; the file goes on behind what is whole."""
    RecentPoints(path).timestamps([(1, 1000, {"loss": 1.0})])
    whole = path.read_bytes()
    for torn in (b"\x09", b"\x09\0\0\0", b"\x09\0\0\0abc", b"\0" * 20):
        path.write_bytes(whole + torn)
        again = RecentPoints(path)
        again.timestamps([(2, 2000, {"loss": 2.0})])
        assert RecentPoints(path).timestamps([(1, 1, {"loss": 1.0}), (2, 1, {"loss": 2.0})]) == [{"loss": 1000}, {"loss": 2000}]


def test_a_full_disk_refuses_and_forgets_nothing(path, monkeypatch):
    """The call raises, the next one writes what the first could not."""
    points = RecentPoints(path)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as context:
        context.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="full"):
            points.timestamps([(1, 1000, {"loss": 1.0})])
    assert points.timestamps([(1, 2000, {"loss": 1.0})]) == [{"loss": 1000}]
    assert RecentPoints(path).timestamps([(1, 3000, {"loss": 1.0})]) == [{"loss": 1000}]


def test_memory_and_file_are_bounded(path, monkeypatch):
    """Old points are forgotten, and the file is replaced by what is still known."""
    monkeypatch.setattr("accelbus_sinks._mlflow_points._FILE_BYTES", 2000)
    points = RecentPoints(path, values_kept=10)
    sizes = []
    for step in range(500):
        points.timestamps([(step, 1000, {"loss": 1.0, "lr": 0.5})])
        sizes.append(path.stat().st_size)
    assert max(sizes) < 3000
    assert RecentPoints(path).timestamps([(499, 1, {"loss": 1.0}), (3, 1, {"loss": 1.0})]) == [{"loss": 1000}, {"loss": 1}]


_VALUES = st.dictionaries(st.sampled_from("ab"), st.sampled_from([1.0, 2.0, 3.0]), min_size=1)
_ROWS = st.lists(st.tuples(st.integers(0, 2), _VALUES), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(rows=_ROWS, cursor=st.integers(0, 12), killed=st.integers(0, 12), fails=st.booleans(), size=st.integers(1, 4))
def test_any_kill_leaves_each_point_once_and_the_newest_value(tmp_path_factory, rows, cursor, killed, fails, size):
    """Rows fed to a process that dies, and again from the cursor to the next one, store what one process would have stored."""
    rows = [(step, 1000 + number, values) for number, (step, values) in enumerate(rows)]
    cursor, killed = sorted((min(cursor, len(rows)), min(killed, len(rows))))
    path = tmp_path_factory.mktemp("points") / "points"
    once, store = Store(), Store()
    once.log(RecentPoints(None), rows)
    before = RecentPoints(path)
    store.log(before, rows[:cursor])
    position = before.position
    store.log(before, rows[cursor:killed], fails=fails)
    after = RecentPoints(path, position)
    for begin in range(cursor, len(rows), size):
        store.log(after, rows[begin : begin + size])
    assert store.newest() == once.newest()
    assert store.kept == once.kept
