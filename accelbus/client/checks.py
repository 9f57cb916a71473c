"""What `accelbus.init` checks before anything is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Container

import msgspec

from accelbus import tracking
from accelbus.client.endpoints import check_endpoint
from accelbus.client.identity import Identity
from accelbus.config import Settings
from accelbus.errors import ConfigurationError
from accelbus.rundir import RunDir


def check_settings(settings: Settings, given: Container[str] = ()) -> tuple[str, ...]:
    """Return the resolved tracker names; everything a user can get wrong is found here, before the first step.

    Args:
        settings: what the user wants.
        given: names of trackers that came as class or instance.

    Raises:
        ConfigurationError: saying what was expected and what came; see `accelbus.init` for its kinds.
    """
    if os.name != "posix":
        raise ConfigurationError("accelbus needs Linux or macOS; on Windows use WSL")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ConfigurationError("accelbus needs the GIL: run with PYTHON_GIL=1, or a Python that is not free-threaded")
    if settings.reduce is not None and set(settings.reduce.values()) - {"mean"}:
        raise ConfigurationError(f"reduce={settings.reduce!r}: expected 'mean' for every pattern; other reductions are not there yet")
    if not settings.project:
        raise ConfigurationError("project is missing: accelbus.init('my-project') or ACCELBUS_PROJECT")
    if settings.resume == "must" and settings.run_id is None:
        raise ConfigurationError("resume='must' needs the run_id of the run to go on with")
    _check_plain(settings)
    if settings.endpoint is not None:
        check_endpoint(settings.endpoint)
    # An offline run is delivered by `accelbus sync`, perhaps from a machine where more is installed.
    sinks = tracking.resolve(settings.log_with, check_installed=settings.mode == "online", given=given)
    missing = [name for name in settings.require if name not in sinks]
    if missing:
        raise ConfigurationError(f"require names {missing[0]!r}, which is not in log_with ({', '.join(sinks) or 'none'})")
    if settings.require and settings.mode != "online":
        raise ConfigurationError(f"require={settings.require!r} with mode={settings.mode!r}: expected mode='online', nothing is started")
    if settings.config_from is not None:
        _check_config_from(settings.config_from, settings, sinks)
    for setting in ("init_kwargs", "log_kwargs", "sink_options", "inline"):
        unknown = [name for name in getattr(settings, setting) if name not in sinks]
        if unknown:
            raise ConfigurationError(f"{setting} is about {unknown[0]!r}, which is not in log_with ({', '.join(sinks) or 'none'})")
    if both := [name for name in settings.require if name in settings.inline]:
        raise ConfigurationError(f"require names {both[0]!r}, which is in inline: expected a tracker with a process of its own")
    return sinks


def _check_plain(settings: Settings) -> None:
    """Everything but the directory is written down, for other processes."""
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if name == "dir":
            continue
        try:
            msgspec.json.encode(value)
            msgspec.msgpack.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConfigurationError(
                f"{name}={value!r}: expected plain data: numbers, text in UTF-8, lists and mappings ({error})"
            ) from error


def _check_config_from(tracker: str, settings: Settings, sinks: tuple[str, ...]) -> None:
    if tracker not in sinks:
        raise ConfigurationError(f"config_from={tracker!r}, which is not in log_with ({', '.join(sinks) or 'none'})")
    if settings.mode != "online":
        raise ConfigurationError(f"config_from={tracker!r} with mode={settings.mode!r}: expected mode='online', it has to be asked")
    if tracker in settings.inline:
        raise ConfigurationError(f"config_from={tracker!r}, which is in inline: expected a tracker with a process of its own")


def check_resume(settings: Settings, identity: Identity, run_dir: RunDir) -> None:
    """Check ``resume`` against what is there.

    Raises:
        ConfigurationError: there is no run to resume, or one although there must not be.
    """
    try:
        there = run_dir.record_path.exists()
    except OSError as error:
        raise ConfigurationError(
            f"run directory {str(run_dir.path)!r} cannot be looked into ({error.strerror or error}); "
            "pass another dir= or run_id= (ACCELBUS_DIR, ACCELBUS_RUN_ID), it may be another user's"
        ) from error
    if settings.resume == "must" and not there:
        raise ConfigurationError(f"resume='must', but there is no run {identity.run_id!r} in {str(run_dir.path.parent)!r}")
    if settings.resume == "never" and there and identity.rank == 0 and identity.restart_count == 0:
        raise ConfigurationError(f"resume='never', but the run {identity.run_id!r} is there already in {str(run_dir.path.parent)!r}")
