"""W&B's file format: following a file that grows, and joining files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("wandb")

from hypothesis import given, settings, strategies as st
from wandb.proto.wandb_internal_pb2 import Record

from accelbus_sinks import _wandb_log
from accelbus_sinks._wandb_log import HEADER_BYTES, LogFollower, Part, history, join, kind_of
from tests.support import wandb_reader as reader

HEADER = b":W&B\xe1\xbe\x00"
SIZES = st.lists(st.sampled_from([0, 1, 100, 32_700, 32_740, 32_750, 32_754, 32_761, 70_000]), max_size=8)


def test_a_growing_file_is_followed_record_by_record(tmp_path):
    """However a file is cut, what is complete is counted, and what follows is counted when it is complete."""
    whole = _file(tmp_path / "whole", [_row(step, "x" * (20_000 * step)) for step in range(4)])
    data = whole.read_bytes()
    ends = [end for end, _ in _wandb_log._records(Part(whole))]
    follower = LogFollower(tmp_path / "growing")
    assert follower.count("history") == 0
    for cut in sorted({*range(0, len(data), 997), *ends, *(end - 1 for end in ends), len(data)}):
        (tmp_path / "growing").write_bytes(data[:cut])
        assert follower.count("history") == sum(end <= cut for end in ends)
        assert follower.size == max((end for end in ends if end <= cut), default=HEADER_BYTES)


def test_damage_ends_what_is_read(tmp_path):
    """A flipped bit is no record, and neither is what follows it."""
    path = _file(tmp_path / "file", [_row(step, "text") for step in range(10)])
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 200] ^= 1
    path.write_bytes(data)
    assert 0 < LogFollower(path).count("history") < 10


@given(first=SIZES, second=SIZES, third=SIZES)
@settings(max_examples=40, deadline=None)
def test_joined_files_are_one(tmp_path_factory, first, second, third):
    """Whatever the sizes of records, a file of three has the rows of all in order, each block whole, one start and one end."""
    directory = tmp_path_factory.mktemp("join")
    parts = []
    for number, sizes in enumerate((first, second, third)):
        rows = [_row(10 * number + step, "x" * size) for step, size in enumerate(sizes)]
        parts.append(Part(_file(directory / str(number), [_header(), _run({"part": number}), *rows, _exit(number)])))
    before = parts[0].path.read_bytes()
    counted = max(end for end, data in _wandb_log._records(parts[0]) if kind_of(data) != "exit")
    join(parts)
    joined = parts[0].path
    assert joined.read_bytes()[:counted] == before[:counted]
    steps = [10 * number + step for number, sizes in enumerate((first, second, third)) for step in range(len(sizes))]
    assert [record.step.num for record in reader.of_kind(joined, "history")] == steps
    assert [own for own, _ in history(Part(joined))] == steps
    kinds = [record.WhichOneof("record_type") for record in reader.records(joined)]
    assert (kinds.count("header"), kinds.count("run"), kinds.count("exit")) == (1, 1, 1)
    assert reader.of_kind(joined, "exit")[0].exit_code == 2
    assert reader.config(joined) == {"part": 2}
    numbers = [record.num for record in reader.records(joined)]
    assert numbers == sorted(numbers)


def test_what_is_beyond_a_parts_size_does_not_count(tmp_path):
    """Rows that a session wrote after its last flush are not joined: they are delivered again."""
    rows = [_row(step, "x" * 500) for step in range(6)]
    first, second = _file(tmp_path / "1", [_header(), _run({}), *rows]), _file(tmp_path / "2", [_header(), _run({}), *rows])
    ends = [end for end, data in _wandb_log._records(Part(first)) if kind_of(data) == "history"]
    join([Part(first, ends[2]), Part(second, ends[0])])
    assert [record.step.num for record in reader.of_kind(first, "history")] == [0, 1, 2, 0]


def test_media_in_a_row_come_back_as_mappings(tmp_path):
    """A row that is sent again has its media as W&B stored them."""
    record = _row(3, "text")
    for key, value in (("_type", '"image-file"'), ("path", '"media/images/a.png"')):
        item = record.history.item.add()
        item.nested_key.extend(["sample", key])
        item.value_json = value
    path = _file(tmp_path / "file", [record])
    assert list(history(Part(path))) == [(3, {"text": "text", "sample": {"_type": "image-file", "path": "media/images/a.png"}})]


@pytest.mark.parametrize("kind", ["history", "summary", "exit", "run", "header", "telemetry"])
def test_the_kind_of_a_record_is_known_without_reading_it(kind):
    """The look at a record's first fields agrees with the protocol's own parser, in whatever order they come."""
    record = Record(num=300)
    getattr(record, kind).SetInParent()
    record._info.stream_id = "run"
    assert kind_of(record.SerializeToString()) == kind
    assert kind_of(Record(uuid="x").SerializeToString() + record.SerializeToString()) == kind
    assert kind_of(Record(num=1).SerializeToString()) == ""


def _file(path: Path, records: list[Record]) -> Path:
    with path.open("wb") as file:
        file.write(HEADER)
        writer = _wandb_log._Writer(file, HEADER_BYTES)
        for number, record in enumerate(records, 1):
            record.num = number
            writer.write(record.SerializeToString())
    return path


def _row(step: int, text: str) -> Record:
    record = Record()
    record.history.step.num = step
    item = record.history.item.add()
    item.nested_key.append("text")
    item.value_json = f'"{text}"'
    return record


def _header() -> Record:
    record = Record()
    record.header.SetInParent()
    return record


def _run(config: dict[str, int]) -> Record:
    record = Record()
    record.run.run_id = "run"
    for key, value in config.items():
        item = record.run.config.update.add()
        item.key, item.value_json = key, str(value)
    return record


def _exit(code: int) -> Record:
    record = Record()
    record.exit.exit_code = code
    return record
