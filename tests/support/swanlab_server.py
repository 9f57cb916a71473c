"""A SwanLab server for tests: projects, runs and values in memory, behind the part of the API that the client uses."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from tests.support.loopback import LoopbackServer


class SwanLabServer(LoopbackServer):
    """Started by ``with``; `environ` makes a client use it.

    Attributes:
        runs: {id: fields}
        values: those taken, in order: {"key", "index", "data", "create_time"}
        media, lines: the same for media and consoles.
        files: {path: bytes}
        states: those that runs were given, in order.
        refusing: answer every login with HTTP 401.
        holding: answer every upload with HTTP 503.
        unwanted: keys and lines that it does not take: requests with one are answered with HTTP 400.
    """

    protocol: ClassVar[str] = "HTTP/1.1"

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.values: list[dict[str, Any]] = []
        self.lines: list[dict[str, Any]] = []
        self.states: list[str] = []
        self.configs: list[dict[str, Any]] = []
        self.refusing = False
        self.holding = False
        self.unwanted: set[str] = set()
        self.media: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self._projects: set[str] = set()

    def respond(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        call = f"{method} {path.partition('?')[0]}"
        if call.startswith("PUT /files/"):
            self.files[call.removeprefix("PUT /files/")] = body
            body = b""
        return self.answer(call, json.loads(body) if body else {})

    @property
    def environ(self) -> dict[str, str]:
        """Variables that lead SwanLab's client here."""
        return {"SWANLAB_API_HOST": self.address, "SWANLAB_WEB_HOST": self.address, "SWANLAB_API_KEY": "key", "SWANLAB_MODE": "online"}

    def curve(self, key: str) -> list[tuple[int, float]]:
        """Return [(step, value)] in the order in which they came."""
        return [(value["index"], value["data"]) for value in self.values if value["key"] == key]

    def answer(self, call: str, given: Any) -> tuple[int, Any]:
        """Return (HTTP status, answer)."""
        if call == "POST /api/login/api_key":
            login = {"sid": "s", "expiredAt": "2100-01-01T00:00:00.000Z", "userInfo": {"username": "user"}}
            return (401, {"message": "invalid key"}) if self.refusing else (200, login)
        if match := re.fullmatch(r"GET /api/project/user/([^/]+)", call):
            project = {
                "cuid": "p",
                "name": match[1],
                "group": {"username": "user"},
                "_count": {"experiments": 0},
                "version": 1,
                "path": f"user/{match[1]}",
            }
            return (200, project) if match[1] in self._projects else (404, {})
        if call == "POST /api/projects/user":
            self._projects.add(given["name"])
            return 201, {}
        if re.fullmatch(r"POST /api/project/user/[^/]+/experiment", call):
            is_new = given["cuid"] not in self.runs
            run = self.runs.setdefault(given["cuid"], {**given, "slug": given["cuid"], "createdAt": "2026-01-01T00:00:00.000Z"})
            return (201 if is_new else 200), run
        if call.startswith("GET /api/house/metrics/summaries/"):
            scalar, media = _newest(self.values), _newest(self.media)
            log = [{"step": max(line["epoch"] for line in self.lines)}] if self.lines else []
            return 200, {"scalar": scalar, "media": media, "log": log}
        if call == "POST /api/house/metrics":
            return self._take(given)
        if call == "POST /api/resources/presigned/put":
            return 200, {"urls": [f"{self.environ['SWANLAB_API_HOST']}/files/{path}" for path in given["paths"]]}
        if call.endswith("/state"):
            self.states.append(given["state"])
        elif call.endswith("/profile") and "config" in given:
            self.configs.append(given["config"])
        return 200, {}

    def _take(self, given: dict[str, Any]) -> tuple[int, Any]:
        if self.holding:
            return 503, {}
        if self.unwanted & {metric.get("key", metric.get("message")) for metric in given["metrics"]}:
            return 400, {"message": "no such column"}
        {"scalar": self.values, "media": self.media, "log": self.lines}[given["type"]].extend(given["metrics"])
        return 200, {}


def _newest(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    newest: dict[str, int] = {}
    for value in values:
        newest[value["key"]] = max(newest.get(value["key"], -1), value["index"])
    return [{"key": key, "step": step} for key, step in newest.items()]
