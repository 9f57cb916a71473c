"""Values that lie on a device when they are logged, through a whole run, with a device that finishes its copies when a test says so."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch

import accelbus
from accelbus.client import compiled, device
from accelbus.reader.audit import audit
from tests.support.lines import metric_lines


class Tensor:
    """A number on a device: to the value model every class of this name from torch is a tensor."""

    __module__ = "torch.fake"
    is_cpu = False

    def __init__(self, number: float) -> None:
        self.number = number

    def numel(self) -> int:
        return 1

    def item(self) -> float:
        raise AssertionError("this waits for the device")


class Copy:
    def __init__(self, number: float, is_done: threading.Event) -> None:
        self._number = number
        self._is_done = is_done

    def is_done(self) -> bool:
        return self._is_done.is_set()

    def value(self) -> float:
        return self._number

    def forget(self) -> None:
        """Nothing is held."""


class Device:
    """Its copies are done once `synchronise` was called for their step."""

    def __init__(self) -> None:
        self.done: dict[float, threading.Event] = {}

    def begin(self, tensor: Tensor) -> Copy:
        return Copy(tensor.number, self.done.setdefault(tensor.number, threading.Event()))

    def finish(self, *numbers: float) -> None:
        for number in numbers:
            self.done[number].set()


@pytest.fixture
def fake(monkeypatch) -> Device:
    fake = Device()
    monkeypatch.setattr(device.CudaCopier, "of", lambda _: fake)
    return fake


@pytest.fixture
def run(tmp_path, monkeypatch, fake):
    monkeypatch.setenv("ACCELBUS_EXIT_TIMEOUT", "0.5")
    run = accelbus.init("device", dir=str(tmp_path), mode="offline")
    yield run
    run.finish()


def test_the_event_is_there_at_once_and_the_value_when_it_has_arrived(run, fake):
    """Out of order, and after events that were logged later."""
    for step in range(4):
        run.log({"loss": Tensor(float(step)), "host": step}, step=step)
    assert run.statistics().on_device == 4
    fake.finish(3.0, 1.0)
    fake.finish(0.0, 2.0)
    assert run.flush(5)
    assert run.statistics().on_device == 0
    run.finish()
    assert metric_lines(run) == {step: {"loss": float(step), "host": step} for step in range(4)}
    assert run.statistics().dropped == {}
    report = audit(run.dir)
    assert report.balanced


def test_finish_waits_for_the_device_and_counts_what_never_comes(run, fake, caplog):
    """The one exception to losing nothing; the audit names it."""
    run.log({"loss": Tensor(1.0), "other": Tensor(2.0)}, step=1)
    threading.Timer(0.1, fake.finish, (1.0,)).start()
    run.finish()
    assert metric_lines(run) == {1: {"loss": 1.0}}
    assert run.statistics().dropped == {"device_lost": 1}
    assert "device_lost" in caplog.text


def test_values_of_a_call_with_other_faults_arrive_once(run, fake):
    """The slow path asks for the tensor a second time."""
    run.log({"loss": Tensor(1.0), "odd": object()}, step=1)
    run.log([("not", "a mapping")], step=1)
    fake.finish(1.0)
    run.finish()
    assert metric_lines(run) == {1: {"loss": 1.0}}
    assert audit(run.dir).balanced


def test_thousands_of_values_that_arrive_together_all_come(run, fake):
    """They are more than one event may hold."""
    for step in range(50):
        run.log({f"k{key}": Tensor(float(key)) for key in range(100)}, step=step)
    fake.finish(*map(float, range(100)))
    run.finish()
    assert metric_lines(run) == {step: {f"k{key}": float(key) for key in range(100)} for step in range(50)}
    assert run.statistics().dropped == {}


def test_nested_and_listed_values_keep_their_names(run, fake):
    """Readers name them; the fill does not need to."""
    run.log({"train": {"loss": Tensor(1.0)}, "several": [Tensor(2.0), Tensor(3.0)]}, step=1)
    fake.finish(1.0, 2.0, 3.0)
    run.finish()
    assert metric_lines(run) == {1: {"train/loss": 1.0, "several/0": 2.0, "several/1": 3.0}}


@pytest.fixture
def first_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been said in this process, and nothing has been compiled."""
    monkeypatch.setattr(compiled.Notice, "was_given", False)
    torch.compiler.reset()


@pytest.mark.usefixtures("first_notice")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # its first look, before it is told to keep out
def test_a_tensor_logged_inside_a_compiled_function_is_kept_and_said_once(tmp_path, caplog):
    """A graph that breaks at every step must not do so in silence."""
    with caplog.at_level(logging.WARNING), accelbus.init("compiled", dir=str(tmp_path), mode="offline") as run:

        @torch.compile(backend="eager")
        def step(x: torch.Tensor, number: int) -> torch.Tensor:
            loss: torch.Tensor = (x * x).mean()
            run.log({"loss": loss}, step=number)
            return loss + 1

        for number in range(3):
            step(torch.full((3,), float(number)), number)
    lines: dict[int, dict[str, Any]] = metric_lines(run)
    assert {at: line["loss"] for at, line in lines.items()} == {0: 0.0, 1: 1.0, 2: 4.0}
    assert caplog.text.count("breaks its graph") == 1


def by_run(run: accelbus.Run, number: int) -> None:
    run.log({"lr": 0.1}, step=number)


def by_module(_: accelbus.Run, number: int) -> None:
    accelbus.log({"lr": 0.1}, step=number)


def by_tracker(run: accelbus.Run, number: int) -> None:
    run.get_tracker("jsonl").log({"lr": 0.1}, step=number)


def an_alert(run: accelbus.Run, number: int) -> None:
    run.alert(f"step {number}")


def a_setting(run: accelbus.Run, number: int) -> None:
    run.log_config({"number": number})


def a_summary(run: accelbus.Run, number: int) -> None:
    run.summarise({"number": number})


@pytest.mark.usefixtures("first_notice")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("log", [by_run, by_module, by_tracker, an_alert, a_setting, a_summary])
def test_what_is_logged_from_the_host_inside_a_compiled_function_is_said_once(tmp_path, caplog, log):
    """No tensor is needed for a graph to break; nor need it be among the first calls of the run."""
    with (
        caplog.at_level(logging.WARNING),
        accelbus.init("compiled", dir=str(tmp_path), mode="offline", log_with="jsonl", resume="never") as run,
    ):
        for number in range(200):
            log(run, number)
        assert "breaks its graph" not in caplog.text

        @torch.compile(backend="eager")
        def step(x: torch.Tensor) -> torch.Tensor:
            y = x * x
            log(run, 200)
            return y + 1

        for number in range(3):
            assert torch.equal(step(torch.full((3,), float(number))), torch.full((3,), float(number * number + 1)))
    assert caplog.text.count("breaks its graph") == 1
    assert "log them outside" in caplog.text


@pytest.mark.usefixtures("first_notice")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_an_accelerator_that_logs_inside_a_compiled_function_says_so_once(tmp_path, caplog):
    """Its telemetry is gathered outside of the graph as well; with fullgraph torch shows the advice."""
    accelerator = accelbus.Accelerator(cpu=True)
    accelerator.init_trackers("compiled", dir=str(tmp_path), mode="offline", resume="never")

    def step(x: torch.Tensor, number: int) -> torch.Tensor:
        accelerator.log({"lr": 0.1}, step=number)
        return x + 1

    with caplog.at_level(logging.WARNING):
        compiled_step = torch.compile(step, backend="eager")
        for number in range(3):
            compiled_step(torch.ones(2), number)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="log them outside"):
        torch.compile(step, backend="eager", fullgraph=True)(torch.ones(2), 3)
    accelerator.end_training()
    assert {number: line["lr"] for number, line in metric_lines(accelerator.run).items()} == {0: 0.1, 1: 0.1, 2: 0.1}
    assert caplog.text.count("breaks its graph") == 1


def test_a_full_graph_that_logs_says_what_to_do(tmp_path):
    """Torch shows the advice in its own error."""
    with accelbus.init("compiled", dir=str(tmp_path), mode="offline") as run:

        def step(x: torch.Tensor) -> torch.Tensor:
            run.log({"loss": x.mean()}, step=1)
            return x

        with pytest.raises(torch._dynamo.exc.Unsupported, match="log them outside"):
            torch.compile(step, backend="eager", fullgraph=True)(torch.ones(2))
