"""Options of `Accelerator` that come in groups; names and defaults are Accelerate's, whose own objects are accepted too."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, TypeVar


@dataclasses.dataclass
class DataLoaderConfiguration:
    """How prepared data loaders share their data between the ranks."""

    split_batches: bool = False
    """The loader's batch is split between the ranks; otherwise each rank gets whole batches, and a step sees ranks times as many samples."""
    dispatch_batches: bool | None = None
    """Rank 0 reads and sends each rank its part. Not given: for iterable datasets, which the ranks might read in different order."""
    even_batches: bool = True
    """The last step is filled up with samples from the beginning, so that all ranks get equally many; `gather_for_metrics` drops them."""
    use_seedable_sampler: bool = False
    """Each epoch is shuffled by ``data_seed`` (or a seed drawn once) plus its number. Always so with several ranks, unless the sampler has a
    generator of its own."""
    data_seed: int | None = None
    non_blocking: bool = False
    """Batches are copied to the device while the host goes on; for loaders with ``pin_memory``."""
    use_stateful_dataloader: bool = False
    """Taken for Accelerate's sake: the position of every prepared loader is part of a checkpoint."""


@dataclasses.dataclass
class GradientAccumulationPlugin:
    """How gradients are accumulated."""

    num_steps: int = 1
    adjust_scheduler: bool = True
    """Taken for Accelerate's sake: a prepared scheduler follows the optimizer's steps, whatever was accumulated for one."""
    sync_with_dataloader: bool = True
    """The last batch of a loader completes a step even if fewer than ``num_steps`` batches were accumulated."""
    sync_each_batch: bool = False
    """Ranks average gradients after every batch: slower, with less memory."""

    def __post_init__(self) -> None:
        if type(self.num_steps) is not int or self.num_steps < 1:
            raise ValueError(f"num_steps={self.num_steps!r}: expected an integer of at least 1")


@dataclasses.dataclass
class ProjectConfiguration:
    """Where checkpoints and runs go."""

    project_dir: str | os.PathLike[str] | None = None
    logging_dir: str | os.PathLike[str] | None = None
    """Run directories lie in here; ``project_dir`` when not given."""
    automatic_checkpoint_naming: bool = False
    """`Accelerator.save_state` makes ``<project_dir>/checkpoints/checkpoint_<iteration>``."""
    total_limit: int | None = None
    """How many of these are kept."""
    iteration: int = 0
    """Number of the next one, at least; those that are there are not overwritten."""
    save_on_each_node: bool = False
    """For file systems that the nodes do not share."""

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Set what is not set yet."""
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir

    def __post_init__(self) -> None:
        self.set_directories(self.project_dir)


_Options = TypeVar("_Options", DataLoaderConfiguration, GradientAccumulationPlugin, ProjectConfiguration)


def options_from(kind: type[_Options], given: Any, argument: str) -> _Options:
    """Return *given* as *kind*: itself, or what an object of Accelerate with the same name says.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(given, kind):
        return given
    names = [field.name for field in dataclasses.fields(kind)]
    if type(given).__name__ != kind.__name__ or not hasattr(given, names[0]):
        raise TypeError(f"{argument}={given!r}: expected a {kind.__name__}")
    return kind(**{name: getattr(given, name) for name in names if hasattr(given, name)})


__all__ = ["DataLoaderConfiguration", "GradientAccumulationPlugin", "ProjectConfiguration", "options_from"]
