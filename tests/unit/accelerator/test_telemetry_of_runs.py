"""What reaches a run beside its values: read from the journal of one that is offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelbus.accelerator import Accelerator
from accelbus.handlers import ProfileKwargs, ddp_in_force
from tests.support.lines import metric_lines

TWO_CYCLES = {"wait": 0, "warmup": 1, "active": 1, "repeat": 2}


@pytest.fixture
def tracked(make: Callable[..., Accelerator], tmp_path: Path) -> Iterator[Callable[..., Accelerator]]:
    """An `Accelerator` whose run has begun, offline."""
    made: list[Accelerator] = []

    def accelerator(settings: dict[str, Any] | None = None, **arguments: Any) -> Accelerator:
        made.append(one := make(**arguments))
        one.init_trackers("telemetry", **{"dir": str(tmp_path / "runs"), "mode": "offline", "resume": "never", **(settings or {})})
        return one

    yield accelerator
    for one in made:
        one.end_training()


def profile(accelerator: Accelerator, **fields: Any) -> list[Path]:
    with accelerator.profile(ProfileKwargs(activities=["cpu"], **fields)) as profiler:
        for _ in range(4):
            torch.ones(4, 4) @ torch.ones(4, 4)
            profiler.step()
    return profiler.exported


def logged(accelerator: Accelerator) -> dict[str, Any]:
    accelerator.end_training()
    return {key: value for values in metric_lines(accelerator.run).values() for key, value in values.items()}


def test_every_cycle_of_a_profile_is_sent_as_file_and_as_table(tracked):
    """Also when the handler names no directory: the traces lie in the run's then."""
    accelerator = tracked()
    traces = profile(accelerator, schedule_option=TWO_CYCLES)
    assert [path.parent for path in traces] == [accelerator.run.dir / "traces"] * 2
    values = logged(accelerator)
    assert {key.rpartition("/")[2] for key in values if "json.gz" in key} == {path.name for path in traces}
    assert "profile/rank0" in values


def test_a_cycle_that_an_exception_ends_is_sent(tracked):
    """The exception arrives as it was."""
    accelerator = tracked()
    with pytest.raises(KeyError, match="diverged"), accelerator.profile(ProfileKwargs(activities=["cpu"])):
        raise KeyError("diverged")
    assert any("json.gz" in key for key in logged(accelerator))


def test_a_directory_of_the_handlers_is_used_instead(tracked, tmp_path):
    """The traces are there, and are sent all the same."""
    accelerator = tracked()
    (trace,) = profile(accelerator, output_trace_dir=str(tmp_path / "mine"))
    assert trace.parent == tmp_path / "mine"
    assert not (accelerator.run.dir / "traces").exists()
    assert any(trace.name in key for key in logged(accelerator))


def test_a_profile_that_nobody_wants_writes_nothing(tracked):
    """Without that kind of telemetry, in a disabled run, or after its end, there are no traces."""
    over = tracked()
    over.end_training()
    for accelerator in (tracked(telemetry=["config"]), tracked({"mode": "disabled"}), over):
        assert profile(accelerator) == []
        assert not (Path(accelerator.run.dir) / "traces").exists()
        assert accelerator.run.statistics().dropped == {}


@pytest.mark.parametrize("logged_steps", [5, 0], ids=["logged", "at the end"])
@pytest.mark.usefixtures("lone_group")
def test_buckets_are_recorded_again_once_they_are_final(tracked, logged_steps):
    """DDP sorts gradients anew after the first step, and says so some steps later."""
    accelerator = tracked()
    layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))
    model = accelerator.prepare(DistributedDataParallel(layers, bucket_cap_mb=1))
    first = accelerator.run.config["accelerator"]["ddp"]["bucket_bytes"]
    for step in range(5):
        accelerator.backward(model(torch.ones(1, 512)).sum())
        if step < logged_steps:
            accelerator.log({"loss": 1.0}, step=step)
    accelerator.end_training()
    final = accelerator.run.config["accelerator"]["ddp"]["bucket_bytes"]
    assert final == ddp_in_force(model)["bucket_bytes"] != first
    assert len(final) == 3


@pytest.mark.usefixtures("lone_group")
def test_buckets_that_are_never_sorted_anew_are_said_once(tracked):
    """With find_unused_parameters DDP keeps its first ones, and nobody asks it again."""
    accelerator = tracked()
    model = accelerator.prepare(DistributedDataParallel(nn.Linear(2, 2), find_unused_parameters=True))
    accelerator.log({"loss": 1.0}, step=0)
    assert accelerator._sorting == []
    assert accelerator.run.config["accelerator"]["ddp"]["bucket_bytes"] == ddp_in_force(model)["bucket_bytes"]
