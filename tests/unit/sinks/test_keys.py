"""Names for trackers that do not take every key."""

from __future__ import annotations

import errno
import os
import re

import pytest
from hypothesis import given, settings, strategies as st

from accelbus_sinks._keys import KeyMap, read_keys


def _rule(key: str) -> str:
    """Like MLflow's: few characters."""
    return re.sub(r"[^a-z/]", "_", key) or "unnamed"


def test_a_key_the_tracker_takes_is_its_own_name(tmp_path):
    """Nothing is renamed without need."""
    assert KeyMap(tmp_path / "keys.json", _rule)["train/loss"] == "train/loss"


def test_keys_that_become_alike_stay_distinct(tmp_path):
    """The first gets the plain name, the others one with the hash of their key, and each leads back to its key."""
    keys = KeyMap(tmp_path / "keys.json", _rule)
    names = keys.names(["a@b", "a#b", "a_b", "a@b"])
    assert names[0] == names[3] == "a_b"
    assert len(set(names)) == 3
    assert all(re.fullmatch("a_b-[0-9a-f]{8}", name) for name in names[1:3])
    assert [keys.key(name) for name in names] == ["a@b", "a#b", "a_b", "a@b"]


def test_another_process_gives_the_same_names(tmp_path):
    """Whatever order keys come in after a restart, they are called what they were called before, those that needed no change too."""
    path = tmp_path / "state" / "keys.json"
    before = KeyMap(path, _rule)
    names = {key: before[key] for key in ("a_b", "a@b", "a#b")}
    after = KeyMap(path, _rule)
    assert [after[key] for key in ("a#b", "a@b", "a_b")] == [names["a#b"], names["a@b"], names["a_b"]]
    assert after["a%b"] not in names.values()
    assert read_keys(path) == {**names, "a%b": after["a%b"]}


def test_long_keys_are_cut_and_stay_distinct(tmp_path):
    """Two keys that differ in their last character have names that differ, in any order, within the limit."""
    long = ["x" * 600, "x" * 599 + "y", "x" * 250]
    names = KeyMap(None, _rule, longest=250).names(long)
    assert {len(name) for name in names} == {250}
    assert len(set(names)) == 3
    assert KeyMap(None, _rule, longest=250).names(reversed(long)) == names[::-1]


def test_a_torn_line_costs_one_name(tmp_path, caplog):
    """After a crash or a full disk in the middle of a line, the lines around it are read."""
    path = tmp_path / "keys.json"
    KeyMap(path, _rule).names(["one!", "two!"])
    with open(path, "ab") as file:
        file.write(b'["three!","th')
    KeyMap(path, _rule).names(["four!"])
    assert list(read_keys(path)) == ["one!", "two!", "four!"]
    assert "cannot be read" in caplog.text


def test_a_name_that_cannot_be_kept_is_not_used(tmp_path, monkeypatch):
    """A full disk raises; the next call gives the same name, and nobody else has got it meanwhile."""
    path = tmp_path / "keys.json"
    keys = KeyMap(path, _rule)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as context:
        context.setattr(os, "write", refuse)
        with pytest.raises(OSError, match="full"):
            keys.names(["a@b"])
    assert read_keys(path) == {}
    assert keys["a#b"] != "a_b"
    assert keys["a@b"] == "a_b"
    assert read_keys(path) == {"a#b": keys["a#b"], "a@b": "a_b"}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet="ab@#_/é\ud800\n", max_size=6)))
def test_any_keys_are_told_apart(tmp_path_factory, keys):
    """Different keys, different names; the file leads from each name back to its key."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    names = KeyMap(path, _rule, longest=20).names(keys)
    assert len(set(names)) == len(set(keys))
    assert read_keys(path) == dict(zip(keys, names, strict=True))
    assert KeyMap(path, _rule, longest=20).names(keys) == names
