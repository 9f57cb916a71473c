"""A producer's socket. It may be impossible to open: then nothing is sent, and that is tried again."""

from __future__ import annotations

import logging
import time
from typing import Final

import zmq

from accelbus import frame

_log = logging.getLogger("accelbus")
_RETRY: Final = 1.0
"""Seconds between tries to open a socket that could not be opened."""


class Wire:
    """Used by one thread. No method raises for a socket that cannot be opened."""

    def __init__(self, endpoint: str, *, max_message: int) -> None:
        """Open nothing yet.

        Args:
            endpoint: whom to connect to.
            max_message: bytes of a body; a peer that sends more is disconnected.
        """
        self._endpoint = endpoint
        self._max_message = max_message
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._tried_at = float("-inf")
        self.failures = 0
        """Tries to open it that failed."""

    def open(self) -> None:
        """Connect, unless that is done already or was tried just now."""
        if self._socket is None and time.monotonic() - self._tried_at > _RETRY:
            self._tried_at = time.monotonic()
            try:
                self._open()
            except (zmq.ZMQError, OSError, ValueError) as error:
                self.close()
                self.failures += 1
                if self.failures == 1:
                    _log.warning("no bus process can be reached at %r (%s); events go to the run directory", self._endpoint, error)

    def send(self, raw: bytes) -> bool:
        """Queue *raw* to the peer; False while there is no connection, or no room."""
        socket = self._opened()
        if socket is None:
            return False
        try:
            socket.send(raw, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> bytes | None:
        """Return the next message, None when there is none."""
        socket = self._opened()
        if socket is None:
            return None
        try:
            return socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def poll(self, timeout_ms: int) -> None:
        """Wait for a message, at most *timeout_ms*."""
        socket = self._opened()
        if socket is None:
            time.sleep(timeout_ms / 1000)
        else:
            socket.poll(timeout_ms)

    def close(self) -> None:
        """Close it, with whatever was not sent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None

    def _opened(self) -> zmq.Socket[bytes] | None:
        self.open()
        return self._socket

    def _open(self) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = socket = self._context.socket(zmq.DEALER)
        # LINGER 0: our own goodbye waits for the ack; libzmq's linger proves nothing.
        socket.setsockopt(zmq.LINGER, 0)
        # Queue to a completed connection only: while there is none, the spool is the queue.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, 64)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6000)
        socket.setsockopt(zmq.MAXMSGSIZE, self._max_message + frame.HEADER_BYTES)
        socket.setsockopt(zmq.IPV6, int(self._endpoint.startswith("tcp://[")))
        socket.connect(self._endpoint)


__all__ = ["Wire"]
