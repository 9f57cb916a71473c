"""What `Accelerator` offers for checkpoints: everything a run needs to go on as if it had not stopped."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from accelbus import __version__
from accelbus.accelerator import checkpoint, randomness
from accelbus.accelerator.checkpoint import Marker
from accelbus.accelerator.differing import Entries, differing, put_back
from accelbus.accelerator.parts import Parts
from accelbus.errors import ConfigurationError

_log = logging.getLogger(__name__)
MODEL, OPTIMIZER, SCHEDULER, SCALER, CUSTOM = "pytorch_model.bin", "optimizer.bin", "scheduler.bin", "scaler.pt", "custom_checkpoint_0.pkl"

_NAMES = {MODEL: "models", OPTIMIZER: "optimizers", SCHEDULER: "schedulers", SCALER: "gradient scalers", CUSTOM: "registered objects"}


class SavingMethods(Parts):
    """Mixed into `Accelerator`."""

    @property
    def save_iteration(self) -> int:
        return self.project_configuration.iteration

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Let `save_state` and `load_state` take care of *objects* as well.

        Raises:
            ValueError: one of them has no ``state_dict`` or ``load_state_dict``.
        """
        wrong = [one for one in objects if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict"))]
        if wrong:
            raise ValueError(f"expected objects with state_dict and load_state_dict, got {wrong[0]!r}")
        self._custom_objects.extend(objects)

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(models, weights, output_dir)`` before something is saved; it may remove weights that it saves itself."""
        handle = RemovableHandle(self._before_saving)
        self._before_saving[handle.id] = hook
        return handle

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(models, input_dir)`` before something is loaded; it may remove models that it loads itself."""
        handle = RemovableHandle(self._before_loading)
        self._before_loading[handle.id] = hook
        return handle

    def save_state(
        self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True, **save_model_func_kwargs: Any
    ) -> str:
        """Save all that was prepared or registered, random numbers, positions in the data, run and step. Every process has to call it.

        A checkpoint that was not completed is never loaded. Within a loop over a data loader its position is part of the checkpoint;
        after a loop that was left early, the position is the beginning of the next epoch, as it is for the process that goes on.

        Args:
            output_dir: not given: ``<project_dir>/checkpoints/checkpoint_<n>``, with ``automatic_checkpoint_naming``.
            safe_serialization: taken for Accelerate's sake: what is saved is read without running code in any case.
            save_model_func_kwargs: taken for Accelerate's sake: arguments for DeepSpeed.

        Returns:
            The directory.
        """
        directory = self._next_checkpoint(output_dir)
        if self._scaling is not None:
            self._scaling.update()
        weights = [self.get_state_dict(model) for model in self._models]
        for hook in self._before_saving.values():
            hook(self._models, weights, str(directory))
        if self._writes:
            self._write_shared(directory, weights)
        own = self._own_state()
        if self.state.use_distributed:
            own["differing"] = self._differing({MODEL: weights, OPTIMIZER: [one.state_dict() for one in self._optimizers]})
        checkpoint.write(directory, f"rank_{self.state.process_index}.bin", [own])
        self.wait_for_everyone()
        if self._writes:
            checkpoint.mark(directory, self._marker())
            self._drop_old_checkpoints(directory)
        self.wait_for_everyone()
        self.project_configuration.iteration += 1
        return str(directory)

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: Mapping[str, Any] | None = None,
        **load_model_func_kwargs: Any,
    ) -> None:
        """Go on where `save_state` was called. Every process has to call it, after `prepare`.

        The next loop over a prepared data loader begins where the checkpoint was made; `skip_first_batches` says otherwise. A later
        `init_trackers` continues the checkpoint's run; a run that was started before is said to be forked from it.

        Args:
            input_dir: not given: the newest complete one, with ``automatic_checkpoint_naming``.
            load_kwargs: for ``torch.load``, such as ``{"weights_only": False}``.
            load_model_func_kwargs: for the models' ``load_state_dict``.

        Raises:
            ConfigurationError: there is no complete checkpoint; it is a ValueError.
        """
        directory, marker = self._checkpoint_to_load(input_dir)
        reading = dict(load_kwargs or {})
        own = self._read_own_state(directory, marker, reading)
        kept = own.get("differing", []) if marker.num_processes == self.state.num_processes else []
        models = list(self._models)
        for hook in self._before_loading.values():
            hook(models, str(directory))
        self._check_numbers(directory, models, len(own["dataloaders"]))
        for number, model in enumerate(models):
            state = put_back(checkpoint.read(directory / checkpoint.numbered(MODEL, number), **reading), kept, MODEL, number)
            self.unwrap_model(model, keep_torch_compile=False).load_state_dict(state, **load_model_func_kwargs)
        for name, objects in self._shared_objects().items():
            for number, one in enumerate(objects):
                one.load_state_dict(put_back(checkpoint.read(directory / checkpoint.numbered(name, number), **reading), kept, name, number))
        self.gradient_state.step, self.gradient_state.sync_gradients = marker.accumulated, marker.sync_gradients
        self._last_step, self._origin = marker.step, marker
        self.record_fork(marker)
        if marker.num_processes == self.state.num_processes:
            for number, order in enumerate(marker.orders):
                if number in self._orders:
                    self._orders[number].show(order)
        self._load_own_state(own)

    def _next_checkpoint(self, output_dir: str | os.PathLike[str] | None) -> Path:
        project = self.project_configuration
        if project.automatic_checkpoint_naming and project.project_dir is not None:
            directory = Path(project.project_dir) / checkpoint.CHECKPOINTS / f"checkpoint_{project.iteration}"
            if checkpoint.marker_of(directory) is not None:
                raise ConfigurationError(
                    f"the checkpoint {str(directory)!r} is there already; set accelerator.project_configuration.iteration to "
                    f"{checkpoint.next_number(Path(project.project_dir))}, which is free, or remove it"
                )
        elif output_dir is not None:
            directory = Path(output_dir)
        else:
            raise ConfigurationError("save_state() needs output_dir, or a project_dir with automatic_checkpoint_naming")
        self.wait_for_everyone()
        directory.mkdir(parents=True, exist_ok=True)
        if self._writes:
            checkpoint.unmark(directory)
        # Not before the marker is gone does anybody replace a file: what is complete would be a mixture of two checkpoints.
        self.wait_for_everyone()
        return directory

    def _checkpoint_to_load(self, input_dir: str | os.PathLike[str] | None) -> tuple[Path, Marker]:
        project = self.project_configuration
        directory: Path | None
        if input_dir is not None:
            directory = Path(input_dir).expanduser()
            if not directory.is_dir():
                raise ConfigurationError(f"the checkpoint {str(directory)!r} does not exist")
        elif project.automatic_checkpoint_naming and project.project_dir is not None:
            named = checkpoint.named_automatically(Path(project.project_dir))
            directory = next((path for path in reversed(named) if checkpoint.marker_of(path) is not None), None)
            if directory is None:
                raise ConfigurationError(f"there is no complete checkpoint in {str(project.project_dir)!r}")
            project.iteration = checkpoint.next_number(Path(project.project_dir))
        else:
            raise ConfigurationError("load_state() needs input_dir, or a project_dir with automatic_checkpoint_naming")
        marker = checkpoint.marker_of(directory)
        if marker is None:
            if checkpoint.is_of_accelerate(directory):
                raise ConfigurationError(
                    f"{str(directory)!r} is a checkpoint of Accelerate: load it with Accelerate's Accelerator, or only its weights, with "
                    f"load_state_dict"
                )
            raise ConfigurationError(f"{str(directory)!r} is no complete checkpoint: {checkpoint.MARKER} is missing, which is written last")
        return directory, marker

    @property
    def _writes(self) -> bool:
        """Whether this process writes what is the same in all of them."""
        return self.state.is_local_main_process if self.project_configuration.save_on_each_node else self.state.is_main_process

    def _shared_objects(self) -> dict[str, list[Any]]:
        scalers = [] if self._scaling is None else [self._scaling.scaler]
        return {OPTIMIZER: self._optimizers, SCHEDULER: self._schedulers, SCALER: scalers, CUSTOM: self._custom_objects}

    def _write_shared(self, directory: Path, weights: list[Any]) -> None:
        checkpoint.write(directory, MODEL, weights)
        counts = {MODEL: len(weights)}
        for name, objects in self._shared_objects().items():
            checkpoint.write(directory, name, [one.state_dict() for one in objects])
            counts[name] = len(objects)
        for name, count in counts.items():
            checkpoint.remove_from(directory, name, count)
            self._warn_of_what_needs_trust(directory, name, count)

    def _warn_of_what_needs_trust(self, directory: Path, name: str, count: int) -> None:
        for number in range(count):
            path = directory / checkpoint.numbered(name, number)
            if types := checkpoint.needs_trust(path):
                owner = f", the state of a {type(self._custom_objects[number]).__name__}," if name == CUSTOM else ""
                _log.warning(
                    "%s%s holds %s: it is only read with load_state(..., load_kwargs={'weights_only': False}); keep numbers, strings, lists, "
                    "dictionaries, tensors and numpy's arrays in a state_dict",
                    path.name,
                    owner,
                    ", ".join(types),
                )

    def _check_numbers(self, directory: Path, models: list[nn.Module], dataloaders: int) -> None:
        """Check that the checkpoint has a state for everything that was prepared; say what it has besides.

        Raises:
            ConfigurationError: it has fewer.
        """
        for name, objects in {MODEL: models, **self._shared_objects()}.items():
            found, what = checkpoint.count(directory, name), _NAMES[name]
            if len(objects) > found:
                raise ConfigurationError(
                    f"{str(directory)!r} has {found} {what}, expected {len(objects)}: as many as were prepared or registered. Prepare the "
                    f"same objects, in the same order, as the script that has saved it"
                )
            known = len(self._models) if name == MODEL else len(objects)
            if known < found and self.state.is_main_process:
                _log.warning("%s has %d %s, here are %d: the others' states are not loaded", directory, found, what, known)
        if dataloaders != len(self._dataloaders) and self.state.is_main_process:
            _log.warning(
                "%s has positions of %d data loaders, here are %d: the first ones go on, in order of preparation",
                directory,
                dataloaders,
                len(self._dataloaders),
            )

    def _differing(self, states: dict[str, list[Any]]) -> Entries:
        """Return what the process that writes for this one has otherwise."""
        on_each_node = self.project_configuration.save_on_each_node
        writer = self.state.process_index - self.state.local_process_index if on_each_node else 0
        return differing(states, writer=writer, all_write_for=on_each_node)

    def _marker(self) -> Marker:
        return Marker(
            run_id=None if self._run is None else self._run.id,
            project=None if self._run is None else self._run.settings.project,
            step=self._last_step,
            num_processes=self.state.num_processes,
            accumulated=self.gradient_state.step,
            sync_gradients=self.gradient_state.sync_gradients,
            orders=[order.order if (order := self._orders.get(number)) and order.is_known else [] for number in range(len(self._models))],
            created_ns=time.time_ns(),
            accelbus=__version__,
        )

    def _own_state(self) -> dict[str, Any]:
        """Return what only this process knows."""
        own = {"random": randomness.capture(device=self.state.device), "dataloaders": [loader.state_dict() for loader in self._dataloaders]}
        if self.gradient_state.is_accumulating:
            own["gradients"] = [_gradients_of(model) for model in self._models]
        return own

    def _read_own_state(self, directory: Path, marker: Marker, reading: dict[str, Any]) -> dict[str, Any]:
        path = directory / f"rank_{self.state.process_index}.bin"
        if marker.num_processes != self.state.num_processes:
            _log.warning(
                "the checkpoint was made by %d processes, here are %d: random numbers go on differently, the position in the data is "
                "the same to within one batch",
                marker.num_processes,
                self.state.num_processes,
            )
            # A file of a rank that the checkpoint does not have is that of an older one in the same place.
            path = path if self.state.process_index < marker.num_processes else directory / "rank_0.bin"
        own: dict[str, Any] = checkpoint.read(path, **reading)
        return own

    def _load_own_state(self, own: dict[str, Any]) -> None:
        for loader, state in zip(self._dataloaders, own["dataloaders"], strict=False):
            loader.load_state_dict(state)
        for model, gradients in zip(self._models, own.get("gradients", []), strict=False):
            for name, parameter in model.named_parameters():
                if name in gradients:
                    parameter.grad = gradients[name].to(parameter.device)
        randomness.restore(own["random"], device=self.state.device)

    def _drop_old_checkpoints(self, new: Path) -> None:
        """Keep as many as ``total_limit`` says, *new* among them, which is complete by now."""
        project = self.project_configuration
        if not project.automatic_checkpoint_naming or project.total_limit is None or project.project_dir is None:
            return
        others = [path for path in checkpoint.named_automatically(Path(project.project_dir)) if path != new]
        for path in others[: max(0, len(others) + 1 - project.total_limit)]:
            checkpoint.unmark(path)
            shutil.rmtree(path, ignore_errors=True)

    # --- models alone

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the state of *model* on the device it is on."""
        state: dict[str, Any] = (self.unwrap_model(model, keep_torch_compile=False) if unwrap else model).state_dict()
        return state

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Save *obj* with ``torch.save``, in one process."""
        if self._writes:
            torch.save(obj, f)

    def save_model(
        self, model: nn.Module, save_directory: str | os.PathLike[str], max_shard_size: int | str = "10GB", safe_serialization: bool = True
    ) -> None:
        """Save the weights of *model* as ``pytorch_model.bin``, in one process.

        Args:
            model: prepared or not.
            save_directory: is made.
            max_shard_size: taken for Accelerate's sake: it is always one file.
            safe_serialization: taken for Accelerate's sake: the file is read with ``torch.load(..., weights_only=True)``.
        """
        if self._writes:
            Path(save_directory).mkdir(parents=True, exist_ok=True)
            checkpoint.write(Path(save_directory), MODEL, [self.get_state_dict(model)])


def _gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


__all__ = ["SavingMethods"]
