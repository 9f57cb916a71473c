"""`Accelerator` in a single process."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import accelbus
from accelbus.accelerator import (
    Accelerator,
    DataLoaderConfiguration,
    GradientAccumulationPlugin,
    ProjectConfiguration,
    accelerator as accelerator_module,
    set_seed,
)
from accelbus.accelerator.state import start_processes
from accelbus.errors import ConfigurationError, UnknownTrackerError
from accelbus.handlers import AutocastKwargs, DistributedDataParallelKwargs, GradScalerKwargs, NoEffectWarning, ProfileKwargs, base

DATA = TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16.0).reshape(16, 1))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def loss_of(model: nn.Module, batch) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).pow(2).mean()


def test_things_are_prepared_in_any_order(make):
    """Each comes back in its place; what is nothing to prepare comes back as it is."""
    accelerator, model = make(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(DATA, 4)
    made = accelerator.prepare(schedule, loader, "text", optimizer, model)
    assert [type(one).__name__ for one in made] == ["AcceleratedScheduler", "PreparedDataLoader", "str", "AcceleratedOptimizer", "Linear"]
    assert made[0].optimizers == [made[3]]
    assert accelerator.prepare(*made) == made
    assert accelerator.prepare(model) is model
    assert accelerator.unwrap_model(made[4]) is model
    with pytest.raises(ValueError, match="device_placement has 1 entries"):
        accelerator.prepare(model, optimizer, device_placement=[True])


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_accumulated_batches_are_one_large_batch(make, steps):
    """Weights after an epoch equal those of plain torch with batches as large as what is accumulated; an uneven end makes a step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = list(DataLoader(DATA, 4))
    for start in range(0, len(batches), steps):
        group = batches[start : start + steps]
        (sum(loss_of(model, batch) for batch in group) / steps).backward()
        optimizer.step()
        optimizer.zero_grad()

    accelerator = make(gradient_accumulation_steps=steps)
    ours, optimizer, loader = accelerator.prepare(network(), torch.optim.SGD((own := network()).parameters(), lr=0.1), DataLoader(DATA, 4))
    ours = accelerator.prepare(own)
    synced = []
    for batch in loader:
        with accelerator.accumulate(ours):
            accelerator.backward(loss_of(ours, batch))
            optimizer.step()
            optimizer.zero_grad()
            synced.append(accelerator.sync_gradients)
    torch.testing.assert_close(list(ours.parameters()), list(model.parameters()))
    assert synced == [number % steps == 0 or number == 4 for number in range(1, 5)]


def test_an_end_need_not_make_a_step(make):
    """sync_with_dataloader=False: the accumulation goes on in the next epoch."""
    accelerator = make(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=3, sync_with_dataloader=False))
    loader = accelerator.prepare(DataLoader(DATA, 4))
    synced = []
    for _ in range(3):
        for _batch in loader:
            with accelerator.accumulate():
                synced.append(accelerator.sync_gradients)
    assert synced == [False, False, True] * 4
    accelerator.gradient_accumulation_steps = 1
    assert accelerator.gradient_accumulation_steps == 1


def test_bf16_on_a_cpu(make):
    """The model computes in bf16 and returns float32; islands of full precision, copies and unwrapping work."""
    accelerator = make(mixed_precision="bf16")
    kinds = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            found = self.inner(x)
            kinds.append(found.dtype)
            return {"y": found}

    model = accelerator.prepare(Net())
    assert model(torch.ones(1, 4))["y"].dtype == torch.float32
    with accelerator.autocast():
        assert nn.functional.linear(torch.ones(1, 4), torch.ones(1, 4)).dtype == torch.bfloat16
        with accelerator.autocast(AutocastKwargs(enabled=False)):
            assert nn.functional.linear(torch.ones(1, 4), torch.ones(1, 4)).dtype == torch.float32
        assert nn.functional.linear(torch.ones(1, 4), torch.ones(1, 4)).dtype == torch.bfloat16

    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.inner.weight.fill_(0)
        twin.inner.bias.fill_(0)
    assert twin(torch.ones(1, 4))["y"] == 0
    assert set(kinds) == {torch.bfloat16}
    plain = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    plain(torch.ones(1, 4))
    assert kinds[-1] == torch.float32


def test_a_precision_that_does_not_work_is_an_error(make):
    """fp16 on a CPU, fp8, and words that mean nothing: said at construction, with what works."""
    with pytest.raises(ConfigurationError, match='"fp16" on a CPU: it needs an accelerator; "bf16" works here'):
        make(mixed_precision="fp16")
    with pytest.raises(ConfigurationError, match="expected one of no, fp16, bf16; fp8 is not offered here"):
        make(mixed_precision="fp8")
    with pytest.raises(ValueError, match="mixed_precision='half'"):
        make(mixed_precision="half")


def test_the_precision_of_the_environment(make, monkeypatch):
    """What `accelerate launch` sets counts where no argument does."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert make().mixed_precision == "bf16"
    assert make(mixed_precision="no").mixed_precision == "no"


@pytest.mark.parametrize("argument", ["fsdp_plugin", "deepspeed_plugin", "megatron_lm_plugin", "parallelism_config", "dynamo_plugin"])
def test_what_is_not_here_is_pointed_to(make, argument):
    """The error names the handlers; None and "no" are fine, and a word that nobody knows is a TypeError."""
    with pytest.raises(ConfigurationError, match="InitProcessGroupKwargs"):
        make(**{argument: object()})
    make(**{argument: None}, dynamo_backend="no")
    with pytest.raises(TypeError, match="mixed_precison"):
        make(mixed_precison="no")


def test_a_model_that_is_shared_otherwise_is_pointed_to_the_handlers(make):
    """FSDP's and DTensors: DDP would fail on them with a message that helps nobody."""
    from torch.distributed.tensor import DTensor

    class Shared(DTensor):
        pass

    model = network()
    parameter = torch.Tensor._make_subclass(Shared, model.weight.detach())
    model.parameters = lambda: iter([parameter])
    with pytest.raises(ConfigurationError, match=r"by FSDP or as DTensors; use torch's own and accelbus.handlers"):
        make().prepare(model)


def test_compiled_models_are_unwrapped(make):
    """To the compiled or to the original one; a checkpoint has the original's names."""
    accelerator, model = make(), network()
    compiled = torch.compile(model, backend="eager")
    prepared = accelerator.prepare(compiled)
    assert accelerator.unwrap_model(prepared) is compiled
    assert accelerator.unwrap_model(prepared, keep_torch_compile=False) is model
    assert accelerator.get_state_dict(prepared).keys() == model.state_dict().keys()


def test_handlers_without_effect_say_so(make):
    """A scaler without fp16, DDP in one process."""
    with pytest.warns(NoEffectWarning, match="only fp16"):
        make(mixed_precision="bf16", kwargs_handlers=[GradScalerKwargs(init_scale=2.0)])
    with pytest.warns(NoEffectWarning, match="only process"):
        make(kwargs_handlers=[DistributedDataParallelKwargs()]).prepare(network())


def test_a_handler_for_a_precision_that_is_not_used_says_so(make):
    """At construction, and for a block; one that asks for full precision has its way."""
    with pytest.warns(NoEffectWarning, match='AutocastKwargs has no effect with mixed precision "no"'):
        make(kwargs_handlers=[AutocastKwargs(cache_enabled=True)])
    base._said.clear()
    with (
        pytest.warns(NoEffectWarning, match='AutocastKwargs has no effect with mixed precision "no"'),
        make().autocast(AutocastKwargs(cache_enabled=True)),
    ):
        pass
    accelerator = make(kwargs_handlers=[AutocastKwargs(enabled=False)])
    with accelerator.autocast(), accelerator.autocast(AutocastKwargs(enabled=False)), make().autocast(AutocastKwargs()):
        assert nn.functional.linear(torch.ones(1, 4), torch.ones(1, 4)).dtype == torch.float32


def test_a_ddp_handler_for_a_model_that_is_wrapped_says_so(make, lone_group):
    """The model stays as it was wrapped, whatever the handler says."""
    accelerator = make(kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=1)])
    model = DistributedDataParallel(network())
    with pytest.warns(NoEffectWarning, match="DistributedDataParallelKwargs has no effect on a model that is wrapped in"):
        assert accelerator.prepare(model) is model


def test_arguments_that_contradict_each_other_are_errors(make):
    """An argument beside the configuration that holds the same; the same value twice is fine."""
    with pytest.raises(ConfigurationError, match=r"split_batches=True, but dataloader_config has split_batches=False"):
        make(split_batches=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
    with pytest.raises(ConfigurationError, match=r"gradient_accumulation_steps=4, but gradient_accumulation_plugin has num_steps=2"):
        make(gradient_accumulation_steps=4, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2))
    assert make(split_batches=True, dataloader_config=DataLoaderConfiguration(split_batches=True)).split_batches
    same = make(gradient_accumulation_steps=2, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2))
    assert same.gradient_accumulation_steps == 2


def test_what_a_launcher_was_told_counts_where_no_argument_does(make, monkeypatch):
    """`accelerate launch --gradient_accumulation_steps 4 --cpu`; words that mean nothing are errors."""
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert make().gradient_accumulation_steps == 4
    assert make(gradient_accumulation_steps=2).gradient_accumulation_steps == 2
    assert make(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=3)).gradient_accumulation_steps == 3
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "many")
    with pytest.raises(ConfigurationError, match="ACCELERATE_GRADIENT_ACCUMULATION_STEPS='many': expected an integer"):
        make()
    monkeypatch.delenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
    asked: list[bool] = []
    monkeypatch.setattr(accelerator_module, "start_processes", lambda _, *, cpu: asked.append(cpu) or start_processes(None, cpu=True))
    for said in ("true", "1", "false", ""):
        monkeypatch.setenv("ACCELERATE_USE_CPU", said)
        Accelerator()
    assert asked == [True, True, False, False]
    monkeypatch.setenv("ACCELERATE_USE_CPU", "perhaps")
    with pytest.raises(ConfigurationError, match="ACCELERATE_USE_CPU='perhaps': expected true or false"):
        Accelerator()


@pytest.mark.parametrize("variable", ["USE_FSDP", "USE_DEEPSPEED", "USE_MEGATRON_LM", "USE_PARALLELISM_CONFIG", "DYNAMO_BACKEND"])
def test_what_a_launcher_asks_for_and_is_not_here_is_pointed_to(make, monkeypatch, variable):
    """`accelerate launch --use_fsdp`: training with DDP instead would surprise; what it sets to say no is fine."""
    for nothing in ("false", "NO", ""):
        monkeypatch.setenv(f"ACCELERATE_{variable}", nothing)
        make()
    monkeypatch.setenv(f"ACCELERATE_{variable}", "inductor" if variable == "DYNAMO_BACKEND" else "true")
    with pytest.raises(ConfigurationError, match=f"ACCELERATE_{variable}=.*use torch's own and accelbus.handlers"):
        make()


def test_handlers_of_accelerate_are_taken(make):
    """Also its other objects."""
    import accelerate.utils as theirs

    accelerator = make(
        mixed_precision="bf16",
        kwargs_handlers=[theirs.AutocastKwargs(cache_enabled=True)],
        dataloader_config=theirs.DataLoaderConfiguration(split_batches=True),
        project_config=theirs.ProjectConfiguration(total_limit=3),
        gradient_accumulation_plugin=theirs.GradientAccumulationPlugin(num_steps=4),
    )
    assert accelerator.handlers.autocast_handler == AutocastKwargs(cache_enabled=True)
    assert accelerator.split_batches
    assert accelerator.project_configuration.total_limit == 3
    assert accelerator.gradient_accumulation_steps == 4


def test_options_are_checked(make):
    """Where they are given, with what was expected."""
    with pytest.raises(ValueError, match="num_steps=0: expected an integer of at least 1"):
        make(gradient_accumulation_steps=0)
    with pytest.raises(TypeError, match="expected a DataLoaderConfiguration"):
        make(dataloader_config={"split_batches": True})
    with pytest.raises(ConfigurationError, match="rng_types: unknown 'numpy'"):
        make(rng_types=["numpy"])
    with pytest.raises(ConfigurationError, match="telemetry='all': unknown 'all'"):
        make(telemetry="all")
    with pytest.raises(UnknownTrackerError, match="wandbb"):
        make(log_with="wandbb")


def test_directories(make):
    """logging_dir is project_dir where it is not given, and project_dir fills a configuration that has none."""
    accelerator = make(project_dir="a")
    assert (accelerator.project_dir, accelerator.logging_dir) == ("a", "a")
    accelerator = make(project_dir="a", project_config=ProjectConfiguration(total_limit=30))
    assert (accelerator.project_dir, accelerator.project_configuration.total_limit) == ("a", 30)
    accelerator = make(project_dir="a", project_config=ProjectConfiguration(project_dir="b", logging_dir="c"))
    assert (accelerator.project_dir, accelerator.logging_dir) == ("b", "c")


def test_one_process_is_every_process(make, capsys):
    """The main one, the last one, and all there are."""
    accelerator = make()
    assert accelerator.is_main_process
    assert accelerator.is_local_main_process
    assert accelerator.is_last_process
    assert (accelerator.num_processes, accelerator.process_index, accelerator.local_process_index) == (1, 0, 0)
    assert not accelerator.use_distributed
    assert accelerator.device == torch.device("cpu")
    assert accelerator.distributed_type == "NO"
    accelerator.wait_for_everyone()
    with accelerator.main_process_first(), accelerator.local_main_process_first():
        accelerator.print("here", end="!")
    assert capsys.readouterr().out == "here!"
    assert accelerator.on_main_process(lambda: 1)() == 1
    assert accelerator.on_process(process_index=1)(lambda: 1)() is None
    assert accelerator.gather(torch.tensor([1])) == torch.tensor([1])
    assert accelerator.reduce(torch.tensor(2.0), "mean", scale=0.5) == 1
    assert accelerator.pad_across_processes(torch.ones(2)).shape == (2,)
    assert accelerator.gather_for_metrics(["a"]) == ["a"]
    assert not accelerator.check_trigger()
    accelerator.set_trigger()
    assert accelerator.check_trigger()
    with accelerator.split_between_processes([1, 2]) as share:
        assert share == [1, 2]
    with pytest.raises(ValueError, match="reduction='min'"):
        accelerator.reduce(torch.ones(1), "min")


def test_clipping_is_torchs(make):
    """Norm and values; the norm is what comes back."""
    accelerator, model = make(), network()
    accelerator.backward(loss_of(model, DATA[:]))
    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
    assert norm > 1
    assert nn.utils.get_total_norm([one.grad for one in model.parameters()]) <= 1.0001
    accelerator.clip_grad_value_(model.parameters(), 0.01)
    assert max(one.grad.abs().max() for one in model.parameters()) <= 0.0101
    accelerator.unscale_gradients()


def test_profile(make, tmp_path):
    """The handler's profiler, its traces, and another handler for a block."""
    accelerator = make(kwargs_handlers=[ProfileKwargs(output_trace_dir=str(tmp_path), activities=["cpu"])])
    with accelerator.profile() as profiler:
        torch.ones(2) + 1
    assert "aten::add" in profiler.key_averages().table()
    assert len(list(tmp_path.iterdir())) == 1
    with accelerator.profile(ProfileKwargs(activities=["cpu"])) as profiler:
        assert isinstance(profiler, torch.profiler.profile)


def test_logging_before_there_is_a_run_says_so_once(make, caplog):
    """Values are dropped; trackers can be asked for anything."""
    accelerator = make()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            accelerator.log({"loss": 1.0}, step=1)
    assert [record.message for record in caplog.records] == ["log() before init_trackers(): nothing is recorded in process 0"]
    tracker = accelerator.get_tracker("wandb")
    tracker.log_images({"image": [torch.ones(3, 2, 2)]}, step=1)
    tracker.log({"loss": 1}, step=1)
    tracker.store_init_configuration({"lr": 0.1})
    assert accelerator.trackers == []
    accelerator.end_training()


def test_memory_is_freed(make):
    """What was prepared is forgotten."""
    accelerator, model = make(), network()
    model, loader = accelerator.prepare(model, DataLoader(DATA, 4))
    model, loader = accelerator.free_memory(model, loader)
    assert model is None
    assert loader is None
    assert accelerator._models == accelerator._dataloaders == []


def test_copies_are_the_same_object(make):
    """Configurations that hold an accelerator are copied deeply now and then."""
    accelerator = make()
    assert copy.deepcopy({"accelerator": accelerator})["accelerator"] is accelerator


def test_an_accelerator_can_be_pickled(make):
    """With what it has prepared."""
    accelerator, model = make(gradient_accumulation_steps=3), network()
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(DATA, 4))
    twin = pickle.loads(pickle.dumps(accelerator))
    assert twin.state == accelerator.state
    assert twin.gradient_accumulation_steps == 3
    assert len(list(twin._dataloaders[0])) == 4


def test_seeds():
    """All generators start again."""
    import random

    import numpy as np

    drawn = []
    for _ in range(2):
        set_seed(3)
        drawn.append([float(torch.rand(())), random.random(), float(np.random.rand())])  # noqa: NPY002  the global generator
    assert drawn[0] == drawn[1]


def test_importing_accelbus_does_not_import_torch():
    """Only asking for Accelerator does."""
    program = "import sys, accelbus; assert 'torch' not in sys.modules; accelbus.Accelerator; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert accelbus.Accelerator is Accelerator


def test_data_loader_configuration_is_used(make):
    """split_batches as an argument of its own is the same as in the configuration."""
    assert make(split_batches=True).split_batches
    assert make(dataloader_config=DataLoaderConfiguration(even_batches=False)).even_batches is False


def test_fp16_training(make, monkeypatch, tmp_path):
    """As on an accelerator, which this machine plays: scaled, unscaled once, clipped, skipped, told, saved."""
    monkeypatch.setattr("accelbus.accelerator.accelerator.check_precision", lambda *_: "fp16")
    accelerator = make(kwargs_handlers=[GradScalerKwargs(init_scale=1024.0)])
    models = [network(), network()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    *prepared, loader = accelerator.prepare(*models, *optimizers, DataLoader(DATA, 4))
    optimizers = prepared[2:]
    assert accelerator.scaler.get_scale() == 1024
    for number, batch in enumerate(loader):
        accelerator.backward(sum(loss_of(model, batch) for model in models) * (float("inf") if number == 1 else 1))
        for model in models:
            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            assert number == 1 or nn.utils.get_total_norm([one.grad for one in model.parameters()]) <= 1.01
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert accelerator.optimizer_step_was_skipped == (number == 1)
    assert norm.isfinite()
    numbers = accelerator._numbers()
    assert (numbers["telemetry/scaler/skipped_steps"], numbers["telemetry/scaler/skipped_steps_1"]) == (1, 1)
    accelerator.save_state(tmp_path)
    assert accelerator.scaler.get_scale() == 512
    again = make(kwargs_handlers=[GradScalerKwargs(init_scale=4.0)])
    again.prepare(network(), network(), *[torch.optim.SGD(model.parameters(), lr=0.1) for model in models])
    again.load_state(tmp_path)
    assert again.scaler.get_scale() == 512
