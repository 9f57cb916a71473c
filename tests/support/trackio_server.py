"""As much of Trackio's server as a run needs that is sent to one: rows in memory, behind the client's HTTP interface."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from trackio.remote_client import HTTP_API_VERSION


class TrackioServer:
    """Started by ``with``.

    Attributes:
        logs: rows that were taken, in order.
        refusing: answer everything that writes with HTTP 401.
    """

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.refusing = False

    def __enter__(self) -> Self:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, answer = server.answer(self.path, json.loads(body) if body else {})
                data = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = handle_any

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

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
