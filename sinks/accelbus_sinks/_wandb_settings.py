"""How W&B is started: who the run is, where its files lie, and what W&B must not do in this process."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import wandb

from accelbus.tracking import RunInfo
from accelbus_sinks._places import from_job_directory

WRITE_INTERVAL: Final = 0.1
"""Seconds between two writes of W&B's buffer to its file; 15 by default, and a flush waits for one."""
CAN_FLUSH: Final = "x_transaction_log_flush_interval" in wandb.Settings.model_fields
_ID_CHARACTERS: Final = 64

_SETTINGS: Final[Mapping[str, Any]] = {
    # They would describe this process, not the trainer.
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "label_disable": True,
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    # The default interrupts the main thread when somebody presses "stop" in the browser.
    "stop_fn": lambda: None,
    "x_transaction_log_flush_interval": WRITE_INTERVAL,
    # Several runs in one process, each with its own object.
    "reinit": "create_new",
}


def caches(state_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that keep W&B's files out of the home directory, except for the settings and keys a user has there."""
    wanted = {"WANDB_CACHE_DIR": "cache", "WANDB_DATA_DIR": "data", "WANDB_ARTIFACT_DIR": "artifacts"}
    if not (Path(environ.get("HOME", "/nonexistent")) / ".config" / "wandb").is_dir():
        wanted["WANDB_CONFIG_DIR"] = "config"
    return {name: str(state_dir / directory) for name, directory in wanted.items() if name not in environ}


def leave_service_of_others() -> None:
    """Forget the W&B service of the process that started this one: it ends with that process."""
    # 3-<pid of who started it>-…
    parts = os.environ.get("WANDB_SERVICE", "").split("-")
    if len(parts) > 1 and parts[1] != str(os.getpid()):
        del os.environ["WANDB_SERVICE"]


def mode_of(arguments: Mapping[str, Any]) -> str:
    """Return online, offline or disabled: what ``wandb.init`` with *arguments* will do."""
    given = wandb.Settings(**_explicit(arguments.get("settings")))
    mode = arguments.get("mode") or (given.mode if "mode" in given.model_fields_set else wandb.setup().settings.mode)
    return str({"dryrun": "offline", "run": "online"}.get(mode, mode))


def run_id_of(info: RunInfo, arguments: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """Return W&B's id of the run: what the user chose, else made of the run's own, so that a restart finds it again."""
    if chosen := arguments.get("id") or environ.get("WANDB_RUN_ID"):
        return str(chosen)
    if not info.run_id:
        return None
    safe = re.sub(r"[^\w.-]", "-", info.run_id, flags=re.ASCII)
    if safe == info.run_id and len(safe) <= _ID_CHARACTERS:
        return safe
    return f"{safe[: _ID_CHARACTERS - 9]}-{hashlib.sha256(info.run_id.encode()).hexdigest()[:8]}"


def root_directory(info: RunInfo, arguments: Mapping[str, Any], environ: Mapping[str, str]) -> Path | None:
    """Return where W&B makes its ``wandb`` directory, None for where it likes."""
    if given := arguments.get("dir"):
        return from_job_directory(given, environ, info)
    if given := environ.get("WANDB_DIR"):
        return from_job_directory(given, environ)
    if info.output_dir == Path():
        return None
    return info.output_dir.parent if info.output_dir.name == "wandb" else info.output_dir


def init_arguments(project: str, info: RunInfo, arguments: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``wandb.init`` gets: *arguments* of the user, completed by what the run says of itself."""
    named = info.name and not (info.name == info.run_id and "WANDB_NAME" in environ)
    ours = {
        "project": project,
        "name": info.name if named else None,
        "group": info.group or None,
        "tags": info.tags or None,
        "notes": info.notes or None,
    }
    settings = wandb.Settings(**{name: value for name, value in _SETTINGS.items() if name in wandb.Settings.model_fields})
    settings.update_from_dict(_explicit(arguments.get("settings")))
    return {**ours, **arguments, "settings": settings, "reinit": "create_new"}


def _explicit(settings: Any) -> dict[str, Any]:
    """Return what the user has set in *settings*, a mapping, ``wandb.Settings`` or None."""
    if settings is None:
        return {}
    if isinstance(settings, Mapping):
        return dict(settings)
    return {name: getattr(settings, name) for name in settings.model_fields_set}


__all__ = ["CAN_FLUSH", "caches", "init_arguments", "leave_service_of_others", "mode_of", "root_directory", "run_id_of"]
