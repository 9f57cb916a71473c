"""The socket's server: messages in, checked, and handed to the run whose producer sent them."""

from __future__ import annotations

import time

import anyio.lowlevel

from accelbus import control, frame
from accelbus.aggregator.faults import Faults
from accelbus.aggregator.run import ServedRun
from accelbus.aggregator.socket import RouterSocket
from accelbus.errors import FrameError

_ASK_INTERVAL = 0.2
"""Seconds between two times that a peer is asked who it is: once per burst, not per frame."""


class BusServer:
    """Receives for every run that was added, whatever peers send."""

    def __init__(self, socket: RouterSocket, faults: Faults) -> None:
        self._socket = socket
        self._faults = faults
        self._runs: dict[str, ServedRun] = {}
        self._asked_at: dict[bytes, float] = {}

    def add(self, run: ServedRun) -> None:
        """Serve the producers of *run* from here on."""
        self._runs[run.run_id] = run

    async def serve(self) -> None:
        """Receive until cancelled."""
        while True:
            for peer, raw in await self._socket.receive():
                checked = self._check(raw)
                if checked is None:
                    continue
                if checked.kind == frame.CONTROL:
                    await self._faults.survive("a control message", self._handle(peer, checked))
                elif (run := self._run_of(peer)) is None or not run.intake.take(peer, raw, checked):
                    self._ask_who(peer)
            for run in self._runs.values():
                await run.intake.store()
            await anyio.lowlevel.checkpoint()

    def _check(self, raw: bytes) -> frame.Frame | None:
        try:
            checked = frame.parse(raw)
            frame.check_claims(checked)
            if checked.kind == frame.RECORDS or checked.kind > frame.CONTROL:
                raise FrameError("kind", f"expected events or a control message, got a frame of kind {checked.kind}")
        except FrameError as error:
            self._faults.drop(error)
            return None
        return checked

    async def _handle(self, peer: bytes, checked: frame.Frame) -> None:
        try:
            message = control.unpack(checked)
        except FrameError as error:
            self._faults.drop(error)
            return
        if isinstance(message, control.Hello):
            await self._greet(peer, message)
        elif (run := self._run_of(peer)) is None or not await run.hear(peer, message):
            self._ask_who(peer)

    async def _greet(self, peer: bytes, hello: control.Hello) -> None:
        run = self._runs.get(hello.run_id)
        if run is None:
            served = ", ".join(map(repr, self._runs))
            self._tell(peer, control.Refused(f"this bus process serves run {served}, not {hello.run_id!r}"))
        else:
            await run.welcome(peer, hello)

    def _run_of(self, peer: bytes) -> ServedRun | None:
        return next((run for run in self._runs.values() if run.has_peer(peer)), None)

    def _ask_who(self, peer: bytes) -> None:
        now = time.monotonic()
        if now - self._asked_at.get(peer, float("-inf")) > _ASK_INTERVAL:
            self._asked_at = {p: at for p, at in self._asked_at.items() if now - at < 1.0} | {peer: now}
            self._tell(peer, control.WhoAreYou())

    def _tell(self, peer: bytes, message: control.Message) -> None:
        self._socket.send(peer, control.pack(message))


__all__ = ["BusServer"]
