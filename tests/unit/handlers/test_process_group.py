"""`InitProcessGroupKwargs` makes the process group, or says why not."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

from accelbus.errors import ConfigurationError
from accelbus.handlers import InitProcessGroupKwargs, NoEffectWarning, in_force

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, {}),
        ({"backend": "gloo"}, {"backend": "gloo", "timeout": 30 * MINUTE}),
        ({"backend": "gloo", "timeout": 10 * MINUTE}, {"backend": "gloo", "timeout": 10 * MINUTE}),
        ({"timeout": 10 * MINUTE}, {"timeout": 10 * MINUTE}),
        ({"timeout": 30 * MINUTE}, {"timeout": 30 * MINUTE}),
        ({"backend": "nccl"}, {"backend": "nccl"}),
        ({"timeout": None}, {}),
    ],
)
def test_what_was_set_is_passed_on(arguments, expected):
    """Also where it equals the default: torch's default is that of another backend."""
    assert InitProcessGroupKwargs(**arguments).to_kwargs() == expected


def test_a_timeout_that_was_not_set_follows_the_backend():
    """Until one is set; None gives it back."""
    handler = InitProcessGroupKwargs()
    assert handler.timeout == 10 * MINUTE
    handler.backend = "gloo"
    assert handler.timeout == 30 * MINUTE
    handler.timeout = MINUTE
    handler.backend = "nccl"
    assert handler.timeout == MINUTE
    handler.timeout = None
    assert handler.timeout == 10 * MINUTE


@pytest.mark.parametrize("backend", ["gloo", "NCCL", "cuda:nccl,cpu:gloo", "smddp", None])
def test_backends_are_known(backend):
    """Those of torch, of well-known plug-ins, and one per device."""
    assert InitProcessGroupKwargs(backend=backend).backend == (backend and backend.lower())


@pytest.mark.parametrize("backend, close", [("goo", "gloo"), ("cuda:ncl,cpu:gloo", "nccl")])
def test_an_unknown_backend_is_an_error(backend, close):
    """It names the known ones and the one that may have been meant."""
    with pytest.raises(ConfigurationError, match=rf"InitProcessGroupKwargs.backend: unknown .*; did you mean '{close}'\? \(known: .*gloo"):
        InitProcessGroupKwargs(backend=backend)


def test_a_registered_backend_is_known(monkeypatch):
    """Torch is asked about a name that we do not know."""
    monkeypatch.setattr(dist.Backend, "backend_list", [*dist.Backend.backend_list, "mine"])
    assert InitProcessGroupKwargs(backend="mine").backend == "mine"


def test_the_group_has_the_timeout_that_was_set():
    """Ten minutes with gloo, where torch's own default is thirty."""
    assert InitProcessGroupKwargs(backend="gloo", timeout=10 * MINUTE).init(store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert in_force() == {"backend": "gloo", "world_size": 1, "timeout": 600.0}
        assert InitProcessGroupKwargs().settings() == {"backend": "gloo", "init_method": None, "timeout": 600.0, "world_size": 1}
    finally:
        dist.destroy_process_group()


def test_a_backend_that_was_not_set_fits_the_device(tmp_path):
    """The reference's "nccl" is no choice of anybody's; the timeout is that of the backend that is used."""
    handler = InitProcessGroupKwargs(init_method=f"file://{tmp_path}/meeting")
    assert handler.init(device_type="cpu", rank=0, world_size=1)
    try:
        assert in_force() == {"backend": "gloo", "world_size": 1, "timeout": 1800.0}
    finally:
        dist.destroy_process_group()


def test_a_process_that_ends_lets_gloo_finish_first():
    """Its threads need the interpreter to drop what they have sent; one that is ending would kill the process."""
    script = """
import torch.distributed as dist
from accelbus.handlers import InitProcessGroupKwargs, process
process.time.sleep = lambda seconds: print("waits", dist.is_initialized())
assert InitProcessGroupKwargs(backend="gloo").init(store=dist.HashStore(), rank=0, world_size=1)
print("ends")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n") == ["ends", "waits True", ""]


def test_a_backend_that_torch_lacks_is_an_error():
    """It names those that there are."""
    if dist.is_mpi_available():
        pytest.skip("this torch has MPI")
    with pytest.raises(ConfigurationError, match=r"backend 'mpi' is not part of this torch \(available: .*gloo"):
        InitProcessGroupKwargs(backend="mpi").init()


def test_a_group_that_exists_is_left_alone_and_said_once(group_of_one):
    """With what is in force instead."""
    with pytest.warns(NoEffectWarning, match=r"exists already \(backend 'gloo', timeout 1800.0 s\)") as warned:
        assert not InitProcessGroupKwargs(timeout=MINUTE).init()
    assert warned[0].filename == __file__
    assert not InitProcessGroupKwargs(timeout=MINUTE).init()
    assert in_force()["timeout"] == 1800.0


def test_a_process_without_a_launcher_needs_no_group():
    """A script runs alone as it does under torchrun."""
    with pytest.warns(NoEffectWarning, match=r"InitProcessGroupKwargs has no effect: this is a single process"):
        assert not InitProcessGroupKwargs(timeout=MINUTE).init()
    assert not dist.is_initialized()
