"""Logging tensors that lie on a GPU: no synchronisation, no touch of the device from another thread, nothing lost."""

from __future__ import annotations

import pytest
import torch

import accelbus
from tests.support.lines import metric_lines

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]


@pytest.fixture
def run(tmp_path):
    """A run in this process, offline: what was logged is read from its journal."""
    run = accelbus.init("device", dir=str(tmp_path), mode="offline", resume="never")
    yield run
    run.finish()


@pytest.fixture
def no_synchronisation():
    """Any call that waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_no_log_waits_for_the_device(run, no_synchronisation):
    """A thousand steps, every type of number."""
    values = {
        "loss": torch.tensor(0.5, device="cuda"),
        "bf16": torch.tensor(0.25, device="cuda", dtype=torch.bfloat16),
        "count": torch.tensor(7, device="cuda"),
        "double": torch.tensor(0.1, device="cuda", dtype=torch.float64),
        "list": torch.arange(3.0, device="cuda"),
    }
    for step in range(1000):
        run.log(values, step=step)
    torch.cuda.set_sync_debug_mode("default")
    run.finish()
    lines = metric_lines(run)
    assert len(lines) == 1000
    assert all(line == {"loss": 0.5, "bf16": 0.25, "count": 7, "double": 0.1, "list": [0.0, 1.0, 2.0]} for line in lines.values())


def test_a_value_is_that_of_the_moment_of_the_call(run):
    """The tensor changes right after, on the same stream; the copy was ordered before."""
    loss = torch.zeros((), device="cuda")
    for step in range(200):
        run.log({"loss": loss}, step=step)
        loss += 1
    run.finish()
    assert {step: line["loss"] for step, line in metric_lines(run).items()} == {step: float(step) for step in range(200)}


def test_log_returns_while_the_stream_is_busy(run):
    """A kernel that runs for a second holds up the value, not the call."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    run.log({"warm": torch.ones((), device="cuda")}, step=0)
    torch.cuda.synchronize()
    start.record()
    torch.cuda._sleep(int(2e9))
    end.record()
    run.log({"loss": torch.ones((), device="cuda")}, step=1)
    assert not end.query()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 100
    run.finish()
    assert metric_lines(run)[1] == {"loss": 1.0}


def test_a_value_logged_during_graph_capture_is_counted(run):
    """The capture goes on undisturbed, and its graph replays."""
    x = torch.ones((), device="cuda")
    run.log({"x": x}, step=0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        run.log({"y": y}, step=1)
    graph.replay()
    run.log({"y": y}, step=2)
    run.finish()
    assert metric_lines(run)[2] == {"y": 2.0}
    assert run.statistics().dropped == {"device_lost": 1}


def test_log_beside_a_compiled_step(run):
    """What a compiled function returns is logged like everything else."""

    @torch.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x * x).mean()

    for number in range(5):
        run.log({"loss": step(torch.full((8,), float(number), device="cuda"))}, step=number)
    run.finish()
    assert {s: line["loss"] for s, line in metric_lines(run).items()} == {s: float(s * s) for s in range(5)}
