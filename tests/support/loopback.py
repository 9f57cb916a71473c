"""A tracker's server on this machine, for tests: what it answers is JSON, and what it knows is in memory."""

from __future__ import annotations

import abc
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self


class LoopbackServer(abc.ABC):
    """Started by ``with``."""

    protocol: ClassVar[str] = "HTTP/1.0"
    """1.1 keeps connections open."""

    @abc.abstractmethod
    def respond(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return (HTTP status, what to answer) to a request for *path*, which still has its query."""

    def __enter__(self) -> Self:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = self.protocol

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, answer = server.respond(self.command, self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_HEAD = handle_any

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
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
