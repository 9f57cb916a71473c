"""A ClearML server for tests: tasks, projects, events and uploads in memory, behind the part of the API that the client uses."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import jwt

from tests.support.loopback import LoopbackServer


class ClearMLServer(LoopbackServer):
    """Started by ``with``; `environ` makes a client use it.

    Attributes:
        tasks: {id: fields}
        events: those taken, in order. As on the real server, all but texts overwrite each other, see `curves`.
        statuses: {id of a task: those it was given}
        refusing: answer everything with HTTP 401, between ``test.refuse`` and ``test.accept``.
    """

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self.projects: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.statuses: dict[str, list[str]] = {}
        self.refusing = False

    def respond(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        return self.answer(path, body)

    @property
    def environ(self) -> dict[str, str]:
        """Variables that lead ClearML's client here."""
        return {
            "CLEARML_API_HOST": self.address,
            "CLEARML_WEB_HOST": self.address,
            "CLEARML_FILES_HOST": self.address,
            "CLEARML_API_ACCESS_KEY": "key",
            "CLEARML_API_SECRET_KEY": "secret",
            "CLEARML_NO_DEFAULT_SERVER": "1",
        }

    def curves(self, task_id: str) -> dict[tuple[str, str, int], Any]:
        """Return {(title, series, iteration): value}: what is left when events overwrite each other."""
        return {
            (event["metric"], event["variant"], event["iter"]): event["value"]
            for event in self.events
            if event["type"] == "training_stats_scalar" and event["task"] == task_id
        }

    def texts(self, task_id: str) -> list[str]:
        """Return the console's lines."""
        return [event["msg"] for event in self.events if event["type"] == "log" and event["task"] == task_id]

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return (HTTP status, answer)."""
        call = re.sub(r"^/(v[\d.]+/)?", "", path).partition("?")[0]
        self.calls.append(call)
        if call in {"test.refuse", "test.accept"}:
            self.refusing = call == "test.refuse"
            return 200, {}
        if self.refusing:
            return 401, {"meta": {"result_code": 401, "result_msg": "Unauthorized (invalid credentials)"}, "data": {}}
        if not re.fullmatch(r"[a-z_]+\.[a-z_]+", call):
            self.files[call] = body
            return 200, {}
        if call == "events.add_batch":
            taken = [json.loads(line) for line in body.splitlines()]
            self.events += taken
            return 200, _ok({"added": len(taken), "errors": 0, "errors_info": {}})
        given = json.loads(body) if body else {}
        return 200, _ok(getattr(self, "_" + call.replace(".", "_"), self._other)(given))

    def _other(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"updated": 1}

    def _auth_login(self, given: dict[str, Any]) -> dict[str, Any]:
        claims = {"api_version": "2.13", "server_version": "1.17.0", "feature_set": "basic", "exp": 4_000_000_000}
        return {"token": jwt.encode(claims, "a secret of more than thirty-two bytes", algorithm="HS256")}

    def _projects_get_all(self, given: dict[str, Any]) -> dict[str, Any]:
        wanted = given.get("name") or ""
        ids = given.get("id") or []
        found = [{"id": key, "name": name} for name, key in self.projects.items() if re.search(wanted, name) and (not ids or key in ids)]
        return {"projects": found}

    def _projects_get_by_id(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"id": given["project"], "name": {key: name for name, key in self.projects.items()}[given["project"]]}}

    def _projects_create(self, given: dict[str, Any]) -> dict[str, Any]:
        self.projects[given["name"]] = uuid.uuid4().hex
        return {"id": self.projects[given["name"]]}

    def _tasks_create(self, given: dict[str, Any]) -> dict[str, Any]:
        task_id = uuid.uuid4().hex
        self.tasks[task_id] = {"status": "created", **given, "id": task_id}
        return {"id": task_id}

    def _tasks_get_all(self, given: dict[str, Any]) -> dict[str, Any]:
        wanted = set(given.get("tags") or [])
        ids = given.get("id")
        return {"tasks": [task for task in self.tasks.values() if wanted <= set(task.get("tags") or []) and (not ids or task["id"] in ids)]}

    def _tasks_get_by_id(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"task": self.tasks[given["task"]]}

    def _tasks_edit(self, given: dict[str, Any]) -> dict[str, Any]:
        fields = {key: value for key, value in given.items() if key not in {"task", "force"}}
        self.tasks[given["task"]].update(fields)
        return {"updated": 1, "fields": fields}

    def _tasks_set_requirements(self, given: dict[str, Any]) -> dict[str, Any]:
        self.tasks[given["task"]].setdefault("script", {})["requirements"] = given["requirements"]
        return {"updated": 1}

    def _tasks_add_or_update_artifacts(self, given: dict[str, Any]) -> dict[str, Any]:
        artifacts = self.tasks[given["task"]].setdefault("execution", {}).setdefault("artifacts", [])
        names = {artifact["key"] for artifact in given["artifacts"]}
        artifacts[:] = [artifact for artifact in artifacts if artifact["key"] not in names] + given["artifacts"]
        return {"updated": 1}

    def _set_status(self, given: dict[str, Any], status: str) -> dict[str, Any]:
        self.statuses.setdefault(given["task"], []).append(status)
        self.tasks[given["task"]].update(status=status, status_reason=given.get("status_reason"))
        return {"updated": 1}

    def _tasks_started(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._set_status(given, "in_progress")

    def _tasks_completed(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._set_status(given, "completed")

    def _tasks_failed(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._set_status(given, "failed")

    def _tasks_stopped(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._set_status(given, "stopped")


def _ok(data: dict[str, Any]) -> dict[str, Any]:
    meta = {"id": uuid.uuid4().hex, "trx": uuid.uuid4().hex, "result_code": 200, "result_subcode": 0, "result_msg": "OK"}
    return {"meta": meta, "data": data}
