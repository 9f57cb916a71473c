"""With what a run was made, without secrets and without waiting."""

import json
import os
import subprocess
import sys
import threading
import time
import types

import pytest

from accelbus.client import facts
from accelbus.client.facts import Recorder, allowed_environment, immediate_facts, torch_facts, without_secrets
from accelbus.client.identity import Identity
from accelbus.config import Settings, Tuning
from tests.support.job import wait_until

IDENTITY = Identity("run", 0, 4, 0, 2, "node1", "torchrun", bytes(16), 1)
SETTINGS = Settings(project="p")


class TestEnvironment:
    def test_only_what_is_listed_is_recorded(self):
        """Everything else may be a secret, or nobody's business."""
        environ = {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/home/me", "MY_SETTING": "1", "OMP_NUM_THREADS": "4"}
        assert allowed_environment(environ) == {"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}

    def test_the_user_can_list_more(self):
        """By name or glob."""
        assert allowed_environment({"MY_A": "1", "MY_B": "2", "YOURS": "3"}, ["MY_*", "YOURS"]) == {"MY_A": "1", "MY_B": "2", "YOURS": "3"}

    @pytest.mark.parametrize(
        "name",
        ["NVIDIA_API_KEY", "TORCH_TOKEN", "nccl_Secret", "SLURM_JOB_PASSWORD", "UCX_CREDENTIALS", "SLURM_JWT", "MY_AUTH", "XLA_COOKIE"],
    )
    def test_a_secret_is_never_recorded(self, name):
        """Not even if somebody lists everything."""
        assert allowed_environment({name: "s3cret"}, ["*"]) == {}

    def test_passwords_in_addresses_are_hidden(self):
        """A variable that is no secret by its name may hold one."""
        assert allowed_environment({"HF_HOME": "https://me:s3cret@host/x"}) == {"HF_HOME": "https://***@host/x"}

    def test_a_long_value_is_cut(self):
        """LD_LIBRARY_PATH can be a book."""
        assert len(allowed_environment({"LD_LIBRARY_PATH": "x" * 10_000})["LD_LIBRARY_PATH"]) == 4096


@pytest.mark.parametrize(
    "given, shown",
    [
        (["train.py", "--lr", "0.1"], ["train.py", "--lr", "0.1"]),
        (["--api-key", "s3cret", "--lr", "1"], ["--api-key", "***", "--lr", "1"]),
        (["--api-key=s3cret"], ["--api-key=***"]),
        (["--wandb_token", "-s3cret"], ["--wandb_token", "***"]),
        (["--password", "--next", "x"], ["--password", "--next", "x"]),
        (["logger.wandb.api_key=s3cret"], ["logger.wandb.api_key=***"]),
        (["+auth.secret=s3cret"], ["+auth.secret=***"]),
        (["--db", "postgres://me:s3cret@host/db"], ["--db", "postgres://***@host/db"]),
        (
            ["--tokenizer", "gpt2", "--max-tokens=5", "--key-dim=64", "monkey=1"],
            ["--tokenizer", "gpt2", "--max-tokens=5", "--key-dim=64", "monkey=1"],
        ),
    ],
)
def test_a_command_is_recorded_without_secrets(given, shown):
    """Options that are called like one lose their value; others that only sound like it keep theirs."""
    assert without_secrets(given) == shown


def test_what_is_known_at_once_is_plain_data(monkeypatch, tmp_path):
    """It travels as an event, whatever names files have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--data", "caf\udce9"])
    known = immediate_facts(IDENTITY, SETTINGS, {"WORLD_SIZE": "4", "WANDB_API_KEY": "s3cret"})
    assert known["argv"] == ["train.py", "--data", "caf\udce9"]
    assert known["cwd"] == str(tmp_path)
    assert known["host"] == "node1"
    assert known["launcher"] == {"name": "torchrun", "world_size": 4, "local_world_size": 2, "restart_count": 1}
    assert known["environment"] == {"WORLD_SIZE": "4"}
    assert json.loads(json.dumps(facts._encodable(known)))["argv"][2] == "caf\\udce9"


def test_a_directory_that_is_gone_is_unknown(monkeypatch, tmp_path):
    """The script may have removed the one it runs in."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert immediate_facts(IDENTITY, SETTINGS, {})["cwd"] is None


def test_torch_is_asked_only_if_it_is_there(monkeypatch):
    """Importing it takes seconds, and a CUDA call in another thread breaks the capture of a graph."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert torch_facts() is None
    assert "torch" not in sys.modules
    version = types.SimpleNamespace(cuda="12.8", hip=None, git_version="abc")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.9.0+cu128", version=version))
    assert torch_facts() == {"version": "2.9.0+cu128", "cuda": "12.8", "hip": None, "git": "abc"}
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())
    assert torch_facts() is None


class Parts:
    """What a recorder hands over."""

    def __init__(self) -> None:
        self.parts: list[dict] = []

    def __call__(self, part: dict) -> None:
        self.parts.append(part)

    @property
    def all(self) -> dict:
        return {key: value for part in self.parts for key, value in part.items()}


def recorder(put, **tuning) -> Recorder:
    return Recorder(IDENTITY, SETTINGS, Tuning(**tuning), put)


def fake_probe(monkeypatch, tmp_path, program: str) -> None:
    path = tmp_path / "probe.py"
    path.write_text(program)
    monkeypatch.setattr(facts, "_PROBE", path)


def test_the_record_comes_in_two_parts():
    """What is known at once does not wait for the rest."""
    parts = Parts()
    one = recorder(parts)
    one.start()
    one.finish(30.0)
    assert "argv" in parts.parts[0]
    assert "packages" not in parts.parts[0]
    found = parts.all
    assert found["packages"]["msgspec"]
    assert found["cpu"]["count"] == os.cpu_count()
    assert found["memory_bytes"] > 0
    assert os.uname().release in found["os"]
    assert {"git", "patch", "gpus", "torch"} <= found.keys()


def test_what_does_not_come_in_time_is_unknown(monkeypatch, tmp_path):
    """The quick answers are kept, the program and what it has started are ended."""
    fake_probe(monkeypatch, tmp_path, 'import time; print(\'{"os": "Plan 9"}\', flush=True); time.sleep(3600)')
    parts = Parts()
    one = recorder(parts, facts_timeout=0.5)
    one.start()
    one._thread.join(20)
    assert not one._thread.is_alive()
    assert (parts.all["os"], parts.all["git"], parts.all["packages"]) == ("Plan 9", None, None)
    assert one._probe.returncode == -9


def test_a_run_that_ends_does_not_wait_for_long(monkeypatch, tmp_path):
    """It takes what there is."""
    fake_probe(monkeypatch, tmp_path, 'import time; print(\'{"os": "Plan 9"}\', flush=True); time.sleep(3600)')
    parts = Parts()
    one = recorder(parts, facts_patience=5.0)
    one.start()
    wait_until(lambda: one._probe is not None, what="the probe")
    began = time.monotonic()
    one.finish(0.0)
    assert time.monotonic() - began < 5
    assert parts.all["git"] is None
    assert not one._thread.is_alive()


@pytest.mark.parametrize(
    "program", ["raise SystemExit(3)", "print('no json', flush=True)", "print('[1]', flush=True)", "import sys; sys.stdin.close()"]
)
def test_a_broken_search_is_silent(monkeypatch, tmp_path, program, recwarn, caplog):
    """No warning, no error, no log line: everything is unknown."""
    fake_probe(monkeypatch, tmp_path, program)
    parts = Parts()
    one = recorder(parts)
    one.start()
    one.finish(20.0)
    assert not one._thread.is_alive()
    assert parts.all["packages"] is None
    assert parts.all["torch"] is None or parts.all["torch"]["version"]
    assert not caplog.records


def test_no_program_can_be_started(monkeypatch):
    """A program without a Python to run it still says what it knows."""
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    parts = Parts()
    one = recorder(parts)
    one.start()
    one.finish(20.0)
    assert parts.all["argv"]
    assert parts.all["packages"] is None


def test_a_receiver_that_fails_is_nobody_s_trouble():
    """The run may be over while something was still being looked up."""

    def put(part: dict) -> None:
        raise ValueError("mmap closed")

    one = recorder(put)
    one.start()
    one.finish(20.0)
    assert not one._thread.is_alive()


def test_without_room_for_a_thread_nothing_is_recorded(monkeypatch):
    """Training goes on."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    one = recorder(Parts())
    one.start()
    one.finish(1.0)


def test_starting_costs_next_to_nothing():
    """`init` has 0.3 s for everything; the median of ten is well below a hundredth of that."""
    costs = []
    for _ in range(10):
        began = time.perf_counter()
        one = recorder(Parts(), facts_timeout=0.0)
        one.start()
        costs.append(time.perf_counter() - began)
        one.finish(20.0)
    assert sorted(costs)[5] < 0.02


def test_the_program_ends_with_nobody_to_tell():
    """A killed trainer leaves it with a broken pipe, and nothing behind."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-P", facts._PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    process.stdout.close()
    process.stdin.write(json.dumps({"path": sys.path, "directories": [], "patch_bytes": 10}).encode() + b"\n")
    process.stdin.close()
    assert process.wait(60) != 0
