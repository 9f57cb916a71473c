"""What one sink gets of a run."""

from __future__ import annotations

import msgspec
import pytest

from accelbus.config import SinkOptions
from accelbus.delivery.selection import Selection, SelectionState, redacted
from accelbus.view import Point

SECOND = 10**9
IMAGE = msgspec.msgpack.Ext(2, b"an image")


def points(*keys, step=1, at=1.0, value=0.5):
    return [Point(0, step, key, value, int(at * SECOND), 1, {0: 1}) for key in keys]


def chosen(selection, *keys, **where):
    kept, left_out = selection.choose(points(*keys, **where))
    assert len(kept) + sum(left_out.values()) == len(keys)
    return [point.key for point in kept]


def selection(state=None, **options):
    return Selection(SinkOptions(**options), state if state is not None else SelectionState())


def test_without_options_everything_passes():
    """And costs nothing: the very same points."""
    given = points("a", "b")
    assert selection().choose(given) == (given, {})


@pytest.mark.parametrize(
    "options, kept",
    [
        ({"include": ("train/*",)}, ["train/loss", "train/x/y"]),
        ({"exclude": ("*/loss",)}, ["train/x/y", "lr"]),
        ({"include": ("train/*", "lr"), "exclude": ("train/x*",)}, ["train/loss", "lr"]),
        ({"include": ("l?",)}, ["lr"]),
    ],
)
def test_keys_are_chosen_by_pattern(options, kept):
    """Included and not excluded."""
    assert chosen(selection(**options), "train/loss", "train/x/y", "lr") == kept


def test_what_is_left_out_is_counted_per_rank():
    """The sum of the books stays right."""
    point = Point(0, 1, "a", 0.5, 1, 2, {0: 1, 3: 2})
    assert selection(exclude=("a",)).choose([point, point]) == ([], {0: 2, 3: 4})


def test_keys_are_renamed_by_pattern():
    """A star of the new key is what the star of the same number matched."""
    rename = {"train/*": "*", "*/acc/*": "b-*/a-*", "(x)": "y", "lr": "learning rate"}
    got = chosen(selection(rename=rename), "train/loss", "eval/acc/top1", "(x)", "lr", "other")
    assert got == ["loss", "b-eval/a-top1", "y", "learning rate", "other"]


def test_keys_that_would_become_one_stay_distinct():
    """Whichever comes first keeps the name, also after a restart."""
    state = SelectionState()
    first = selection(state, rename={"*/loss": "loss"})
    assert chosen(first, "train/loss", "eval/loss", "loss") == ["loss", "loss#2", "loss#3"]
    again = selection(state, rename={"*/loss": "loss"})
    assert chosen(again, "loss", "eval/loss", "train/loss") == ["loss#3", "loss#2", "loss"]


def test_late_values_share_the_fate_of_their_key():
    """Their prefix is no part of the name that a pattern is about."""
    assert chosen(selection(exclude=("loss",)), "late/loss", "late/acc") == ["late/acc"]
    assert chosen(selection(rename={"loss": "l"}), "late/loss") == ["late/l"]


class TestInterval:
    def test_numbers_of_a_key_keep_their_distance(self):
        """Each key for itself; other values pass."""
        slow = selection(min_interval=10)
        assert chosen(slow, "a", step=1, at=100) == ["a"]
        assert chosen(slow, "a", "b", step=2, at=105) == ["b"]
        assert chosen(slow, "a", step=2, at=105, value="text") == ["a"]
        assert chosen(slow, "a", step=2, at=105, value=IMAGE) == ["a"]
        assert chosen(slow, "a", step=3, at=110) == ["a"]

    def test_a_point_that_was_kept_may_change(self):
        """A late value corrects what the sink shows."""
        slow = selection(min_interval=10)
        assert chosen(slow, "a", step=1, at=100) == ["a"]
        assert chosen(slow, "a", step=1, at=100) == ["a"]
        assert chosen(slow, "a", step=0, at=99) == []

    def test_a_restart_decides_as_before(self):
        """The state is in the cursor."""
        state = SelectionState()
        chosen(selection(state, min_interval=10), "a", step=1, at=100)
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SelectionState)
        assert chosen(selection(again, min_interval=10), "a", step=2, at=105) == []


def test_configuration_is_redacted_by_pattern():
    """At any depth, without touching what is passed."""
    config = {"lr": 0.1, "api_key": "secret", "db": {"password": "secret", "host": "h", "users": {"name": "n"}}}
    assert redacted(config, ("*key", "db/password", "*/users")) == {
        "lr": 0.1,
        "api_key": "<redacted>",
        "db": {"password": "<redacted>", "host": "h", "users": "<redacted>"},
    }
    assert config["db"]["password"] == "secret"


@pytest.mark.parametrize("pattern", ["*password*", "dbs/password", "dbs/*/password", "dbs/0/password", "*/password"])
def test_what_is_in_a_list_is_redacted_too(pattern):
    """With the place in the list as a part of the key or without it; what matches nothing stays, lists of lists too."""
    config = {"dbs": [{"host": "h", "password": "x"}], "sizes": [1, [2, 3]]}
    assert redacted(config, (pattern,)) == {"dbs": [{"host": "h", "password": "<redacted>"}], "sizes": [1, [2, 3]]}
    assert config["dbs"][0]["password"] == "x"


def test_lists_in_lists_are_no_way_around_it():
    """Nor are bare values in one."""
    assert redacted({"a": [[{"token": "x", "n": 1}]], "keys": ["x", "y"]}, ("*token", "keys/*")) == {
        "a": [[{"token": "<redacted>", "n": 1}]],
        "keys": ["<redacted>", "<redacted>"],
    }
