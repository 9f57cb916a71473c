"""The order in which DDP adds up gradients, kept over a restart.

After its first step DDP sorts gradients into buckets anew, in the order in which they became ready. With three and more ranks the place of
a gradient in its bucket decides in which order the ranks' values are added, so a process that has just started rounds differently from
one that goes on. What DDP saw in its first step is noted here, and shown to it again after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from accelbus.handlers import registered


class BucketOrder:
    """Notes in which order the gradients of a model become ready in its first step.

    Args:
        model: a model that has not been trained yet.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model = model
        self.order: list[int] = []
        """Numbers of parameters; complete when `is_known`."""
        self._parameters = _trained(model)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _, number=number: self._note(number))
            for number, parameter in enumerate(self._parameters)
        ]

    @property
    def is_known(self) -> bool:
        return len(self.order) == len(self._parameters)

    def _note(self, number: int) -> None:
        # Batches that are only accumulated are none of DDP's business.
        if self.model.require_backward_grad_sync and not self.is_known:
            self.order.append(number)

    def release(self) -> bool:
        """Stop watching if there is nothing more to be seen, and return whether that is so."""
        if not self.is_known:
            self.order.clear()  # the step has left some out: none, or DDP will complain
            return False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        return True

    def show(self, order: Sequence[int]) -> None:
        """Let DDP see the order of another process's first step. A collective; gradients stay as they are."""
        if self.is_known or sorted(order) != list(range(len(self._parameters))) or not _sorts_anew(self.model):
            return
        gradients = [parameter.grad for parameter in self._parameters]
        total = torch.zeros((), device=self._parameters[0].device)
        # What enters the graph last becomes ready first.
        for number in reversed(order):
            total = total + self._parameters[number].sum() * 0
        self.model.reducer.prepare_for_backward([])
        self.order.clear()
        total.backward()
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient


def _trained(model: DistributedDataParallel) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _sorts_anew(model: DistributedDataParallel) -> bool:
    """Whether it sorts its buckets after the first step, and nothing but gradients is touched by a step that is not one."""
    hook = registered(model)
    return not model.find_unused_parameters and not model.static_graph and (hook is None or hook.state is None)


__all__ = ["BucketOrder"]
