"""The producers of one run that can be spoken to: which peer of the socket each is, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from accelbus import control
from accelbus.aggregator.roster import Member
from accelbus.config import Tuning

Send: TypeAlias = Callable[[bytes, bytes], object]
"""Sends a payload to a routing id without waiting. Everything sent can be lost."""


class Peers:
    """Routing ids of producers. A producer that connects again has a new one; the old one is forgotten.

    Args:
        send: of the socket.
        incarnation: of the bus process, as this run's producers know it.
        tuning: for flow control.
    """

    def __init__(self, send: Send, *, incarnation: bytes, tuning: Tuning) -> None:
        self._send = send
        self._incarnation = incarnation
        self._tuning = tuning
        self._producers: dict[bytes, bytes] = {}
        """{routing id: producer}"""
        self._peers: dict[bytes, bytes] = {}
        """{producer: routing id}"""
        self._mains: set[bytes] = set()
        """Producers that want notices and sink states."""

    def connect(self, peer: bytes, producer: bytes, *, main: bool) -> None:
        """*producer* speaks through *peer* from here on."""
        self.disconnect(producer)
        self._producers[peer], self._peers[producer] = producer, peer
        if main:
            self._mains.add(producer)

    def disconnect(self, producer: bytes) -> None:
        """Do not speak to *producer* any more."""
        peer = self._peers.pop(producer, None)
        if peer is not None:
            self._producers.pop(peer, None)

    def producer_at(self, peer: bytes) -> bytes | None:
        """Return who speaks through *peer*; None when it never said hello."""
        return self._producers.get(peer)

    def is_main(self, producer: bytes) -> bool:
        return producer in self._mains

    def tell(self, peer: bytes, message: control.Message) -> None:
        self._send(peer, control.pack(message, producer=self._incarnation))

    def tell_producer(self, producer: bytes, message: control.Message) -> None:
        """Tell *producer*, if it can be spoken to."""
        if producer in self._peers:
            self.tell(self._peers[producer], message)

    def tell_main(self, message: control.Message) -> None:
        for producer in self._mains & self._peers.keys():
            self.tell(self._peers[producer], message)

    def tell_all(self, message: control.Message) -> None:
        for peer in self._producers:
            self.tell(peer, message)

    def welcome(self, peer: bytes, member: Member) -> None:
        resume_from = member.through_seq + 1
        self.tell(peer, control.Welcome(self._incarnation, member.attempt, resume_from, self._tuning.credit_bytes, self._flush_interval))

    def ack(self, peer: bytes, member: Member, *, final: bool = False) -> None:
        self.tell(peer, control.Ack(member.through_seq, self._tuning.credit_bytes, self._flush_interval, final=final))

    @property
    def _flush_interval(self) -> float:
        """20 Hz for a few producers, 1 Hz for ten thousand."""
        return max(self._tuning.pump_interval, len(self._producers) / 10_000)


__all__ = ["Peers", "Send"]
