"""A list of handlers is sorted by kind, and what does not belong there is said clearly."""

from __future__ import annotations

import dataclasses
import enum
from datetime import timedelta
from typing import Any

import pytest

from accelbus.errors import ConfigurationError
from accelbus.handlers import (
    AutocastKwargs,
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    Handlers,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
    as_handler,
    sort_handlers,
)


class Mine(GradScalerKwargs):
    """A subclass, as people write them."""


@dataclasses.dataclass
class OfNoKind(KwargsHandler):
    a: int = 0


def test_handlers_are_found_by_kind():
    """In any order, from any iterable; what was not given is None."""
    given = [ProfileKwargs(), InitProcessGroupKwargs(), AutocastKwargs(), Mine(), DistributedDataParallelKwargs()]
    found = sort_handlers(iter(given))
    assert found == Handlers(given[2], given[4], given[3], given[1], given[0])
    assert found.scaler_handler is given[3]
    assert sort_handlers([given[2]]) == Handlers(autocast_handler=given[2])
    assert sort_handlers(None) == sort_handlers([]) == Handlers()


@pytest.mark.parametrize(
    "given, error, message",
    [
        ([AutocastKwargs(), AutocastKwargs(enabled=False)], ValueError, "expected one AutocastKwargs at most"),
        ([GradScalerKwargs(), Mine()], ValueError, "expected one GradScalerKwargs at most"),
        ([None], TypeError, r"kwargs_handlers\[0\]: expected one of AutocastKwargs.*, got None \(NoneType\); leave it out"),
        ([AutocastKwargs(), "fp16"], TypeError, r"kwargs_handlers\[1\]: .*got 'fp16' \(str\)"),
        ([AutocastKwargs], TypeError, r"write AutocastKwargs\(…\)"),
        ([OfNoKind()], TypeError, "OfNoKind is of no kind that is used anywhere; derive it from one of AutocastKwargs"),
        (AutocastKwargs(), TypeError, r"expected a list of handlers, got AutocastKwargs\(.*; write kwargs_handlers=\[…\]"),
        (3, TypeError, "expected a list of handlers, got 3"),
    ],
)
def test_what_does_not_belong_there_is_an_error(given, error, message):
    """Two of a kind, None, classes, foreign objects, and something that is no list."""
    with pytest.raises(error, match=message) as raised:
        sort_handlers(given)
    assert isinstance(raised.value, ConfigurationError)


def test_settings_are_those_of_the_handlers_that_were_given():
    """By the name of their kind, also for subclasses."""
    assert sort_handlers([Mine(init_scale=8.0)]).settings() == {"GradScalerKwargs": Mine(init_scale=8.0).settings()}


def foreign(name: str, fields: list[tuple[str, Any, Any]]) -> type:
    return dataclasses.make_dataclass(
        name,
        [(field, kind, dataclasses.field(default_factory=default) if callable(default) else default) for field, kind, default in fields],
    )


class TheirHooks(enum.Enum):
    NO = "no"
    FP16 = "fp16"
    POWER_SGD = "power_sgd"


def test_another_librarys_handlers_are_taken_over():
    """By class name and fields; enums by their value; what differs from their defaults was chosen."""
    theirs = foreign(
        "DistributedDataParallelKwargs",
        [("bucket_cap_mb", int, 25), ("comm_hook", TheirHooks, TheirHooks.NO), ("comm_state_option", dict, dict), ("of_theirs", int, 3)],
    )
    found = as_handler(theirs(comm_hook=TheirHooks.POWER_SGD, comm_state_option={"matrix_approximation_rank": 2}, of_theirs=4))
    assert found == DistributedDataParallelKwargs(comm_hook="power_sgd", comm_state_option={"matrix_approximation_rank": 2})
    assert found.comm_hook is DDPCommunicationHookType.POWER_SGD
    assert found.to_kwargs() == {}
    assert as_handler(theirs(bucket_cap_mb=5)).to_kwargs() == {"bucket_cap_mb": 5}

    class Derived(theirs):
        """Of their handler."""

    assert as_handler(Derived(bucket_cap_mb=6)).to_kwargs() == {"bucket_cap_mb": 6}


def test_accelerates_own_handlers_are_taken_over():
    """Those of the Accelerate that is installed."""
    utils = pytest.importorskip("accelerate.utils")
    hooks = utils.DDPCommunicationHookType
    found = sort_handlers(
        [
            utils.AutocastKwargs(cache_enabled=True),
            utils.GradScalerKwargs(init_scale=1024, growth_factor=2),
            utils.DistributedDataParallelKwargs(bucket_cap_mb=15, comm_hook=hooks.BATCHED_POWER_SGD, comm_wrapper=hooks.FP16),
            utils.InitProcessGroupKwargs(backend="gloo"),
            utils.ProfileKwargs(activities=["cpu"], schedule_option={"wait": 0, "warmup": 1, "active": 1}),
        ]
    )
    assert found == Handlers(
        AutocastKwargs(cache_enabled=True),
        DistributedDataParallelKwargs(bucket_cap_mb=15, comm_hook="batched_power_sgd", comm_wrapper="fp16"),
        GradScalerKwargs(init_scale=1024),
        InitProcessGroupKwargs(backend="gloo"),
        ProfileKwargs(activities=["cpu"], schedule_option={"wait": 0, "warmup": 1, "active": 1}),
    )
    assert found.scaler_handler.to_kwargs() == {"init_scale": 1024}
    assert found.init_handler.to_kwargs() == {"backend": "gloo", "timeout": timedelta(minutes=30)}
    with pytest.raises(TypeError, match=r"expected one of AutocastKwargs.*got GradientAccumulationPlugin"):
        sort_handlers([utils.GradientAccumulationPlugin(num_steps=2)])


def test_a_timeout_that_follows_from_the_backend_was_not_chosen():
    """Accelerate fills it in; ours stays free to follow another backend."""
    theirs = foreign("InitProcessGroupKwargs", [("backend", str, "nccl"), ("timeout", Any, None)])
    found = as_handler(theirs(timeout=timedelta(minutes=10)))
    assert found.to_kwargs() == {}
    found.backend = "gloo"
    assert found.timeout == timedelta(minutes=30)
