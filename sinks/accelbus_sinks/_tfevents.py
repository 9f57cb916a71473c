"""Rows as records of a TensorBoard event file.

A record is TFRecord framing around an ``Event`` message: length, masked CRC32C of the length, message, masked CRC32C of the
message. All values of a row go into one event. The layout of an event with the same keys hardly changes from step to step, so
those bytes are prepared once per set of keys and a row costs one `struct.Struct.pack`; protobuf builds what is rare.
"""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import google_crc32c
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.text import metadata as text_metadata

from accelbus.tracking import Row

logger = logging.getLogger(__name__)

LAYOUT_KEYS_KEPT: Final = 65_536
"""Keys in all kept layouts together; a run has a handful of layouts with a handful of keys."""

# Field number << 3 | wire type, from event.proto and summary.proto.
_WALL_TIME: Final = b"\x09"
_STEP: Final = b"\x10"
_SUMMARY: Final = b"\x2a"
_VALUE: Final = b"\x0a"
_TAG: Final = b"\x0a"
_SIMPLE_VALUE: Final = b"\x15"

_crc32c = google_crc32c.value
_pack_u32 = struct.Struct("<I").pack
_pack_u64 = struct.Struct("<Q").pack
_pack_double = struct.Struct("<d").pack
_pack_float = struct.Struct("<f").pack
_MASK: Final = 0xFFFFFFFF


class _Layout(NamedTuple):
    """Everything of an event that depends on its keys only."""

    struct: struct.Struct
    arguments: list[Any]
    """What the struct packs: a tag byte, the wall time, then fixed bytes and a value for each key."""


class EventEncoder:
    """Turn rows into records. Numbers become scalars, text and lists text summaries, None nothing."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._layout_keys = 0
        self._overflowed: set[str] = set()
        self.notice: Callable[[str], None] = logger.warning
        """Tell the user something once."""

    def encode(self, row: Row) -> bytes:
        """Return the record of *row*, empty if it has no value to show.

        Raises:
            TypeError: a value is neither number, text nor list, naming its key.
        """
        if not row.values:
            return b""
        keys = tuple(row.values)
        layout = self._layouts.get(keys) or self._new_layout(keys)
        arguments = layout.arguments.copy()
        arguments[1] = row.time_ns / 1e9
        arguments[3::2] = row.values.values()
        try:
            event = layout.struct.pack(*arguments) + _STEP + _varint(row.step)
        except (struct.error, OverflowError):
            return self._encode_mixed(row)
        return record(event)

    def _new_layout(self, keys: tuple[str, ...]) -> _Layout:
        prefixes = [_scalar_prefix(key) for key in keys]
        prefixes[0] = _SUMMARY + _varint(sum(map(len, prefixes)) + 4 * len(prefixes)) + prefixes[0]
        arguments: list[Any] = [_WALL_TIME, 0.0]
        for prefix in prefixes:
            arguments += (prefix, 0.0)
        layout = _Layout(struct.Struct("<cd" + "".join(f"{len(prefix)}sf" for prefix in prefixes)), arguments)
        self._keep(keys, layout)
        return layout

    def _keep(self, keys: tuple[str, ...], layout: _Layout) -> None:
        if self._layout_keys > LAYOUT_KEYS_KEPT:
            self._layouts.clear()
            self._layout_keys = 0
        self._layouts[keys] = layout
        self._layout_keys += len(keys)

    def _encode_mixed(self, row: Row) -> bytes:
        values = b"".join([self._value(key, value) for key, value in row.values.items() if value is not None])
        if not values:
            return b""
        return value_record(row.time_ns / 1e9, row.step, values)

    def _value(self, key: str, value: Any) -> bytes:
        if isinstance(value, str | list | tuple):
            return text_value(key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        try:
            number = _pack_float(value)
        except (OverflowError, struct.error) as error:
            if not isinstance(value, int | float):
                raise TypeError(
                    f"value of {key!r} is {value!r} ({type(value).__name__}): expected a number, text, or a list of those"
                ) from error
            number = _pack_float(self._infinity(key, value))
        return _scalar_prefix(key) + number

    def _infinity(self, key: str, value: float) -> float:
        if key not in self._overflowed:
            self._overflowed.add(key)
            self.notice(f"values of {key!r} exceed TensorBoard's 32-bit floats and are shown as infinity")
        return math.inf if value > 0 else -math.inf


def record(event: bytes) -> bytes:
    """Frame the message *event*."""
    length = _pack_u64(len(event))
    return b"".join((length, _masked_crc(length), event, _masked_crc(event)))


def summary_record(wall_time: float, summary: Any) -> bytes:
    """Frame an event at step 0 with *summary*, a `summary_pb2.Summary`."""
    return record(event_pb2.Event(wall_time=wall_time, summary=summary).SerializeToString())


def version_record(wall_time: float) -> bytes:
    """First record of every event file; without it readers fall back to rules for files of 2015."""
    source = event_pb2.SourceMetadata(writer="accelbus")
    return record(event_pb2.Event(wall_time=wall_time, file_version="brain.Event:2", source_metadata=source).SerializeToString())


def value_record(wall_time: float, step: int, *values: bytes) -> bytes:
    """Frame an event with *values* from `tensor_value`."""
    summary = b"".join(values)
    return record(_WALL_TIME + _pack_double(wall_time) + _SUMMARY + _varint(len(summary)) + summary + _STEP + _varint(step))


def text_value(key: str, text: str) -> bytes:
    """Return one value of a summary, for the Text tab; torch's ``SummaryWriter.add_text`` uses the same tag."""
    metadata = text_metadata.create_summary_metadata(display_name="", description="")
    return tensor_value(f"{key}/text_summary", metadata, string_tensor([_utf8(text)]))


def string_tensor(values: Sequence[bytes], *shape: int) -> Any:
    """Return a tensor of *shape*, not given: one row, with *values*."""
    dimensions = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in shape or (len(values),)]
    return tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING, string_val=values, tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=dimensions)
    )


def tensor_value(tag: str, metadata: Any, tensor: Any) -> bytes:
    """Return one value of a summary."""
    value: bytes = summary_pb2.Summary.Value(tag=valid_text(tag), metadata=metadata, tensor=tensor).SerializeToString()
    return _VALUE + _varint(len(value)) + value


def _scalar_prefix(key: str) -> bytes:
    tag = _utf8(key)
    head = _TAG + _varint(len(tag)) + tag + _SIMPLE_VALUE
    return _VALUE + _varint(len(head) + 4) + head


def valid_text(text: str) -> str:
    """Return *text* as protobuf takes it: lone surrogates written out."""
    return _utf8(text).decode()


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _SMALL_VARINTS[number]
    number &= 0xFFFFFFFFFFFFFFFF  # negative steps travel as two's complement
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


_SMALL_VARINTS: Final = [bytes([number]) for number in range(0x80)]


def _masked_crc(data: bytes) -> bytes:
    crc = _crc32c(data)
    return _pack_u32(((crc >> 15 | crc << 17) + 0xA282EAD8) & _MASK)


__all__ = [
    "EventEncoder",
    "record",
    "string_tensor",
    "summary_record",
    "tensor_value",
    "text_value",
    "valid_text",
    "value_record",
    "version_record",
]
