"""The file that says how far a sink has come."""

from __future__ import annotations

import msgspec
import pytest

from accelbus.config import Tuning
from accelbus.delivery.cursor import Cursor, Delivered, MergedConfig, OwedMedia, cursor_path, read_cursor, write_cursor
from accelbus.delivery.selection import SelectionState
from accelbus.errors import CursorError
from accelbus.journal.merge import JournalReader
from tests.support.journals import events_frame, everything, uuid, written
from tests.support.views import log, starts, view


def full_cursor(tmp_path) -> Cursor:
    written(tmp_path / "journal" / "bus-1", events_frame(uuid(1), 1, 9)).close()
    reader = JournalReader(tmp_path / "journal", tuning=Tuning())
    everything(reader)
    merged = view()
    merged.feed([*starts(2), log(0, 1, {"loss": 1.0, "note": "x", "list": [1, "a", None]}), log(1, 0, {"loss": 2})])
    return Cursor(
        generation=3,
        written_ns=5,
        reader=reader.state(),
        view=merged.state(),
        ranks={0: Delivered(4, 1), 1: Delivered(2, 0)},
        checkpoint={"file": "metrics.jsonl", "offset": 17},
        config=MergedConfig({"lr": 0.1, "nested": {"a": [1, None]}}, {"lr": (0, 0), "nested": (1, 2)}),
        closed_as="failed",
        dead_letters=1,
        dead_letter_bytes=99,
        url="https://example.org/run",
        media=[OwedMedia(0, 1, "samples", 5, msgspec.msgpack.Ext(2, b"image"), {1: 1})],
        selection=SelectionState({"loss": (1, 5)}, {"train/loss": "loss"}),
        definitions=MergedConfig({"eval/*": ["epoch", "max", ""]}, {"eval/*": (0, 0)}),
        summary=MergedConfig({"best": 0.9}, {"best": (0, 1)}),
        facts=MergedConfig({"git": {"commit": "abc"}}, {"git": (0, 0)}),
        console=["one", "two"],
    )


def test_a_cursor_comes_back_as_it_was_written(tmp_path):
    """All a fresh worker needs is in it."""
    cursor = full_cursor(tmp_path)
    write_cursor(tmp_path, cursor)
    assert read_cursor(tmp_path) == cursor


def test_there_is_none_at_first(tmp_path):
    """A sink that never delivered starts at the beginning."""
    assert read_cursor(tmp_path) is None


def test_damage_anywhere_is_found(tmp_path):
    """One flipped bit, or a cut at any place, never gives a wrong cursor."""
    write_cursor(tmp_path, full_cursor(tmp_path))
    path = cursor_path(tmp_path)
    good = path.read_bytes()
    for position in range(0, len(good), 7):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.raises(CursorError):
            read_cursor(tmp_path)
        path.write_bytes(good[:position])
        with pytest.raises(CursorError):
            read_cursor(tmp_path)


def test_a_failed_write_leaves_the_old_cursor(tmp_path, monkeypatch):
    """A full disk costs a repetition, not the place."""
    write_cursor(tmp_path, Cursor(generation=1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_cursor(tmp_path, Cursor(generation=2))
    assert read_cursor(tmp_path) == Cursor(generation=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["cursor.msgpack"]


class TestMergedConfig:
    def test_updates_merge_key_by_key(self):
        """A later value of the same rank replaces an earlier one."""
        config = MergedConfig()
        assert config.merge(0, 0, {"lr": 0.1, "seed": 1})
        assert config.merge(0, 0, {"lr": 0.2})
        assert config.values == {"lr": 0.2, "seed": 1}

    def test_nothing_new_is_no_change(self):
        """Every rank gives the same configuration; the tracker is told once."""
        config = MergedConfig()
        config.merge(0, 0, {"lr": 0.1})
        assert not config.merge(0, 0, {"lr": 0.1})
        assert not config.merge(0, 1, {"lr": 0.1})

    def test_the_lowest_rank_rules(self):
        """Whatever order the ranks' updates come in."""
        config = MergedConfig()
        config.merge(0, 1, {"seed": 1, "only": "one"})
        config.merge(0, 0, {"seed": 0})
        assert not config.merge(0, 1, {"seed": 1})
        assert config.values == {"seed": 0, "only": "one"}

    def test_a_newer_attempt_rules_over_an_older(self):
        """A resumed job may change its hyperparameters."""
        config = MergedConfig()
        config.merge(0, 0, {"lr": 0.1})
        config.merge(1, 1, {"lr": 0.2})
        assert not config.merge(0, 0, {"lr": 0.3})
        assert config.values == {"lr": 0.2}

    def test_nested_updates_merge_leaf_by_leaf(self):
        """A later update of one leaf leaves its neighbours; each leaf has its own giver; an empty mapping changes nothing."""
        config = MergedConfig()
        assert config.merge(0, 1, {"model": {"depth": 2, "width": 8}, "note": "a", "empty": {}}, nested=True)
        assert config.merge(0, 0, {"model": {"depth": 3}}, nested=True)
        assert not config.merge(0, 1, {"model": {"depth": 2}}, nested=True)
        assert not config.merge(0, 0, {"model": {}}, nested=True)
        assert config.values == {"model": {"depth": 3, "width": 8}, "note": "a", "empty": {}}

    def test_a_nested_value_takes_the_place_of_a_plain_one_and_back(self):
        """Whoever may speak for a key may change what kind of thing it is."""
        config = MergedConfig()
        config.merge(0, 0, {"optimizer": "adam"}, nested=True)
        assert config.merge(0, 0, {"optimizer": {"name": "adam"}}, nested=True)
        assert config.values == {"optimizer": {"name": "adam"}}
        assert config.merge(0, 0, {"optimizer": "sgd"}, nested=True)
        assert config.values == {"optimizer": "sgd"}

    def test_other_statements_replace_whole_mappings(self):
        """The packages of a resumed run are those it has now, without those that have been removed."""
        facts = MergedConfig()
        facts.merge(0, 0, {"packages": {"torch": "2.4", "old": "1"}})
        facts.merge(1, 0, {"packages": {"torch": "2.5"}})
        assert facts.values == {"packages": {"torch": "2.5"}}
