"""A tracker whose process is killed inside ``start``, at each of its lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import os, signal, sys
from importlib import import_module
from pathlib import Path

sys.path[:] = {path!r}
from accelbus.tracking import RunInfo
kind = getattr(import_module({module!r}), {name!r})
reached = 0
while True:
    directory = Path({directory!r}, str(reached))
    child = os.fork()
    if child == 0:
        left = reached

        def trace(frame, event, argument):
            global left
            if event in ("line", "return"):
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
            return trace

        tracker = kind("run", directory / "out")
        tracker.run_info = RunInfo("run", state_dir=directory / "state", output_dir=directory / "out")
        tracker.restore({{}})
        sys.settrace(lambda frame, event, argument: trace if frame.f_code is kind.start.__code__ else None)
        tracker.start()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        sys.exit(os.WEXITSTATUS(status))
    reached += 1
    print(directory, flush=True)
"""


def killed_starts(kind: type, directory: Path) -> list[Path]:
    """Kill a process before each line of *kind*'s ``start`` and at its end; return what each left behind, its output is in ``out``."""
    source = _SCRIPT.format(path=sys.path, module=kind.__module__, name=kind.__name__, directory=str(directory))
    done = subprocess.run([sys.executable, "-c", source], check=True, timeout=120, capture_output=True, text=True)
    return [Path(line) for line in done.stdout.splitlines()]
