"""Fields and defaults are those of the reference, and every field is an argument of the torch that is installed."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.parallel import DistributedDataParallel

from accelbus.handlers import (
    AutocastKwargs,
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
    comm_hooks,
    profile,
)

NO = DDPCommunicationHookType.NO
# {handler: its fields and defaults, in order, as the reference lists them}
REFERENCE: dict[type[KwargsHandler], dict[str, Any]] = {
    AutocastKwargs: {"enabled": True, "cache_enabled": None},
    DistributedDataParallelKwargs: {
        "dim": 0,
        "broadcast_buffers": True,
        "bucket_cap_mb": 25,
        "find_unused_parameters": False,
        "check_reduction": False,
        "gradient_as_bucket_view": False,
        "static_graph": False,
        "comm_hook": NO,
        "comm_wrapper": NO,
        "comm_state_option": {},
    },
    GradScalerKwargs: {
        "init_scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "enabled": True,
    },
    InitProcessGroupKwargs: {"backend": "nccl", "init_method": None, "timeout": None},
    ProfileKwargs: {
        "activities": None,
        "schedule_option": None,
        "on_trace_ready": None,
        "record_shapes": False,
        "profile_memory": False,
        "with_stack": False,
        "with_flops": False,
        "with_modules": False,
        "output_trace_dir": None,
    },
}
OURS = {ProfileKwargs: ["ranks", "on_export"]}
TORCH = {
    AutocastKwargs: torch.autocast,
    DistributedDataParallelKwargs: DistributedDataParallel,
    GradScalerKwargs: torch.amp.GradScaler,
    InitProcessGroupKwargs: dist.init_process_group,
    ProfileKwargs: torch.profiler.profile,
}
# {field: why torch's default is another one, or torch has no such argument}
DIFFERENT = {
    "backend": "torch guesses from the device; so do we unless it is set",
    "broadcast_buffers": "None is True in newer torch",
    "bucket_cap_mb": "None is 25 with a small first bucket",
    "comm_hook": "registered on the wrapped model",
    "comm_wrapper": "registered on the wrapped model",
    "comm_state_option": "registered on the wrapped model",
    "schedule_option": "torch.profiler.schedule",
    "output_trace_dir": "ours to export",
    "ranks": "ours to choose",
    "on_export": "ours to call",
}


def declared(handler: type[KwargsHandler]) -> dict[str, Any]:
    return {
        field.name: field.default if field.default is not dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(handler)
    }


@pytest.mark.parametrize("handler", REFERENCE)
def test_fields_and_defaults_are_the_references(handler):
    """Same names, order and defaults; what is added comes after them."""
    fields = declared(handler)
    assert list(fields) == [*REFERENCE[handler], *OURS.get(handler, [])]
    assert {name: fields[name] for name in REFERENCE[handler]} == REFERENCE[handler]


@pytest.mark.parametrize("handler", TORCH)
def test_fields_are_arguments_of_torch_with_its_defaults(handler):
    """A field that is not, or has another default, is one of those we know of."""
    parameters = inspect.signature(TORCH[handler]).parameters
    differing = {name for name, default in declared(handler).items() if name not in parameters or parameters[name].default != default}
    assert differing <= DIFFERENT.keys()


def test_schedule_takes_what_torch_takes():
    """The keys of `schedule_option` are the parameters of `torch.profiler.schedule`, the required ones too."""
    parameters = inspect.signature(torch.profiler.schedule).parameters.values()
    assert {one.name for one in parameters} == {*profile.LEAST}
    assert {one.name for one in parameters if one.default is one.empty} == {*profile.REQUIRED}


def test_activities_are_those_of_torch():
    """Every activity is a member of torch's enum, and torch has no other device."""
    assert {name for name in dir(torch.profiler.ProfilerActivity) if name.isupper()} - {"PRIVATEUSE1"} == {
        name.upper() for name in profile.ACTIVITIES
    }


def test_options_of_hooks_are_those_of_torch():
    """What is let through without asking torch is what the states take."""
    assert {*inspect.signature(PowerSGDState).parameters} == comm_hooks.POWER_SGD_OPTIONS
    assert {*inspect.signature(PostLocalSGDState).parameters} == comm_hooks.LOCAL_SGD_OPTIONS


def test_timeouts_are_those_of_torch():
    """What is filled in where no timeout is set is what torch would have taken."""
    assert InitProcessGroupKwargs(backend="gloo").timeout == dist.default_pg_timeout
    nccl = dist.constants.default_pg_nccl_timeout
    assert nccl is None or InitProcessGroupKwargs().timeout == nccl


def test_hooks_have_the_references_values():
    """The members and values of the enum."""
    assert {member.name: member.value for member in DDPCommunicationHookType} == {
        "NO": "no",
        "FP16": "fp16",
        "BF16": "bf16",
        "POWER_SGD": "power_sgd",
        "BATCHED_POWER_SGD": "batched_power_sgd",
        "POST_LOCAL_SGD": "post_localSGD",
    }


@pytest.mark.parametrize("handler", REFERENCE)
def test_fields_are_accelerates(handler):
    """Accelerate, as it is installed, has the same fields and defaults."""
    theirs = getattr(pytest.importorskip("accelerate.utils"), handler.__name__)
    expected = {name: getattr(value, "value", value) for name, value in declared(theirs).items()}
    assert {name: value for name, value in declared(handler).items() if name not in OURS.get(handler, [])} == expected
