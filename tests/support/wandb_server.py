"""A loopback server that speaks as much of W&B's protocol as a run needs: it keeps rows, configuration, summary and files."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any


class WandBServer:
    """What was uploaded; `url` is for WANDB_BASE_URL."""

    def __init__(self) -> None:
        self.refuse = 0
        """Status code of every answer; 0 to answer properly."""
        self.history: dict[int, dict[str, Any]] = {}
        """{line: row}; a line that comes again replaces the one before, as with the real server"""
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.files: set[str] = set()
        self.exit_code: int | None = None
        self.runs: list[dict[str, Any]] = []
        """Variables of each request that opened the run."""
        self.hold_after: int | None = None
        """Rows that are taken; then the server takes no more."""
        self.url = ""

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [self.history[line] for line in sorted(self.history)]

    def graphql(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        if name == "Viewer":
            return {"viewer": {"id": "u", "entity": "team", "username": "user", "email": "", "flags": "{}", "teams": {"edges": []}}}
        if name == "RunResumeStatus":
            return {"model": {"id": "p", "name": "contract", "entity": {"id": "e", "name": "team"}, "bucket": self._bucket()}}
        if name == "UpsertBucket":
            self.runs.append(variables)
            if variables.get("config"):
                given = json.loads(variables["config"])
                self.config |= {key: value["value"] for key, value in given.items() if key != "_wandb"}
            bucket = {
                "id": "r", "name": variables.get("name"), "displayName": variables.get("displayName"), "description": None, "config": None,
                "sweepName": None, "historyLineCount": len(self.history),
                "project": {"id": "p", "name": variables.get("project") or "contract", "entity": {"id": "e", "name": "team"}},
            }  # fmt: skip
            return {"upsertBucket": {"bucket": bucket, "inserted": len(self.runs) == 1}}
        if name == "CreateRunFiles":
            names = variables.get("files", [])
            self.files.update(names)
            files = [{"name": each, "uploadUrl": f"{self.url}/upload/{index}"} for index, each in enumerate(names)]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        return {}

    def stream(self, sent: dict[str, Any]) -> None:
        for name, part in (sent.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                for index, line in enumerate(part["content"], part["offset"]):
                    if self.hold_after is None or index < self.hold_after:
                        self.history[index] = json.loads(line)
            elif name == "wandb-summary.json":
                self.summary = json.loads(part["content"][-1])
        if sent.get("complete"):
            self.exit_code = sent.get("exitcode")

    def _bucket(self) -> dict[str, Any] | None:
        if not self.runs:
            return None
        return {
            "id": "r", "name": self.runs[0].get("name"), "displayName": "run", "summaryMetrics": json.dumps(self.summary),
            "logLineCount": 0, "historyLineCount": len(self.history), "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in self.rows[-1:]]), "eventsTail": "[]",
            "config": json.dumps({key: {"value": value} for key, value in self.config.items()}), "tags": [], "notes": None,
            "wandbConfig": "{}",
        }  # fmt: skip


@contextlib.contextmanager
def running() -> Iterator[WandBServer]:
    """Serve until the block ends."""
    state = WandBServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            answer: dict[str, Any] = {}
            if not state.refuse:
                if self.path == "/graphql":
                    asked = json.loads(body)
                    answer = {"data": state.graphql(asked.get("operationName", ""), asked.get("variables") or {})}
                elif self.path.endswith("/file_stream"):
                    state.stream(json.loads(body))
            data = json.dumps(answer).encode()
            with contextlib.suppress(OSError):
                self.send_response(state.refuse or 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = _answer

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # clients of these tests are killed
                super().handle()

        def log_message(self, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
