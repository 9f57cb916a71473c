"""What `Accelerator` offers within a training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from accelbus.accelerator import operations
from accelbus.accelerator.data import PreparedDataLoader
from accelbus.accelerator.gradients import Accumulation
from accelbus.accelerator.nested import has_only_tensors, map_tensors
from accelbus.accelerator.optimizer import AcceleratedOptimizer
from accelbus.accelerator.options import GradientAccumulationPlugin
from accelbus.accelerator.parts import Parts
from accelbus.handlers import AutocastKwargs, KeyAverages, ProfileKwargs, as_handler

TRACES: Final = "traces"
"""In the run directory: where profiles go that have no place of their own."""


class TrainingMethods(Parts):
    """Mixed into `Accelerator`."""

    _trigger = False

    # --- gradients

    @property
    def sync_gradients(self) -> bool:
        """Whether the current batch completes a step: the moment to clip gradients, and to count steps."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, sync_gradients: bool) -> None:
        self.gradient_state.sync_gradients = sync_gradients

    @property
    def gradient_accumulation_steps(self) -> int:
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        self.gradient_state.plugin = GradientAccumulationPlugin(**{**vars(self.gradient_state.plugin), "num_steps": steps})

    @property
    def step(self) -> int:
        """Batches since the last one that a loader's end completed."""
        return self.gradient_state.step

    def accumulate(self, *models: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Count a batch: gradients are accumulated, and averaged over the processes when ``gradient_accumulation_steps`` are together.

        Prepared optimizers and schedulers do nothing in between. The last batch of a data loader completes a step in any case.

        Args:
            models: those whose gradients need not be averaged before that.
        """
        return Accumulation(self.gradient_state, [model for model in models if isinstance(model, DistributedDataParallel)])

    @contextlib.contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Leave out the averaging of gradients over the processes; they are added up in each of them."""
        with model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext():
            yield

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Compute gradients of *loss*, divided by ``gradient_accumulation_steps``; scaled, with fp16. *kwargs* go to ``backward``."""
        self.telemetry.training()
        if self._watched:
            self._watched = [order for order in self._watched if not order.release()]
        if (steps := self.gradient_state.num_steps) != 1:
            loss = loss / steps
        if self._scaling is not None:
            self._scaling.backward(loss, **kwargs)
        else:
            loss.backward(**kwargs)

    def unscale_gradients(self, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None) -> None:
        """Divide gradients by the scale of fp16; does nothing in other precisions, and nothing the second time in a step.

        Args:
            optimizer: one or several; all prepared ones when not given.
        """
        if self._scaling is None:
            return
        wanted = self._optimizers if optimizer is None else [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        for one in wanted:
            self._scaling.unscale(one.optimizer if isinstance(one, AcceleratedOptimizer) else one)

    def clip_grad_norm_(self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the norm of the gradients of *parameters*, unscaled first, and return what it was; part of the telemetry."""
        parameters = self._unscaled(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)
        self.telemetry.clipped(norm)
        return norm

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Clip the values of the gradients of *parameters*, unscaled first."""
        torch.nn.utils.clip_grad_value_(self._unscaled(parameters), clip_value)

    def _unscaled(self, parameters: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return *parameters*, with the gradients unscaled of the optimizers that have any of them: others may still be accumulating."""
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if self._scaling is not None:
            wanted = {id(parameter) for parameter in listed}
            owners = [one for one in self._optimizers if any(id(own) in wanted for group in one.param_groups for own in group["params"])]
            self.unscale_gradients(owners)
        return listed

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether an optimizer's last step did nothing because a gradient overflowed."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    # --- contexts

    @contextlib.contextmanager
    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> Iterator[None]:
        """Compute in the chosen precision within the block.

        Args:
            autocast_handler: in place of the one of `Accelerator`, such as ``AutocastKwargs(enabled=False)`` for a part in full precision.
        """
        with self._autocast(autocast_handler):
            yield

    def _autocast(self, handler: Any = None) -> contextlib.AbstractContextManager[object]:
        if handler is not None:
            handler = as_handler(handler, "autocast_handler")
        elif self.mixed_precision == "no":
            return contextlib.nullcontext()  # that the handler of `Accelerator` has no effect was said at construction
        chosen = handler or self.handlers.autocast_handler or AutocastKwargs()
        return chosen.autocast(self.mixed_precision, device_type=self.state.device.type)

    @contextlib.contextmanager
    def profile(self, profile_handler: ProfileKwargs | None = None) -> Iterator[torch.profiler.profile]:
        """Profile the block; call ``step()`` of what it yields after each step if the handler has a schedule.

        With a run, each cycle is sent to the trackers as a file and a table; the file also stays in the handler's ``output_trace_dir``,
        else in ``traces`` in the run directory. Without a run it is exported if there is an ``output_trace_dir``. No process waits for
        another.

        Args:
            profile_handler: in place of the one of `Accelerator`.
        """
        chosen = self.handlers.profile_handler or ProfileKwargs()
        if profile_handler is not None:
            given = as_handler(profile_handler, "profile_handler")
            assert isinstance(given, ProfileKwargs), given
            chosen = given
        run = self._run
        sends = run is not None and self._is_tracking and run.settings.mode != "disabled" and "profile" in self.telemetry.kinds
        with chosen.build(
            rank=self.state.process_index,
            first_step=self._last_step or 0,
            on_export=self._send_profile if sends else None,
            default_trace_dir=run.dir / TRACES if run is not None and sends else None,
        ) as profiler:
            yield profiler

    def _send_profile(self, path: Path | None, table: KeyAverages) -> None:
        run = self._run
        if run is None:
            return
        if path is not None:
            run.log_artifact(path, name=path.name, type="profile")
        run.log_table(f"profile/rank{self.state.process_index}", columns=table.columns, data=table.data)

    @contextlib.contextmanager
    def join_uneven_inputs(self, joinables: list[Any], even_batches: bool | None = None) -> Iterator[None]:
        """Let the processes train on different numbers of batches: one that has no more takes part in the averaging without data.

        Args:
            joinables: prepared models.
            even_batches: for the prepared data loaders in the block; False gives each process what there is, without repetition.
        """
        shards = [one.shard for one in self._dataloaders if isinstance(one, PreparedDataLoader) and one.shard is not None]
        before = [shard.even for shard in shards]
        for shard in shards:
            shard.even = shard.even if even_batches is None else even_batches
        try:
            if self.state.use_distributed:
                with Join([one for one in joinables if isinstance(one, DistributedDataParallel)]):
                    yield
            else:
                yield
        finally:
            for shard, even in zip(shards, before, strict=True):
                shard.even = even

    # --- metrics

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather what the processes have computed for the samples of this batch, each sample once.

        At the end of a prepared data loader some processes have had samples from its beginning to make the last step even; they are left
        out of everything that has one entry (or the same number of entries) per sample.

        Args:
            input_data: tensors, nested; anything else is gathered as objects, into one list.
            use_gather_object: gather tensors as objects too, for instance of different shapes.
        """
        if use_gather_object or not has_only_tensors(input_data):
            return self._without_repeats(operations.gather_object(input_data))
        return map_tensors(self._without_repeats, operations.gather(input_data))

    def _without_repeats(self, gathered: Any) -> Any:
        active = self.gradient_state.active
        if active is None or not active.is_last or not active.real:
            return gathered
        per_sample, rest = divmod(len(gathered), active.padded)
        return gathered[: per_sample * active.real] if rest == 0 else gathered

    # --- agreements

    def set_trigger(self) -> None:
        """Let `check_trigger` be true in every process."""
        self._trigger = True

    def check_trigger(self) -> bool:
        """Return whether any process has called `set_trigger` since the last check. Every process has to call it."""
        mine = torch.tensor(int(self._trigger), device=self.state.device)
        if is_set := bool(operations.reduce(mine, "sum").item()):
            self._trigger = False
        return is_set


__all__ = ["TrainingMethods"]
