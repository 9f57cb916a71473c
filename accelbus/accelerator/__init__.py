"""`Accelerator`: one training loop for a CPU, a GPU and several processes with DDP, its numbers on the bus.

::

    from accelbus import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    accelerator.init_trackers("digits", config={"lr": 0.1})
    for batch, target in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.log({"loss": loss})
    accelerator.end_training()

Names and arguments are those of Hugging Face Accelerate. Imports torch.

::

    accelerator.py   the façade: construction and `prepare`
    processes.py, training.py, trackers.py, saving.py   its methods; parts.py what they share
    state.py         processes and devices; environment.py what a launcher says
    data.py          prepared data loaders; sharding.py, dispatch.py who reads what; position.py where they are
    optimizer.py, scheduler.py, scaling.py, precision.py, gradients.py
    operations.py    collectives; nested.py nested data
    checkpoint.py    files of a checkpoint; randomness.py generators
    telemetry.py     what the runtime tells of itself; stopwatch.py
"""

from __future__ import annotations

from accelbus.accelerator.accelerator import Accelerator
from accelbus.accelerator.operations import broadcast, broadcast_object_list, gather, gather_object, pad_across_processes, reduce
from accelbus.accelerator.options import DataLoaderConfiguration, GradientAccumulationPlugin, ProjectConfiguration
from accelbus.accelerator.randomness import set_seed
from accelbus.accelerator.state import DistributedType

__all__ = [
    "Accelerator",
    "DataLoaderConfiguration",
    "DistributedType",
    "GradientAccumulationPlugin",
    "ProjectConfiguration",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "pad_across_processes",
    "reduce",
    "set_seed",
]
