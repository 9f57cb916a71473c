"""As much of Trackio's server as a run needs that is sent to one: rows in memory, behind the client's HTTP interface."""

from __future__ import annotations

import json
from typing import Any

from trackio.remote_client import HTTP_API_VERSION

from tests.support.loopback import LoopbackServer


class TrackioServer(LoopbackServer):
    """Started by ``with``.

    Attributes:
        logs: rows that were taken, in order.
        refusing: answer everything that writes with HTTP 401.
    """

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.refusing = False

    def respond(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        return self.answer(path, json.loads(body) if body else {})

    def answer(self, path: str, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return (HTTP status, answer)."""
        call = path.partition("?")[0].strip("/")
        if call == "version":
            return 200, {"api_version": HTTP_API_VERSION}
        if self.refusing:
            return 401, {"error": "a write_token is required"}
        if call == "api/bulk_log":
            self.logs += given["kwargs"]["logs"]
        return 200, {"data": [] if call == "api/get_runs_for_project" else None}
