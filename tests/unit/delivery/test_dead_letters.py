"""The file of rows that a tracker refused."""

from __future__ import annotations

import json
import math

from accelbus.blobs import BlobStore
from accelbus.delivery.deadletters import FILE, DeadLetters
from accelbus.media import INLINE_BYTES, Html, pack
from accelbus.tracking import Row


def test_a_letter_has_the_row_and_the_reason(tmp_path):
    """NaN is NaN and not null, a list is a list."""
    letters = DeadLetters(tmp_path, 0, clock=lambda: 77)
    letters.append(Row(3, {"loss": math.nan, "note": "x", "l": [1, None]}, 5, 1), "ValueError: no")
    letters.sync()
    (line,) = (tmp_path / FILE).read_text().splitlines()
    letter = json.loads(line)
    assert math.isnan(letter["values"].pop("loss"))
    assert letter == {
        "time_ns": 77,
        "reason": "ValueError: no",
        "attempt": 1,
        "step": 3,
        "row_time_ns": 5,
        "values": {"note": "x", "l": [1, None]},
    }


def test_a_new_worker_cuts_back_to_the_cursor(tmp_path):
    """What comes after the cursor is judged again, so no row is there twice."""
    letters = DeadLetters(tmp_path, 0)
    letters.append(Row(1, {"a": 1}, 5), "first")
    known = letters.size
    letters.append(Row(2, {"a": 2}, 5), "second")
    again = DeadLetters(tmp_path, known)
    again.append(Row(2, {"a": 2}, 5), "again")
    assert [json.loads(line)["reason"] for line in (tmp_path / FILE).read_text().splitlines()] == ["first", "again"]


def test_nothing_is_created_without_letters(tmp_path):
    """A healthy sink has no such file."""
    DeadLetters(tmp_path, 0).sync()
    assert list(tmp_path.iterdir()) == []


def test_a_media_value_is_readable_in_a_letter(tmp_path):
    """Its bytes, or the name of the file that has them, so that nothing is lost with the tracker's refusal."""
    letters = DeadLetters(tmp_path, 0)
    small, large = Html("<b>x</b>"), Html("y" * INLINE_BYTES * 2)
    store = BlobStore(tmp_path / "blobs", "me", quota=10**6)
    for name, wrapper in (("small", small), ("large", large)):
        letters.append(Row(1, {name: pack(wrapper.to_media(store), store)}, 5), "no")
    small_letter, large_letter = (json.loads(line)["values"] for line in (tmp_path / FILE).read_text().splitlines())
    assert small_letter["small"] == {"kind": "html", "format": "html", "meta": {"caption": None}, "data": "PGI+eDwvYj4="}
    assert (tmp_path / "blobs" / large_letter["large"]["blob"]).exists()
