"""A producer by hand, and peers that are none: anything can be sent to the bus process of a job."""

from __future__ import annotations

import random
import socket
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import google_crc32c
import msgspec
import zmq

from accelbus import control, frame, host
from tests.support.job import Job, wait_until

_Message = TypeVar("_Message", bound=control.Message)
LAUNCH = b"peer's launching"


def endpoint(job: Job) -> Path:
    """Return the socket of the job's bus process, once it is bound."""
    return Path(wait_until(lambda: next(job.sockets.glob("*/bus.sock"), None), what="a bus socket"))


class Peer:
    """A ZeroMQ peer of the bus process; speaks the protocol as far as it is told to."""

    def __init__(self, job: Job, kind: int = zmq.DEALER) -> None:
        self.producer = uuid.uuid4().bytes
        self._job = job
        self._context = zmq.Context()
        self.socket = self._context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.connect(f"ipc://{endpoint(job)}")

    def hello(self, **changes: object) -> control.Hello:
        """Return what a well-behaved rank 0 in the role of a guest would say."""
        plain = control.Hello(
            producer=self.producer, run_id=self._job.run_id, run_dir=str(self._job.run_dir), rank=0, world_size=1, local_rank=0,
            local_world_size=1, host=host.name(), pid=1, role="guest", launch=LAUNCH, launcher="", base_seq=1, last_seq=0,
        )  # fmt: skip
        return msgspec.structs.replace(plain, **changes)

    def say(self, message: control.Message) -> None:
        self.send(control.pack(message, producer=self.producer))

    def send(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)

    def greet(self, **changes: object) -> control.Welcome:
        """Say hello and return the answer."""
        self.say(self.hello(**changes))
        return self.answer(control.Welcome)

    def answer(self, kind: type[_Message], timeout: float = 10.0) -> _Message:
        """Return the next message of *kind*, passing over others."""
        return wait_until(lambda: next((message for message in self._received() if isinstance(message, kind)), None), timeout, str(kind))

    def ask(self, raw: bytes, kind: type[_Message]) -> _Message:
        """Send *raw* until the answer is a message of *kind*."""

        def answer() -> _Message | None:
            self.send(raw)
            return next((message for message in self._received() if isinstance(message, kind)), None)

        return wait_until(answer, what=str(kind))

    def _received(self) -> Iterator[control.Message]:
        while self.socket.poll(10):
            yield control.unpack(frame.parse(self.socket.recv()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()
        self._context.term()


def events(producer: bytes, first: int, last: int, *, kind: int = frame.EVENTS, count: int | None = None) -> bytes:
    """Return the frame of `payload` number *first* to *last*; *count* is what the header claims instead."""
    encoded = [payload(seq) for seq in range(first, last + 1)]
    body = frame.join_events(encoded, len(encoded))
    return frame.pack(kind, body, producer=producer, launch=LAUNCH, first_seq=first, count=len(encoded) if count is None else count)


def payload(seq: int) -> bytes:
    return msgspec.msgpack.encode((1, seq, seq, {"guest": float(seq)}))


def resealed(raw: bytes, at: int, value: int) -> bytes:
    """Return the frame *raw* with another byte *at* an offset, and a checksum that says it is right."""
    changed = raw[8:at] + bytes([value]) + raw[at + 1 :]
    return raw[:4] + google_crc32c.value(changed).to_bytes(4, "little") + changed


def rubbish(source: random.Random) -> list[bytes]:
    """Return messages that are no frames, or frames that lie; none may be stored or answered with anything but a question."""
    producer = source.randbytes(16)
    good = events(producer, 1, 3)
    flipped = [bytes(byte ^ (1 << source.randrange(8)) if at == place else byte for at, byte in enumerate(good)) for place in _places(good)]
    bodies = [
        b"", b"\xc1", b"\xa1\xff", b"\x91" * 50_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x81\xa4type\xa5hello",
        b"\x82\xa4type\xa9heartbeat\xa8last_seq\xa1\xff", msgspec.msgpack.encode({"type": "nonsense"}), source.randbytes(1000),
    ]  # fmt: skip
    return [
        b"", b"\0", source.randbytes(63), source.randbytes(64), source.randbytes(5000), frame.MAGIC, frame.MAGIC + source.randbytes(100),
        good[:-1], good + b"\0", good[: frame.HEADER_BYTES], good[: frame.HEADER_BYTES - 1], resealed(good, 8, frame.VERSION + 1), *flipped,
        *(frame.pack(frame.CONTROL, body, producer=producer) for body in bodies),
        frame.pack(frame.CONTROL + 1, b"", producer=producer), frame.pack(255, source.randbytes(50), producer=producer),
    ]  # fmt: skip


def _places(raw: bytes) -> Sequence[int]:
    """Bytes to damage: every one of the header, and some of the body."""
    return [*range(frame.HEADER_BYTES), *range(frame.HEADER_BYTES, len(raw), 7)]


def throw_bytes(job: Job, source: random.Random) -> None:
    """Speak anything but ZeroMQ to the bus process."""
    path = str(endpoint(job))
    greeting = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01NULL" + bytes(48)
    for data in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        source.randbytes(20),
        source.randbytes(100_000),
        greeting[:11],
        greeting + source.randbytes(500),
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
            plain.connect(path)
            plain.settimeout(0.5)
            try:
                plain.sendall(data)
            except OSError:
                continue  # it hung up on us, and rightly so
