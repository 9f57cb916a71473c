"""The run record: with what command, code, packages and machine a run was made.

Collected once per attempt by the main rank, after `init` has returned: what this process knows at once, the rest by a program of its
own (`accelbus.client.probe`), for which a short-lived thread waits. Whatever cannot be found out is None, and nobody is warned.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accelbus import __version__
from accelbus.client.identity import Identity
from accelbus.config import Settings, Tuning
from accelbus.values.repair import encodable

ENVIRONMENT: Final = (
    "ACCELBUS_DIR", "ACCELBUS_MODE", "ACCELBUS_RUN_ID", "BNB_*", "CONDA_DEFAULT_ENV", "CUBLAS_*", "CUDA_*", "CUDNN_*", "DEEPSPEED_*", "FI_*", "FSDP_*", "GLOO_*", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "HF_HOME", "HF_HUB_OFFLINE", "HIP_*", "HSA_*", "KMP_*", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MIOPEN_*", "MKL_*", "NCCL_*", "NODE_RANK", "NVIDIA_*", "NVTE_*", "OMP_*",
    "OPENBLAS_*", "PBS_JOBID", "LSB_JOBID", "PYTHONHASHSEED", "PYTHONPATH", "PYTORCH_*", "RANK", "RCCL_*", "ROCR_*", "SLURM_ARRAY_*",
    "SLURM_CLUSTER_NAME", "SLURM_CPUS_*", "SLURM_GPUS*", "SLURM_JOB_*", "SLURM_JOBID", "SLURM_MEM_*", "SLURM_NNODES", "SLURM_NODELIST",
    "SLURM_NPROCS", "SLURM_NTASKS*", "SLURM_RESTART_COUNT", "SLURM_STEP_*", "SLURM_SUBMIT_DIR", "SLURM_TASKS_PER_NODE", "TORCHELASTIC_*",
    "TORCHINDUCTOR_*", "TORCHDYNAMO_*", "TORCH_*", "TRITON_*", "TZ", "UCX_*", "VIRTUAL_ENV", "WORLD_SIZE", "XLA_*",
)  # fmt: skip
"""Variables that change what a run computes or how fast: the allow-list, a ``*`` only at the end. ``record_env`` adds to it."""
_NAMES: Final = frozenset(ENVIRONMENT)
_PREFIXES: Final = tuple(name[:-1] for name in ENVIRONMENT if name.endswith("*"))

_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|JWT|AUTH|COOKIE", re.IGNORECASE)
"""Variables with such a name are never recorded, whoever lists them."""
_SECRET_OPTION: Final = re.compile(
    r"(?:^|[-_.+:/])(?:api|access|secret|private|auth)?[-_]?(?:key|token|secret|password|passwd|pwd|credentials?|auth|jwt|cookie)$",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(r"--.*|-\w")
_USERINFO: Final = re.compile(r"(?<=://)[^/\s@]+@")
_HIDDEN: Final = "***"
_LONGEST_TEXT: Final = 4096
_MOST_ARGUMENTS: Final = 4096
_PROBE: Final = Path(__file__).with_name("probe.py")
"""Run and not imported: what it needs is no rank's to hold in memory."""
_FOUND_BY_PROBE: Final = ("cpu", "memory_bytes", "os", "packages", "git", "patch", "gpus")


class Recorder:
    """Collects the run record in a thread of its own and hands it over in two parts: what is known at once, and the rest.

    Args:
        identity: of the main rank.
        settings: ``record_env``.
        tuning: deadlines and the size of a patch.
        put: takes a part; called in the thread.
    """

    def __init__(self, identity: Identity, settings: Settings, tuning: Tuning, put: Callable[[dict[str, Any]], object]) -> None:
        self._tuning = tuning
        self._put = put
        # Now: the script may change its directory or its arguments.
        self._known = immediate_facts(identity, settings)
        self._request = {"path": _import_path(), "directories": _source_directories(), "patch_bytes": tuning.patch_bytes}
        self._deadline = time.monotonic() + tuning.facts_timeout
        self._probe: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="accelbus-facts", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        # Without room for another thread a run trains all the same.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def finish(self, patience: float) -> None:
        """Wait until everything is handed over, at most *patience* seconds; what is not known then stays unknown."""
        if self._thread.is_alive():
            self._thread.join(patience)
        if self._thread.is_alive():
            self._end_probe()
            self._thread.join(self._tuning.facts_patience)
        self._is_over = True

    def _run(self) -> None:
        # Isolation: this is a thread of somebody's training, and the record a convenience.
        with contextlib.suppress(Exception):
            self._put(_encodable(self._known))
            found = self._ask_probe()
            if not self._is_over:
                self._put(_encodable({**found, "torch": torch_facts()}))

    def _ask_probe(self) -> dict[str, Any]:
        """Return the probe's answers, as many as came in time."""
        found: dict[str, Any] = dict.fromkeys(_FOUND_BY_PROBE)
        try:
            self._probe = process = _start_probe()
        except OSError:
            return found
        timer = threading.Timer(max(0.0, self._deadline - time.monotonic()), self._end_probe)
        timer.daemon = True
        timer.start()
        with contextlib.suppress(OSError, TypeError, ValueError), process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(self._request).encode() + b"\n")
            process.stdin.flush()
            # Until the empty answer and not until the end of the file: a forked worker may hold the pipe open.
            for line in iter(process.stdout.readline, b""):
                if not (answer := json.loads(line)):
                    break
                found |= answer
        timer.cancel()
        return found

    def _end_probe(self) -> None:
        """End the probe and what it started."""
        process = self._probe
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def immediate_facts(identity: Identity, settings: Settings, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what this process knows about itself without asking anybody. Takes well below a millisecond."""
    return {
        "argv": without_secrets(sys.argv),
        "command": shlex.join(without_secrets(sys.orig_argv)),
        "executable": sys.executable,
        "cwd": _working_directory(),
        "pid": os.getpid(),
        "host": identity.host,
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "launcher": {
            "name": identity.launcher,
            "world_size": identity.world_size,
            "local_world_size": identity.local_world_size,
            "restart_count": identity.restart_count,
        },
        "python": f"{platform.python_version()} ({sys.implementation.name})",
        "accelbus": __version__,
        "environment": allowed_environment(os.environ if environ is None else environ, settings.record_env),
    }


def allowed_environment(environ: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that may be recorded: those of `ENVIRONMENT` and *more* (globs), never one that is named like a secret."""

    def is_listed(name: str) -> bool:
        return name in _NAMES or name.startswith(_PREFIXES) or any(fnmatch.fnmatchcase(name, glob) for glob in more)

    return {name: _plain(environ[name]) for name in sorted(environ) if is_listed(name) and not _SECRET.search(name)}


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return *arguments* without the values of options that are named like a secret, and without passwords in addresses."""
    shown: list[str] = []
    hides_next = False
    for argument in arguments[:_MOST_ARGUMENTS]:
        name, equals, _ = argument.partition("=")
        if hides_next and not _OPTION.fullmatch(argument):
            shown.append(_HIDDEN)
        elif equals and _SECRET_OPTION.search(name):
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(_plain(argument))
        hides_next = argument.startswith("-") and not equals and bool(_SECRET_OPTION.search(argument))
    return shown


def torch_facts() -> dict[str, Any] | None:
    """Return which PyTorch this is, if it has been imported; importing it, or asking CUDA anything, is training's business."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    if torch is None or version is None:
        return None
    return {
        "version": str(getattr(torch, "__version__", "")),
        "cuda": getattr(version, "cuda", None),
        "hip": getattr(version, "hip", None),
        "git": getattr(version, "git_version", None),
    }


def _encodable(value: Any) -> Any:
    """Return *value*, plain data, with the lone surrogates written out that names of files and variables may hold."""
    match value:
        case str():
            return encodable(value)
        case dict():
            return {encodable(key): _encodable(item) for key, item in value.items()}
        case list():
            return [_encodable(item) for item in value]
    return value


def _plain(text: str) -> str:
    text = _USERINFO.sub(f"{_HIDDEN}@", text)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return None


def _import_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry or ".")]


def _source_directories() -> list[str]:
    """Return where the run's code may be: beside the script, then in the working directory."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    directories = [str(Path(script).resolve().parent)] if script else []
    return [directory for directory in (*directories, _working_directory()) if directory]


def _start_probe() -> subprocess.Popen[bytes]:
    # -S -P and no PYTHONPATH: neither site packages nor the user's modules, which may be called like one of the standard library.
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT"}}
    return subprocess.Popen(  # noqa: S603  our own program
        [sys.executable, "-S", "-P", str(_PROBE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env=environ,
    )


__all__ = ["ENVIRONMENT", "Recorder", "allowed_environment", "immediate_facts", "torch_facts", "without_secrets"]
