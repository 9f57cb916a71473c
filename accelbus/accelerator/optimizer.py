"""Optimizers that step when a step is due, and know whether they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from accelbus.accelerator.gradients import GradientState
from accelbus.accelerator.scaling import LossScaling, Overflow

if TYPE_CHECKING:
    from accelbus.accelerator.telemetry import Telemetry


class AcceleratedOptimizer(Optimizer):
    """An optimizer whose ``step`` and ``zero_grad`` do nothing while gradients are accumulated.

    Args:
        optimizer: the original one; everything that is not here is its.
        gradients: says when a step is due.
        follow_parameters: parameters may have moved since the optimizer was made.
        scaling: for fp16.
        telemetry: is told of steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        gradients: GradientState,
        *,
        follow_parameters: bool = False,
        scaling: LossScaling | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        # Not Optimizer.__init__: parameters, state and hooks are the original's.
        self.optimizer = optimizer
        self.gradient_state = gradients
        self.scaling = scaling
        self._telemetry = telemetry
        self._overflow = Overflow(False)
        if follow_parameters and optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())  # torch puts each state where its parameter is

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let the original step if this batch completes an accumulation, and no gradient overflowed."""
        if not self.gradient_state.sync_gradients:
            return None
        if self.scaling is not None:
            self._overflow = self.scaling.step(self.optimizer, closure)
            result = None
        else:
            result = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        if self._telemetry is not None:
            self._telemetry.stepped(self)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients if this batch completed an accumulation."""
        if self.gradient_state.sync_gradients:
            self.optimizer.zero_grad(set_to_none=set_to_none)

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last step did nothing because a gradient overflowed; waits for the device where only that knows."""
        return bool(self._overflow)

    @property
    def overflow(self) -> Overflow:
        """The same, without waiting yet."""
        return self._overflow

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def defaults(self) -> dict[str, Any]:
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        # Also `train` and `eval` of optimizers that have them, and the hooks.
        if name == "optimizer":  # not there yet: while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"<prepared {self.optimizer!r}>"


__all__ = ["AcceleratedOptimizer"]
