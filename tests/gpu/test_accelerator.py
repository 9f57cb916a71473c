"""A training step through `Accelerator` on a GPU: NCCL, fp16, a fused optimizer, all telemetry, and nothing that waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelbus.accelerator import Accelerator
from accelbus.handlers import GradScalerKwargs, ProfileKwargs
from tests.support.lines import metric_lines

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
WARM, STEPS, OVERFLOWS = 6, 20, 3
"""Steps before anything is forbidden: DDP sorts its buckets, the optimizer makes its state. Then steps, of which one overflows."""


@pytest.fixture
def accelerator(tmp_path: Path) -> Iterator[Accelerator]:
    """One process, with a process group all the same, and a run that is offline."""
    torch.manual_seed(0)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    made = Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=1024.0, growth_interval=10_000)])
    made.init_trackers("gpu", dir=str(tmp_path / "runs"), mode="offline", resume="never")
    yield made
    torch.cuda.set_sync_debug_mode("default")
    made.end_training(destroy_process_group=True)


def test_a_step_and_its_log_wait_for_nothing(accelerator: Accelerator):
    """Loss, norm of the gradients, scale and skipped steps arrive, under their steps, and an overflow is counted without being asked for."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda(), device_ids=[0])
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))
    inputs = torch.randn(32, 64, device="cuda")
    factors = torch.ones(WARM + STEPS, device="cuda")
    factors[WARM + OVERFLOWS] = float("inf")
    for step, factor in enumerate(factors.unbind()):
        if step == WARM:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        with accelerator.accumulate(model):
            loss = model(inputs).pow(2).mean()
            accelerator.backward(loss * factor)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.log({"loss": loss}, step=step)
    torch.cuda.set_sync_debug_mode("default")
    accelerator.end_training()

    assert accelerator.run is not None
    lines = metric_lines(accelerator.run)
    assert set(lines) == set(range(WARM + STEPS))
    assert lines[0]["loss"] > lines[WARM + STEPS - 1]["loss"] > 0
    assert [line["telemetry/scaler/skipped_steps"] for line in lines.values()] == [
        int(step >= WARM + OVERFLOWS) for step in range(WARM + STEPS)
    ]
    assert lines[WARM + STEPS - 1]["telemetry/scaler/scale"] == 512
    assert all(line["telemetry/grad_norm"] > 0 for step, line in lines.items() if step != WARM + OVERFLOWS)
    assert accelerator.run.statistics().dropped == {}
    facts = accelerator.run.config["accelerator"]
    assert (facts["backend"], facts["device"], facts["mixed_precision"]) == ("nccl", "cuda", "fp16")
    assert sum(facts["ddp"]["bucket_bytes"]) == 4 * (64 * 64 + 64 + 64 + 1)


def test_a_profile_holds_what_the_device_did(accelerator: Accelerator):
    """File and table go to the trackers; the table is sorted by the device's time."""
    model = accelerator.prepare(nn.Linear(64, 64))
    with accelerator.profile(ProfileKwargs()) as profiler:
        model(torch.randn(8, 64, device="cuda")).sum().backward()
    (trace,) = profiler.exported
    assert accelerator.run is not None
    assert trace.parent == accelerator.run.dir / "traces"
    accelerator.end_training()
    keys = {key for line in metric_lines(accelerator.run).values() for key in line}
    assert "profile/rank0" in keys
    assert any(trace.name in key for key in keys)
    assert any(event.self_device_time_total > 0 for event in profiler.key_averages())
