"""As much of Comet's server as an online experiment needs: takes everything, and appends it to a file.

Usage: ``comet_server.py PORT FILE``; prints its port. A process of its own, so that its end ends its connections.
"""

from __future__ import annotations

import gzip
import http.server
import json
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    """Requests as lines of JSON; answers that say nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        with open(sys.argv[2], "a") as file:
            file.write(json.dumps({"path": self.path.partition("?")[0], "body": body.decode(errors="replace")}) + "\n")
        answer: dict[str, object] = {}
        if self.path.endswith("/isAlive/ver"):
            answer = {"version": "3.4.0"}
        elif "add/run" in self.path:
            answer = {
                "runId": "run",
                "token": "token",
                "project_id": "project",
                "projectId": "project",
                "focusUrl": "http://comet/",
                "lastOffset": 0,
            }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST

    def log_message(self, *_args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True


if __name__ == "__main__":
    with Server(("127.0.0.1", int(sys.argv[1])), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
