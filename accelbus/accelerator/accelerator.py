"""`Accelerator`: the training loop's view of processes, devices, precision, data and trackers."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from accelbus.accelerator import checkpoint, telemetry as telemetry_facts
from accelbus.accelerator.buckets import BucketOrder
from accelbus.accelerator.checkpoint import Marker
from accelbus.accelerator.data import RNG_TYPES, SkippedBatches, Surroundings, prepare_data_loader
from accelbus.accelerator.dispatch import DispatchedDataLoader
from accelbus.accelerator.environment import accumulation_steps, asked_elsewhere, uses_cpu
from accelbus.accelerator.gradients import GradientState
from accelbus.accelerator.operations import broadcast_object_list
from accelbus.accelerator.optimizer import AcceleratedOptimizer
from accelbus.accelerator.options import DataLoaderConfiguration, GradientAccumulationPlugin, ProjectConfiguration, options_from
from accelbus.accelerator.precision import check_precision, run_in, run_plainly
from accelbus.accelerator.processes import ProcessMethods
from accelbus.accelerator.saving import SavingMethods
from accelbus.accelerator.scaling import LossScaling
from accelbus.accelerator.scheduler import AcceleratedScheduler
from accelbus.accelerator.state import start_processes
from accelbus.accelerator.telemetry import Telemetry
from accelbus.accelerator.trackers import TrackerMethods, check_trackers
from accelbus.accelerator.training import TrainingMethods
from accelbus.errors import ConfigurationError
from accelbus.handlers import DistributedDataParallelKwargs, GradScalerKwargs, sort_handlers

_log = logging.getLogger(__name__)
_ELSEWHERE = {
    "deepspeed_plugin": "DeepSpeed",
    "deepspeed_plugins": "DeepSpeed",
    "fsdp_plugin": "FSDP",
    "torch_tp_plugin": "tensor parallelism",
    "megatron_lm_plugin": "Megatron-LM",
    "parallelism_config": "tensor, pipeline and context parallelism",
    "dynamo_backend": "torch.compile",
    "dynamo_plugin": "torch.compile",
}

_WAY = (
    "use torch's own and accelbus.handlers (InitProcessGroupKwargs(...).init(), AutocastKwargs().autocast(...), ProfileKwargs(...).build()) "
    "with accelbus.init() in your loop, or keep Accelerate's Accelerator, with accelbus.init() beside it"
)


class Accelerator(ProcessMethods, TrainingMethods, TrackerMethods, SavingMethods):
    """Runs one training loop on a CPU, on a GPU, and in several processes with DDP. Names and behaviour are Accelerate's.

    Make one in every process, before the model. For FSDP, DeepSpeed and others use `accelbus.handlers` and `accelbus.init` in a loop of
    your own, or keep Accelerate's and call `accelbus.init` after it.

    Args:
        device_placement: `prepare` puts models and batches on `device`.
        split_batches: see `DataLoaderConfiguration`, as which it can be given too.
        mixed_precision: "no", "fp16" (needs an accelerator) or "bf16"; ``ACCELERATE_MIXED_PRECISION`` when not given.
        gradient_accumulation_steps: batches per step; ``ACCELERATE_GRADIENT_ACCUMULATION_STEPS`` when not given, or 1.
        cpu: compute on the CPU even if there is an accelerator; ``ACCELERATE_USE_CPU`` says it as well.
        dataloader_config: a `DataLoaderConfiguration`.
        rng_types: generators that are made equal in all processes when a loop over data begins: "torch", "cuda", "generator". Without it
            the order of the data is the same in all of them, and nothing else is touched.
        log_with: trackers by name, class or object; those of `accelbus.init` when not given.
        project_dir: for checkpoints and runs.
        project_config: a `ProjectConfiguration`.
        gradient_accumulation_plugin: a `GradientAccumulationPlugin`, in place of ``gradient_accumulation_steps``.
        step_scheduler_with_optimizer: False for schedules that are stepped on another occasion than the optimizer.
        kwargs_handlers: handlers, one of each kind; Accelerate's are accepted too.
        telemetry: what the runtime tells of itself: True, False, or some of `accelbus.accelerator.telemetry.KINDS`.

    Raises:
        ConfigurationError: an argument is wrong or contradicts another, or a tracker is unknown or not installed.
    """

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        *,
        rng_types: Iterable[str] | None = None,
        log_with: Any = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Iterable[object] | None = None,
        telemetry: bool | str | Iterable[str] = True,
        **elsewhere: Any,
    ) -> None:
        _refuse(elsewhere)
        check_trackers(log_with)
        self.log_with = log_with
        self.handlers = sort_handlers(kwargs_handlers)
        self.telemetry = Telemetry(telemetry)
        self.device_placement = device_placement
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.rng_types = _rng_types(rng_types)
        self.project_configuration = options_from(ProjectConfiguration, project_config or ProjectConfiguration(), "project_config")
        if project_dir is not None and self.project_configuration.project_dir is None:
            self.project_configuration.set_directories(project_dir)
        self.dataloader_config = _dataloader_config(dataloader_config, split_batches=split_batches)
        self.gradient_state = GradientState(_accumulation(gradient_accumulation_plugin, gradient_accumulation_steps))
        self.state = start_processes(self.handlers.init_handler, cpu=cpu or uses_cpu())
        self.mixed_precision = check_precision(mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION") or None, self.device)
        if self.mixed_precision == "no" and self.handlers.autocast_handler is not None:
            self.handlers.autocast_handler.autocast("no")  # says that it has no effect
        self._scaling = self._loss_scaling()
        self._before_saving, self._before_loading = OrderedDict(), OrderedDict()
        self._custom_objects: list[Any] = []
        self._run = self._last_step = self._origin = None
        self._forget()
        self._newest = self._newest_checkpoint()

    # --- preparing

    def prepare(self, *args: Any, device_placement: list[bool | None] | None = None) -> Any:
        """Return models, optimizers, data loaders and schedulers, given in any order, as this job needs them; anything else as it is.

        Args:
            args: a scheduler may be given without its optimizer, if that was prepared before.
            device_placement: whether each is put on the device; as `Accelerator` was told when not given.

        Returns:
            One object for one argument, else a tuple in the same order.
        """
        if device_placement is not None and len(device_placement) != len(args):
            raise ConfigurationError(
                f"device_placement has {len(device_placement)} entries, expected one for each of {len(args)} arguments"
            )
        places = device_placement or [None] * len(args)
        prepared = [self._prepare_one(one, place) for one, place in zip(args, places, strict=True)]
        # The optimizers of schedulers are known now.
        prepared = [self.prepare_scheduler(one) if isinstance(one, LRScheduler) else one for one in prepared]
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _prepare_one(self, one: Any, device_placement: bool | None) -> Any:
        if isinstance(one, nn.Module):
            return self.prepare_model(one, device_placement)
        if isinstance(one, torch.optim.Optimizer):
            return self.prepare_optimizer(one, device_placement)
        if isinstance(one, DataLoader):
            return self.prepare_data_loader(one, device_placement)
        return one

    def prepare_model(self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> nn.Module:
        """Return *model* on the device, computing in the chosen precision, and wrapped in DDP if there are several processes.

        Args:
            model: a model that was prepared is returned as it is.
            device_placement: whether it is moved; as `Accelerator` was told when not given.
            evaluation_mode: it is not trained: DDP is left out.
        """
        if any(model is known for known in self._models):
            return model
        _check_parallelism(model)
        if self.device_placement if device_placement is None else device_placement:
            model = model.to(self.device)
        if self.mixed_precision != "no":
            run_in(self._autocast, model)
        if not evaluation_mode:
            model = self._in_ddp(model)
        if isinstance(model, DistributedDataParallel):
            self._orders[len(self._models)] = order = BucketOrder(model)
            self._watched.append(order)
            if self.is_main_process and "config" in self.telemetry.kinds:
                self._sorting.append(model)
        self._models.append(model)
        run = self._run
        if run is not None and run.is_main and "config" in self.telemetry.kinds:
            run.log_config({"accelerator": telemetry_facts.wrapped(self._models)})
        return model

    def _in_ddp(self, model: nn.Module) -> nn.Module:
        handler = self.handlers.ddp_handler
        if isinstance(model, DistributedDataParallel):
            if handler is not None:
                handler.warn_no_effect("has no effect on a model that is wrapped in DistributedDataParallel already", stacklevel=4)
            return model
        if handler is not None:
            return handler.wrap(model)
        if self.use_distributed and any(parameter.requires_grad for parameter in model.parameters()):
            return DistributedDataParallelKwargs().wrap(model)
        return model

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> AcceleratedOptimizer:
        """Return *optimizer* so that it steps when a step is due."""
        if isinstance(optimizer, AcceleratedOptimizer):
            return optimizer
        moves = self.device_placement if device_placement is None else device_placement
        prepared = AcceleratedOptimizer(
            optimizer, self.gradient_state, follow_parameters=moves, scaling=self._scaling, telemetry=self.telemetry
        )
        self._optimizers.append(prepared)
        self.telemetry.prepared(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: LRScheduler) -> AcceleratedScheduler:
        """Return *scheduler* so that it follows its optimizer; all prepared ones, if its own is not among them."""
        if isinstance(scheduler, AcceleratedScheduler):
            return scheduler
        own = [one for one in self._optimizers if getattr(scheduler, "optimizer", None) in (one, one.optimizer)]
        prepared = AcceleratedScheduler(
            scheduler,
            own or self._optimizers,
            self.gradient_state,
            ranks=self.num_processes,
            step_with_optimizer=self.step_scheduler_with_optimizer,
            split_batches=self.dataloader_config.split_batches,
        )
        self._schedulers.append(prepared)
        return prepared

    def prepare_data_loader(self, data_loader: DataLoader[Any], device_placement: bool | None = None) -> DataLoader[Any]:
        """Return *data_loader* so that each process reads its share, on its device."""
        moves = self.device_placement if device_placement is None else device_placement
        around = Surroundings(
            processes=self.state,
            gradients=self.gradient_state,
            config=self.dataloader_config,
            device=self.device if moves and self.device.type != "cpu" else None,
            rng_types=self.rng_types,
            stopwatch=self.telemetry.stopwatch,
        )
        prepared = prepare_data_loader(data_loader, around, DispatchedDataLoader)
        if not any(prepared is known for known in self._dataloaders):
            self._dataloaders.append(prepared)
        return prepared

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return *dataloader* without the first batches of its next epoch: of a resumed one, counted from the epoch's beginning."""
        return SkippedBatches(dataloader, num_batches)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> nn.Module:
        """Return the model that was prepared.

        Args:
            model: what `prepare` returned; any other model is returned as it is.
            keep_fp32_wrapper: it goes on computing in the chosen precision.
            keep_torch_compile: a compiled model stays compiled.
        """
        inner: Any = model
        compiled: Any = None
        while True:
            if isinstance(inner, DistributedDataParallel):
                inner, compiled = inner.module, None
            elif isinstance(getattr(inner, "_orig_mod", None), nn.Module):
                inner, compiled = inner._orig_mod, inner  # noqa: SLF001  how torch.compile keeps it
            else:
                break
        if not keep_fp32_wrapper:
            run_plainly(inner)
        found: nn.Module = compiled if keep_torch_compile and compiled is not None else inner
        return found if keep_fp32_wrapper else run_plainly(found)

    def free_memory(self, *objects: Any) -> list[Any]:
        """Forget everything that was prepared, and *objects*: as many None are returned, to be assigned in their place."""
        self._forget()
        self.gradient_state.step = 0
        given = [None] * len(objects)
        del objects
        gc.collect()
        if self.device.type != "cpu":
            torch.get_device_module(self.device).empty_cache()
        return given

    clear = free_memory

    # --- information

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: processes and runs cannot be copied, and configurations that hold an accelerator are."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process can have of it: hooks stay here, and a run is an inert one there."""
        return {**self.__dict__, "_orders": {}, "_watched": [], "_sorting": []}

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The gradient scaler of fp16; None otherwise."""
        return None if self._scaling is None else self._scaling.scaler

    @property
    def project_dir(self) -> Any:
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> Any:
        return self.project_configuration.logging_dir

    @property
    def split_batches(self) -> bool:
        return self.dataloader_config.split_batches

    @property
    def even_batches(self) -> bool:
        return self.dataloader_config.even_batches

    def facts(self) -> dict[str, Any]:
        """Return the settings in force as plain data: processes, precision, handlers, how models are wrapped."""
        return {
            **telemetry_facts.runtime(
                num_processes=self.num_processes,
                device=self.device.type,
                distributed_type=str(self.distributed_type),
                mixed_precision=self.mixed_precision,
                gradient_accumulation_steps=self.gradient_accumulation_steps,
                split_batches=self.split_batches,
            ),
            "handlers": self.handlers.settings(),
            **telemetry_facts.wrapped(self._models),
        }

    def _numbers(self) -> dict[str, Any]:
        return self.telemetry.take(self._scaling, self._models)

    def _forget(self) -> None:
        self._models, self._optimizers, self._schedulers, self._dataloaders = [], [], [], []
        self._orders, self._watched, self._sorting = {}, [], []
        self.telemetry.forget()

    def _loss_scaling(self) -> LossScaling | None:
        handler = self.handlers.scaler_handler
        if self.mixed_precision == "fp16":
            return LossScaling((handler or GradScalerKwargs()).build(self.device.type))
        if handler is not None:
            handler.build(self.device.type, mixed_precision=self.mixed_precision)  # says that it has no effect
        return None

    def _newest_checkpoint(self) -> Marker | None:
        """Return whose run the newest checkpoint of the project belongs to, and number new ones behind it, alike in every process."""
        if self.project_dir is None:
            return None
        found: list[Any] = [None, 0]
        if self.is_main_process:
            newest = checkpoint.newest(Path(self.project_dir))
            found = [None if newest is None else checkpoint.marker_of(newest), checkpoint.next_number(Path(self.project_dir))]
        marker, number = broadcast_object_list(found)
        # A script that begins anew must neither meet the checkpoints of its predecessor nor be taken for an older one.
        self.project_configuration.iteration = max(self.project_configuration.iteration, number)
        return cast("Marker | None", marker)


def _refuse(elsewhere: dict[str, Any]) -> None:
    """Say what to use for what is not here, whether an argument or ``accelerate launch`` asks for it; "nothing" is fine.

    Raises:
        ConfigurationError: naming the way.
        TypeError: for an argument that nobody knows.
    """
    for name, given in elsewhere.items():
        if name not in _ELSEWHERE:
            raise TypeError(f"Accelerator has no argument {name!r}")
        if given is None or str(getattr(given, "value", given)).lower() == "no":
            continue
        raise ConfigurationError(f"{name}: Accelerator does single processes and DDP, not {_ELSEWHERE[name]}; {_WAY}")
    for variable, wanted in asked_elsewhere().items():
        raise ConfigurationError(f"{variable}={os.environ[variable]}: Accelerator does single processes and DDP, not {wanted}; {_WAY}")


def _dataloader_config(given: Any, *, split_batches: bool) -> DataLoaderConfiguration:
    """Return *given* as ours; *split_batches* if there is none.

    Raises:
        ConfigurationError: they contradict each other.
    """
    config = options_from(DataLoaderConfiguration, given or DataLoaderConfiguration(split_batches=split_batches), "dataloader_config")
    if split_batches and not config.split_batches:
        raise ConfigurationError("split_batches=True, but dataloader_config has split_batches=False; say it in dataloader_config only")
    return config


def _accumulation(plugin: Any, steps: int) -> GradientAccumulationPlugin:
    """Return *plugin* as ours; *steps*, or what ``accelerate launch`` was told, if there is none.

    Raises:
        ConfigurationError: they contradict each other, or the environment has no number.
    """
    if plugin is None:
        return GradientAccumulationPlugin(accumulation_steps() or 1 if steps == 1 else steps)
    ours = options_from(GradientAccumulationPlugin, plugin, "gradient_accumulation_plugin")
    if steps not in {1, ours.num_steps}:
        raise ConfigurationError(
            f"gradient_accumulation_steps={steps!r}, but gradient_accumulation_plugin has num_steps={ours.num_steps}; give one of them"
        )
    return ours


def _check_parallelism(model: nn.Module) -> None:
    """Check that *model* is not shared between processes in another way.

    Raises:
        ConfigurationError: it is, by FSDP or tensor parallelism.
    """
    tensors = sys.modules.get("torch.distributed.tensor")  # without it there can be no DTensor
    if type(model).__name__ == "FullyShardedDataParallel" or (
        tensors is not None and any(isinstance(parameter, tensors.DTensor) for parameter in model.parameters())
    ):
        raise ConfigurationError(f"the model is shared between processes already, by FSDP or as DTensors; {_WAY}")


def _rng_types(wanted: Iterable[str] | None) -> tuple[str, ...]:
    names = tuple(str(getattr(one, "value", one)) for one in wanted or ())
    for name in names:
        if name not in RNG_TYPES:
            raise ConfigurationError(f"rng_types: unknown {name!r} (known: {', '.join(RNG_TYPES)})")
    return names


__all__ = ["Accelerator"]
