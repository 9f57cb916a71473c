"""What is wrapped becomes plain bytes; what cannot is a fault of its own."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from accelbus import values as value_model
from accelbus.blobs import BlobStore
from accelbus.media import Alert, Artifact, Audio, Histogram, Html, Image, Table, Video, unpack
from accelbus.values import encoder, flatten, sanitise


@pytest.fixture
def encode(tmp_path):
    """An encoder with a place for large media, as a run has one."""
    made = encoder()
    made.enc_hook.blobs = BlobStore(tmp_path / "blobs", "me", quota=10**9)
    return made


def test_a_list_of_media_is_one_value_each(encode, tmp_path):
    """On the fast path as on the slow one."""
    values = {"samples": [Image(np.zeros((2, 2))), Image(np.ones((2, 2)))], "nested": {"page": Html("x")}, "plain": [1, 2]}
    fast = flatten(msgspec.msgpack.decode(encode.encode(values)))
    slow, faults = sanitise(values, encode)
    assert faults == []
    assert list(fast) == list(slow) == ["samples/0", "samples/1", "nested/page", "plain"]
    assert unpack(slow["samples/1"], tmp_path / "blobs").array().tolist() == [[[255], [255]], [[255], [255]]]


BROKEN = {
    "shape": Image(np.zeros((2, 2, 2, 2))),
    "text": Image(object()),
    "no file": Image("no/such/file.png"),
    "nothing": Histogram(),
    "ragged": Table(["a"], [[1], [1, 2]]),
    "no rows": Table(["a"]),
    "not iterable": Table(["a"], 3),
    "level": Alert("t", level="loud"),
    "levels": Alert("t", level=7),
    "gone": Artifact("no/such/file"),
    "none": Artifact(None),
    "metadata": Artifact(__file__, metadata=3),
    "audio": Audio(np.zeros((2, 2, 2))),
    "rate": Audio(np.zeros(4), sample_rate="fast"),
    "video": Video(np.zeros((2, 2))),
    "html": Html(3),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_wrapped_is_a_fault_of_its_own(encode, name):
    """Making a wrapper never raises, and the values beside it are kept."""
    clean, faults = sanitise({"loss": 1.0, "media": BROKEN[name], "acc": 0.5}, encode)
    if name == "html":
        assert faults == []
        return
    assert {key: value for key, value in clean.items() if key != "media"} == {"loss": 1.0, "acc": 0.5}
    assert [(fault.key, fault.reason) for fault in faults] == [("media", "unsupported_value")]


def test_text_around_media_is_made_encodable(encode, tmp_path):
    """A lone surrogate in a caption costs no image."""
    clean, faults = sanitise(
        {"a": Image(np.zeros((1, 1)), "caption \ud800"), "b": Alert("\udfff"), "c": Artifact(__file__, "\ud800")}, encode
    )
    assert faults == []
    assert unpack(clean["a"], tmp_path).caption == "caption \\ud800"


def test_a_full_disk_is_called_so(tmp_path):
    """And not an unsupported value."""
    made = encoder()
    made.enc_hook.blobs = BlobStore(tmp_path / "blobs", "me", quota=10)
    _, faults = sanitise({"a": Image(np.zeros((200, 200)))}, made)
    assert [fault.reason for fault in faults] == ["blob_full"]


def test_one_alias_may_be_given_as_text(encode, tmp_path):
    """It is not a sequence of letters."""
    clean, _ = value_model.sanitise({"a": Artifact(__file__, aliases="best"), "b": Artifact(__file__, aliases=("a", "b"))}, encode)
    assert [unpack(clean[key], tmp_path).meta["aliases"] for key in "ab"] == [["best"], ["a", "b"]]
