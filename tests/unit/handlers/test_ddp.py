"""`DistributedDataParallelKwargs` and communication hooks, in one process; see the integration tests for several."""

from __future__ import annotations

import enum
import functools

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelbus.errors import ConfigurationError
from accelbus.handlers import (
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    NoEffectWarning,
    ddp_in_force,
    register_comm_hook,
    registered,
)

ITER = "start_powerSGD_iter"


class Theirs(enum.Enum):
    FP16 = "fp16"


def average(state, bucket):
    state.append(bucket.index())
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@pytest.fixture
def wrapped(group_of_one) -> DistributedDataParallel:
    """Torch's own wrapper: ours wraps nothing in a group of one."""
    return DistributedDataParallel(nn.Linear(3, 2))


def step(model: nn.Module) -> None:
    model(torch.ones(4, 3)).sum().backward()


def test_without_a_group_the_model_stays_as_it_is():
    """It says why, once."""
    model = nn.Linear(1, 1)
    with pytest.warns(NoEffectWarning, match="has no effect: there is no process group"):
        assert DistributedDataParallelKwargs(bucket_cap_mb=5).wrap(model) is model
    assert DistributedDataParallelKwargs().wrap(model) is model


def test_in_a_group_of_one_the_model_stays_as_it_is(group_of_one):
    """It says why."""
    model = nn.Linear(1, 1)
    with pytest.warns(NoEffectWarning, match="has no effect: there is one process"):
        assert DistributedDataParallelKwargs().wrap(model) is model


@pytest.mark.parametrize("hook", ["fp16", "FP16", DDPCommunicationHookType.FP16, Theirs.FP16])
def test_a_hook_is_known_by_name_and_by_anybodys_enum(hook):
    """Strings are never a hook that is silently not there."""
    assert DistributedDataParallelKwargs(comm_hook=hook).comm_hook is DDPCommunicationHookType.FP16


def test_fields_of_hooks_are_no_arguments_of_ddp():
    """They stay out of `to_kwargs`."""
    handler = DistributedDataParallelKwargs(comm_hook="power_sgd", comm_wrapper="bf16", comm_state_option={ITER: 2}, static_graph=True)
    assert handler.to_kwargs() == {"static_graph": True}
    assert handler.settings()["comm_hook"] == "power_sgd"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"comm_hook": "fp61"}, r"comm_hook: unknown 'fp61'; did you mean 'fp16'\? \(known: no, fp16, bf16, power_sgd"),
        ({"comm_hook": 16}, "comm_hook: expected a hook's name"),
        ({"comm_hook": DDPCommunicationHookType}, "comm_hook: expected a hook's name"),
        ({"comm_wrapper": "power_sgd"}, r"comm_wrapper: unknown 'power_sgd' \(known: no, fp16, bf16\)"),
        ({"comm_wrapper": average}, r"comm_wrapper: unknown '<function average.* \(known: no, fp16, bf16\)"),
        ({"comm_hook": "power_sgd", "comm_state_option": {"matrix_rank": 2}}, "unknown option 'matrix_rank'; did you mean 'matrix_app"),
        ({"comm_hook": "power_sgd", "comm_state_option": {ITER: 1}}, r"\[start_powerSGD_iter\]: expected an integer of at least 2, got 1"),
        ({"comm_hook": "power_sgd", "comm_state_option": {"matrix_approximation_rank": 0}}, "of at least 1, got 0"),
        ({"comm_hook": "fp16", "comm_state_option": {"rank": 2}}, r"unknown option 'rank' \(known: process_group\)"),
        ({"comm_hook": "post_localSGD"}, r"\[start_localSGD_iter\]: expected an integer of at least 0, got None"),
        ({"comm_hook": average, "comm_state_option": {"rank": 2}}, r"unknown option 'rank' \(known: state\)"),
    ],
)
def test_a_wrong_hook_or_option_is_an_error(arguments, message):
    """At construction, with the known names."""
    with pytest.raises(ConfigurationError, match=message):
        DistributedDataParallelKwargs(**arguments)


def test_start_iterations_below_two_are_fine_where_nothing_is_remembered():
    """As torch says."""
    DistributedDataParallelKwargs(comm_hook="power_sgd", comm_state_option={ITER: 0, "use_error_feedback": False, "warm_start": False})


def test_a_wrapper_around_nothing_says_so(wrapped):
    """It has no effect; torch would have said nothing."""
    with pytest.warns(NoEffectWarning, match='wraps nothing: comm_wrapper="fp16" needs a comm_hook'):
        DistributedDataParallelKwargs(comm_wrapper="fp16").register_comm_hook(wrapped)
    assert registered(wrapped) is None


def test_an_option_of_another_hook_says_so(wrapped):
    """It has no effect; a script that chooses the hook by an argument need not change."""
    handler = DistributedDataParallelKwargs(comm_hook="fp16", comm_state_option={ITER: 2})
    with pytest.warns(NoEffectWarning, match='comm_state_option start_powerSGD_iter has no effect with comm_hook="fp16"'):
        handler.register_comm_hook(wrapped)
    assert registered(wrapped).compression_ratio() == 2.0


class Callable:
    def __call__(self, state, gradients):
        return average(state, gradients)


@pytest.mark.parametrize(
    "hook", [average, functools.partial(average), lambda of_mine, tensors: average(of_mine, bucket=tensors), Callable()]
)
def test_a_callable_is_given_the_state(wrapped, hook):
    """Functions, partial functions, lambdas and callable objects, whatever their parameters are called."""
    seen = []
    handler = DistributedDataParallelKwargs(comm_hook=hook, comm_state_option={"state": seen})
    assert handler.register_comm_hook(wrapped) is seen
    step(wrapped)
    assert seen == [0]
    assert registered(wrapped).state is seen
    assert registered(wrapped).compression_ratio() is None


def test_the_state_can_be_reached(wrapped):
    """To save it, and to see what it has compressed."""
    state = register_comm_hook(wrapped, "batched_power_sgd", "fp16", {"matrix_approximation_rank": 1, ITER: 2, "random_seed": 3})
    assert registered(wrapped).state is state
    assert (state.start_powerSGD_iter, state.matrix_approximation_rank) == (2, 1)
    step(wrapped)
    assert registered(wrapped).compression_ratio() == 2.0
    assert ddp_in_force(wrapped)["comm_hook"] == "batched_power_sgd"


def test_a_named_hook_may_have_a_group(wrapped):
    """Of its own, instead of colliding with the one that is passed for it."""
    import torch.distributed as dist

    state = register_comm_hook(wrapped, "power_sgd", options={"process_group": dist.group.WORLD})
    assert state.process_group is dist.group.WORLD


def test_what_is_in_force_is_told(wrapped):
    """As plain data, buckets included."""
    step(wrapped)
    assert ddp_in_force(wrapped) == {
        "bucket_cap_mb": 25.0,
        "find_unused_parameters": False,
        "gradient_as_bucket_view": False,
        "static_graph": False,
        "broadcast_buffers": True,
        "comm_hook": "no",
        "comm_wrapper": "no",
        "bucket_bytes": [32],
    }
