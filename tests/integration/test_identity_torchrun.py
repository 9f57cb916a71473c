"""Identity under the real launchers: torchrun, its restarts and wrappers, shells, mp.spawn."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PRINT_IDENTITY = """
import json, os, pathlib, sys, time
os.environ["MASTER_PORT"] = "29500"  # as if every launch had the same
from accelbus.client.identity import identify
from accelbus.config import Settings

who = identify(settings=Settings(project="digits"))
line = json.dumps({**who._asdict(), "launch": who.launch.hex(), "rendezvous": os.environ.get("TORCHELASTIC_RUN_ID")})
os.write(1, (line + "\\n").encode())
if "--fail-once" in sys.argv and who.restart_count == 0:
    spoke, deadline = pathlib.Path(sys.argv[0]).with_name("spoke"), time.monotonic() + 60
    if who.rank == 0:
        spoke.touch()
    while not spoke.exists() and time.monotonic() < deadline:  # torchrun stops rank 0 when rank 1 fails
        time.sleep(0.01)
    sys.exit(3 if who.rank == 1 else 0)
"""

SPAWN = """
import sys
import torch.distributed as dist
import torch.multiprocessing as mp

def rank(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    exec(open(sys.argv[1]).read(), {})
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.start_processes(rank, args=(sys.argv[2],), nprocs=2, start_method="fork")  # imports torch once
"""

Started = subprocess.Popen[str]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "print_identity.py"
    path.write_text(PRINT_IDENTITY)
    return path


@pytest.fixture
def environ() -> dict[str, str]:
    """Nothing of a launcher around the tests, and the package as it is here."""
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "TORCHELASTIC_", "OMPI_", "PMI", "ACCELBUS_"))
    }
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        inherited.pop(variable, None)
    return {**inherited, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


def start(command: list[str], environ: dict[str, str]) -> Started:
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def torchrun(*arguments: str) -> list[str]:
    # A port of its own for each: the agents would fight over one; the ranks are made to believe that it is the same.
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port, *arguments]


def said(process: Started) -> list[dict[str, Any]]:
    """Return what every rank found, by restart and rank."""
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda who: (who["restart_count"], who["rank"]))


def values(field: str, *found: list[dict[str, Any]]) -> Iterator[Any]:
    return (who[field] for ranks in found for who in ranks)


def test_launches_at_once_with_one_port_and_no_id(script, environ):
    """Two torchruns at the same time, one of which restarts and one of which wraps its ranks: two runs, three launches."""
    wrapper = f'exec_me() {{ "{sys.executable}" "{script}"; }}; exec_me; true'
    restarting = start(torchrun("--max-restarts", "1", str(script), "--fail-once"), environ)
    wrapped = start(torchrun("--no-python", "sh", "-c", wrapper), environ)
    first, second = said(restarting), said(wrapped)

    assert set(values("rendezvous", first, second)) == {"none"}
    assert [(who["restart_count"], who["rank"]) for who in first] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(who["rank"], who["local_rank"], who["world_size"]) for who in second] == [(0, 0, 2), (1, 1, 2)]
    assert len(set(values("run_id", first))) == 1
    assert len(set(values("run_id", second))) == 1
    assert set(values("run_id", first)) != set(values("run_id", second))
    assert [len(set(values("launch", ranks))) for ranks in (first[:2], first[2:], second)] == [1, 1, 1]
    assert len(set(values("launch", first, second))) == 3


def test_ranks_started_twice_from_a_shell(script, environ, tmp_path):
    """`RANK=0 … & RANK=1 … & wait`, twice, with the same port: two runs."""
    ranks = "\n".join(f'RANK={rank} WORLD_SIZE=2 MASTER_ADDR=localhost "{sys.executable}" "{script}" &' for rank in range(2))
    launch = tmp_path / "launch.sh"
    launch.write_text(textwrap.dedent(f"{ranks}\nwait\n") * 2)
    found = said(start(["sh", str(launch)], environ))
    runs = list(values("run_id", found))
    assert sorted(values("rank", found)) == [0, 0, 1, 1]
    assert sorted(runs.count(run) for run in set(runs)) == [2, 2]
    assert len(set(values("launch", found))) == 2


def test_ranks_that_only_torch_knows(script, environ, tmp_path):
    """Ranks may be passed as arguments: the process group is asked."""
    spawn = tmp_path / "spawn.py"
    spawn.write_text(SPAWN)
    found = said(start([sys.executable, str(spawn), str(script), str(tmp_path / "store")], environ))
    assert [(who["launcher"], who["rank"], who["world_size"]) for who in found] == [("group", 0, 2), ("group", 1, 2)]
    assert len(set(values("run_id", found))) == len(set(values("launch", found))) == 1
