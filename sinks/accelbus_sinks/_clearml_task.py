"""The one task of this process: which it is, found again after any crash, and opened without what ClearML does by itself."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from accelbus.durable import write_atomically
from accelbus.tracking import RunInfo
from accelbus_sinks._clearml_quiet import INIT_FLAGS, as_no_rank, settle

logger = logging.getLogger(__name__)

RUN_TAG: Final = "accelbus:"
"""With the run id: the tag by which a task is found again whose id was not yet written down."""

_NEW: Final[Mapping[str, Any]] = {"reuse_last_task_id": False, "continue_last_task": 0}
_SHORTEST_NAME: Final = 3
"""The server refuses shorter names of projects and tasks."""

_opened: set[str] = set()
"""Ids of tasks that trackers of ours have open in this process; there is at most one."""
_begun: set[str] = set()
"""Those whose opening failed when ClearML had them open already."""


class Identity(NamedTuple):
    """What is kept of a task so that the next process goes on with it."""

    task_id: str = ""
    cache_dir: str = ""
    """Where its offline session lies."""
    first_step: int = 0
    """Added to every step of a run that goes on with a task of an earlier one (``continue_last_task``)."""


def read_identity(path: Path) -> Identity:
    """Return what `open_task` wrote; empty when there is nothing, or nothing that can be read."""
    try:
        return Identity(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return Identity()
    except (ValueError, TypeError) as error:
        logger.warning("%s cannot be read (%s)", path, error)
        return Identity()


def open_task(path: Path, info: RunInfo, arguments: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return (task, whether it is ours to close).

    The same task for every call with the same *path* or the same ``info.run_id``, whatever ended the process before this one.

    Args:
        path: of the identity.
        info: of the run.
        arguments: of ``Task.init``; ``project_name`` and ``task_name`` are needed.

    Raises:
        RuntimeError: ClearML gave another task than the one it was asked for, or another tracker has its task open here.
    """
    import clearml  # noqa: PLC0415  only the worker imports trackers

    task_class: Any = clearml.Task
    current = task_class.current_task()
    if current is not None and current.id not in _begun:
        if current.id in _opened:
            raise RuntimeError(f"ClearML has one task per process, and {current.id} is open in this one")
        return current, False
    try:
        task = _open(task_class, path, info, arguments)
    except BaseException:
        if (current := task_class.current_task()) is not None:
            # Task.init() returns it again.
            _begun.add(current.id)
        raise
    _begun.clear()
    _opened.add(task.id)
    return task, True


def _open(task_class: Any, path: Path, info: RunInfo, arguments: Mapping[str, Any]) -> Any:
    from clearml.config import running_remotely  # noqa: PLC0415  only the worker imports trackers

    settle()
    if os.environ.get("CLEARML_OFFLINE_MODE", os.environ.get("TRAINS_OFFLINE_MODE", "")).lower() not in {"", "0", "false", "no"}:
        task_class.set_offline(offline_mode=True)
    with as_no_rank():
        if running_remotely():
            task = task_class.init(**{**INIT_FLAGS, **arguments})
        elif task_class.is_offline():
            task = _open_offline(task_class, path, arguments)
        else:
            task = _open_online(task_class, path, info, arguments)
    # Otherwise a process that leaves for another reason than the end of the run would mark it completed.
    with contextlib.suppress(AttributeError):
        task_class._Task__register_at_exit(None)  # noqa: SLF001  what Task.close() does itself; there is no other way
    return task


def close_task(task: Any, status: str | None) -> None:
    """Close *task* as *status* of ours."""
    state = {None: "completed", "finished": "completed", "preempted": "stopped"}.get(status, "failed")
    _opened.discard(task.id)
    if task.is_offline():
        # Offline nothing but this file knows how the run ended.
        task.data.status = state
        task.data.status_reason = status or ""
        task.close()
        return
    task.close()  # completes it
    if state == "failed":
        task.mark_failed(status_reason=status, status_message=f"accelbus: {status}", force=True)
    elif state == "stopped":
        task.mark_stopped(status_message=f"accelbus: {status}", force=True)


def upload(local: Path, url: str) -> None:
    """Bring the file *local* to *url*, replacing what is there.

    Raises:
        ConnectionError: it did not arrive.
    """
    from clearml import StorageManager  # noqa: PLC0415  only the worker imports trackers

    if url.startswith("/"):
        Path(url).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local, url)
    elif not StorageManager.upload_file(str(local), url, wait_for_upload=True, retries=1):
        raise ConnectionError(f"{local} could not be uploaded to {url}")


def name_of(text: str) -> str:
    """Return *text* as name of a project or task."""
    return text.ljust(_SHORTEST_NAME, "_")


def _open_offline(task_class: Any, path: Path, arguments: Mapping[str, Any]) -> Any:
    """Go on with the session of the process before, or with what a crash inside this function left of one."""
    known = read_identity(path)
    cache_dir = Path(known.cache_dir or os.environ.get("CLEARML_CACHE_DIR") or path.parent / "clearml")
    os.environ["CLEARML_CACHE_DIR"] = str(cache_dir)
    task_id = known.task_id or _begun_session(cache_dir, path.parent)
    if task_id:
        _repair_session(cache_dir / "offline" / task_id, path)
        task = task_class.init(**{**INIT_FLAGS, **arguments, **_that(task_id)})
        _expect(task, task_id)
    else:
        task = task_class.init(**{**INIT_FLAGS, **_NEW, **arguments})
    if not known.task_id:
        _write(path, Identity(task.id, str(cache_dir), int(task.get_initial_iteration() or 0)))
    if not task.name or not task.get_project_name():
        task.data.name = task.name = arguments["task_name"]
        task._project_name = (None, arguments["project_name"])  # noqa: SLF001  what Task does with the file it reads
    task.data.id = task.id
    task.data.status = "in_progress"
    return task


def _that(task_id: str) -> dict[str, Any]:
    """Return arguments of ``Task.init`` that open the task *task_id* and add nothing to its iterations: `Identity` knows what to add."""
    return {"reuse_last_task_id": task_id, "continue_last_task": 0}


def _begun_session(cache_dir: Path, state_dir: Path) -> str:
    """Return the session that a process began and did not write down; only where sessions can be ours alone."""
    if not cache_dir.is_relative_to(state_dir):
        return ""
    begun = [folder.name for folder in (cache_dir / "offline").glob("offline-*") if folder.is_dir()]
    return begun[0] if len(begun) == 1 else ""


def _repair_session(folder: Path, path: Path) -> None:
    """Put back ``task.json`` if a crash tore it: ClearML writes it in place."""
    task_file, kept = folder / "task.json", copy_of_task(path)
    try:
        json.loads(task_file.read_bytes())
    except (FileNotFoundError, ValueError):
        if kept.exists():
            write_atomically(task_file, kept.read_bytes(), mode=0o644)
            logger.warning("%s was torn and is put back", task_file)


def copy_of_task(path: Path) -> Path:
    """Return where a whole copy of an offline session's ``task.json`` is kept."""
    return path.with_name("clearml-task.json")


def keep_copy_of_task(path: Path, folder: Path) -> None:
    """Keep a copy of ``task.json`` as it is now."""
    with contextlib.suppress(FileNotFoundError):
        write_atomically(copy_of_task(path), (folder / "task.json").read_bytes())


def _open_online(task_class: Any, path: Path, info: RunInfo, arguments: Mapping[str, Any]) -> Any:
    """Find the task by its id or tag, create it if there is none, and open it."""
    task_id = read_identity(path).task_id
    if not task_id and arguments.keys() & {"reuse_last_task_id", "continue_last_task"}:
        task = task_class.init(**{**INIT_FLAGS, **arguments})
        _write(path, Identity(task.id, first_step=int(task.get_initial_iteration() or 0)))
        return task
    if not task_id:
        task_id = _find_or_create(info, arguments)
        _write(path, Identity(task_id))
    task = task_class.init(**{**INIT_FLAGS, **arguments, **_that(task_id)})
    _expect(task, task_id)
    return task


def _find_or_create(info: RunInfo, arguments: Mapping[str, Any]) -> str:
    """Return the id of the task with the run's tag. Created with it in one request, so that no crash can come between."""
    from clearml.backend_api.session import Session  # noqa: PLC0415  only the worker imports trackers

    session = Session()
    tag = f"{RUN_TAG}{info.run_id}"
    if info.run_id:
        found = _ask(session, "tasks.get_all", tags=[tag], only_fields=["id", "created"], order_by=["created"])["tasks"]
        if found:
            return str(found[0]["id"])
    project = arguments["project_name"]
    projects = _ask(session, "projects.get_all", name=f"^{re.escape(project)}$", only_fields=["id"], search_hidden=True)["projects"]
    created = _ask(
        session,
        "tasks.create",
        name=arguments["task_name"],
        type=str(arguments.get("task_type") or "training"),
        project=projects[0]["id"] if projects else _ask(session, "projects.create", name=project, description="")["id"],
        tags=[tag],
        system_tags=["development"],
    )
    return str(created["id"])


def _ask(session: Any, call: str, **fields: Any) -> dict[str, Any]:
    """Return what the server answers.

    Raises:
        ConnectionError: it refuses, or is none of ClearML's.
    """
    service, _, action = call.partition(".")
    response = session.send_request(service, action, method="post", json=fields)
    try:
        answer = response.json()
        message = answer["meta"]["result_msg"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConnectionError(f"expected an answer of ClearML's API, got HTTP {response.status_code} {response.text[:200]!r}") from error
    if response.status_code != 200:
        raise ConnectionError(f"ClearML refuses {call}: {response.status_code} {message}")
    data: dict[str, Any] = answer["data"]
    return data


def _expect(task: Any, task_id: str) -> None:
    if task.id != task_id:
        # ClearML makes a new task when it cannot open the one asked for.
        raise RuntimeError(f"ClearML opened task {task.id} instead of {task_id}")


def _write(path: Path, identity: Identity) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(identity._asdict()).encode())
