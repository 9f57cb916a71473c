"""`KwargsHandler`: what was chosen is passed on, what was not is left to torch."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from accelbus.errors import ConfigurationError
from accelbus.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    NoEffectWarning,
    ProfileKwargs,
)


@dataclasses.dataclass
class Mock(KwargsHandler):
    a: int = 0
    b: bool = False
    c: float = 3.0


@dataclasses.dataclass
class Wider(DistributedDataParallelKwargs):
    bucket_cap_mb: int = 50
    extra: str = "x"


class Narrow(GradScalerKwargs):
    def __init__(self, scale: float) -> None:
        super().__init__(init_scale=scale)
        self.growth_factor = 2.0


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, {}),
        ({"a": 2}, {"a": 2}),
        ({"a": 2, "b": True}, {"a": 2, "b": True}),
        ({"a": 2, "c": 2.25}, {"a": 2, "c": 2.25}),
    ],
)
def test_to_kwargs_is_what_differs_from_the_defaults(arguments, expected):
    """The reference's own check."""
    assert Mock(**arguments).to_kwargs() == expected


def test_what_was_set_is_passed_on_also_when_it_is_the_default():
    """By position, by name and afterwards."""
    assert Mock(0).to_kwargs() == {"a": 0}
    assert Mock(b=False, c=3.0).to_kwargs() == {"b": False, "c": 3.0}
    handler = Mock()
    handler.c = 3.0
    assert handler.to_kwargs() == {"c": 3.0}


@given(strategies.dictionaries(strategies.sampled_from(["init_scale", "growth_interval", "enabled"]), strategies.booleans()))
@settings(max_examples=20)
def test_exactly_what_was_set_is_passed_on(chosen):
    """For any choice of fields, set to their default or not."""
    defaults = GradScalerKwargs.defaults()
    others = {"init_scale": 8.0, "growth_interval": 7, "enabled": False}
    arguments = {name: defaults[name] if is_default else others[name] for name, is_default in chosen.items()}
    assert GradScalerKwargs(**arguments).to_kwargs() == arguments


def test_a_copy_remembers_what_was_set():
    """Copied and pickled handlers pass on the same."""
    handler = Mock(c=3.0)
    for other in (copy.copy(handler), copy.deepcopy(handler), pickle.loads(pickle.dumps(handler))):
        assert other == handler
        assert other.to_kwargs() == {"c": 3.0}


def test_a_subclass_may_change_a_default():
    """It does so to have an effect, and the field is still checked."""
    assert Wider().to_kwargs() == {"bucket_cap_mb": 50}
    assert Wider(extra="y").to_kwargs() == {"bucket_cap_mb": 50, "extra": "y"}
    with pytest.raises(ConfigurationError, match=r"Wider\.bucket_cap_mb: expected a number above 0"):
        Wider(bucket_cap_mb=-1)


def test_a_subclass_may_have_its_own_constructor():
    """What it sets in there was set."""
    assert Narrow(8.0).to_kwargs() == {"init_scale": 8.0, "growth_factor": 2.0}
    assert Narrow(scale=65536.0).settings()["init_scale"] == 65536.0


def test_a_handler_may_have_required_arguments_and_arrays():
    """Defaults are read, not made by constructing the class; arrays are not compared."""

    @dataclasses.dataclass
    class Demanding(KwargsHandler):
        need: int
        array: np.ndarray = None

    assert Demanding(1).to_kwargs() == {"need": 1}
    kwargs = Demanding(need=1, array=np.ones(3)).to_kwargs()
    assert kwargs["array"].sum() == 3


def test_containers_are_copies():
    """Changing what `to_kwargs` returned changes no handler."""
    handler = ProfileKwargs(schedule_option={"wait": 0, "warmup": 1, "active": 1})
    handler.to_kwargs()["schedule_option"]["wait"] = 9
    assert handler.schedule_option["wait"] == 0


def test_the_environment_is_left_alone(monkeypatch):
    """Nothing clears it, not for a moment: other threads read it."""

    def fail(*_arguments):
        raise AssertionError("the environment was changed")

    with monkeypatch.context() as guarded:
        for method in ("clear", "update", "__setitem__", "__delitem__"):
            guarded.setattr(type(os.environ), method, fail)
        kwargs = InitProcessGroupKwargs(backend="gloo").to_kwargs()
    assert kwargs["backend"] == "gloo"


@pytest.mark.parametrize(
    "handler", [AutocastKwargs, DistributedDataParallelKwargs, GradScalerKwargs, InitProcessGroupKwargs, ProfileKwargs]
)
def test_an_unknown_field_is_an_error_that_names_the_known(handler):
    """With the one that may have been meant."""
    name = next(field.name for field in dataclasses.fields(handler))
    with pytest.raises(TypeError, match=rf"has no field '{name}s'; did you mean '{name}'\? \(it has: {name}, "):
        handler(**{f"{name}s": 1})


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: AutocastKwargs(enabled=1), TypeError, r"AutocastKwargs.enabled: expected True or False, got 1 \(int\)"),
        (lambda: GradScalerKwargs(init_scale="8"), TypeError, r"init_scale: expected a number above 0, got '8' \(str\)"),
        (lambda: GradScalerKwargs(init_scale=float("nan")), ValueError, "init_scale: expected a number above 0, got nan"),
        (lambda: GradScalerKwargs(init_scale=10**400), ValueError, "init_scale: expected a number above 0, got 1000"),
        (lambda: GradScalerKwargs(growth_factor=1), ValueError, "growth_factor: expected a number above 1, got 1"),
        (lambda: GradScalerKwargs(backoff_factor=1.0), ValueError, "expected a number above 0 and below 1, got 1.0"),
        (lambda: GradScalerKwargs(growth_interval=0), ValueError, "growth_interval: expected an integer of at least 1, got 0"),
        (lambda: GradScalerKwargs(growth_interval=1.5), TypeError, "expected an integer of at least 1, got 1.5"),
        (lambda: DistributedDataParallelKwargs(bucket_cap_mb=0), ValueError, "bucket_cap_mb: expected a number above 0, got 0"),
        (lambda: DistributedDataParallelKwargs(comm_state_option=[]), TypeError, "expected a dict with names as keys"),
        (lambda: InitProcessGroupKwargs(timeout=600), TypeError, r"expected a datetime.timedelta, such as .*, got 600 \(int\)"),
        (lambda: InitProcessGroupKwargs(timeout=timedelta(0)), ValueError, "expected a duration above zero"),
        (lambda: InitProcessGroupKwargs(init_method=""), ValueError, "expected text that is not empty"),
        (lambda: ProfileKwargs(on_trace_ready="print"), TypeError, "expected a callable, got 'print'"),
        (lambda: ProfileKwargs(output_trace_dir=3), TypeError, "expected a directory, got 3"),
        (lambda: ProfileKwargs(ranks=[-1]), ValueError, "ranks: expected an integer of at least 0, got -1"),
        (lambda: ProfileKwargs(ranks="0"), TypeError, "expected a list of ranks, got '0'"),
    ],
)
def test_a_wrong_value_is_an_error_where_it_is_set(make, error, message):
    """It says what was expected and what came; it is an error of ours and a built-in one."""
    with pytest.raises(error, match=message) as raised:
        make()
    assert isinstance(raised.value, ConfigurationError)


def test_a_wrong_value_is_an_error_also_later():
    """An assignment is checked like an argument, and leaves the handler as it was."""
    handler = GradScalerKwargs()
    with pytest.raises(ConfigurationError, match="growth_factor"):
        handler.growth_factor = 0.5
    assert handler == GradScalerKwargs()
    assert handler.to_kwargs() == {}


def test_numbers_of_numpy_are_numbers():
    """They arrive as Python's own."""
    handler = GradScalerKwargs(init_scale=np.float32(8), growth_interval=np.int64(3), enabled=np.bool_(False))
    assert [type(value) for value in handler.to_kwargs().values()] == [float, int, bool]


def test_settings_are_plain_data():
    """Everything is a number, text, list or mapping: it is written into a run's configuration."""
    import json

    handlers = [
        InitProcessGroupKwargs(timeout=timedelta(minutes=2)),
        DistributedDataParallelKwargs(comm_hook=lambda state, bucket: None, comm_state_option={"state": object()}),
        ProfileKwargs(activities=["cpu"], on_trace_ready=print),
    ]
    found = json.loads(json.dumps([handler.settings() for handler in handlers]))
    assert found[0] == {"backend": "nccl", "init_method": None, "timeout": 120.0}
    assert found[1]["comm_state_option"] == {"state": "builtins.object"}
    assert found[1]["comm_hook"].endswith("<lambda>")
    assert (found[2]["activities"], found[2]["on_trace_ready"]) == (["cpu"], "builtins.print")


def test_a_warning_is_given_once_and_points_at_the_caller():
    """Each reason once per process, at the line that asked."""

    def complain():
        Mock().warn_no_effect("is idle")
        Mock(a=1).warn_no_effect("is idle")
        Mock().warn_no_effect("is idle, too")

    with pytest.warns(NoEffectWarning, match="Mock is idle") as warned:
        complain()
    assert [str(one.message) for one in warned] == ["Mock is idle", "Mock is idle, too"]
    assert {one.filename for one in warned} == {__file__}


def test_importing_the_handlers_and_making_them_imports_no_torch():
    """Configuration is read in processes that never compute."""
    program = """
import sys
from datetime import timedelta
from accelbus.handlers import *
sort_handlers([
    AutocastKwargs(cache_enabled=True), GradScalerKwargs(init_scale=8), ProfileKwargs(activities=["cpu"], ranks=[0]),
    DistributedDataParallelKwargs(comm_hook="power_sgd", comm_wrapper="fp16", comm_state_option={"matrix_approximation_rank": 2}),
    InitProcessGroupKwargs(backend="cuda:nccl,cpu:gloo", timeout=timedelta(seconds=5)),
])
assert not {"torch", "numpy", "accelerate"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
