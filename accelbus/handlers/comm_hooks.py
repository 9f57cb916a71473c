"""How gradients travel between the ranks of a DDP model: the hooks of torch by name, wrapped or not, and functions of your own."""

from __future__ import annotations

import enum
import functools
import inspect
import os
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from accelbus.errors import ConfigurationError
from accelbus.handlers.base import warn_no_effect
from accelbus.handlers.fields import integer, one_of, wrong_type
from accelbus.handlers.process import require_torch
from accelbus.meant import hint

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import GradBucket
    from torch.nn.parallel import DistributedDataParallel

Hook = Callable[[Any, "GradBucket"], "torch.futures.Future[torch.Tensor]"]  # Any: the state is the hook's own
Options = Mapping[str, Any]  # Any: what the hook's state takes


class DDPCommunicationHookType(enum.StrEnum):
    """A communication hook of DDP. Each is also known by its value: ``comm_hook="fp16"``."""

    NO = "no"
    """Gradients travel as they are."""
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    """Low-rank factors of each weight's gradient travel: https://arxiv.org/abs/1905.13727"""
    BATCHED_POWER_SGD = "batched_power_sgd"
    """Low-rank factors of each bucket: faster, and less accurate."""
    POST_LOCAL_SGD = "post_localSGD"
    """After a while gradients are averaged within a node only: https://arxiv.org/abs/1808.07217"""


WRAPPERS = (DDPCommunicationHookType.NO, DDPCommunicationHookType.FP16, DDPCommunicationHookType.BF16)
GROUP = "process_group"
"""The one option that every named hook has."""
POWER_SGD_OPTIONS = {
    GROUP,
    "matrix_approximation_rank",
    "start_powerSGD_iter",
    "min_compression_rate",
    "use_error_feedback",
    "warm_start",
    "orthogonalization_epsilon",
    "random_seed",
    "compression_stats_logging_frequency",
    "batch_tensors_with_same_shape",
}
LOCAL_SGD_OPTIONS = {GROUP, "subgroup", "start_localSGD_iter", "post_local_gradient_allreduce"}


class Registered(NamedTuple):
    """The hook of a model, as `registered` returns it."""

    hook: DDPCommunicationHookType | Hook
    wrapper: DDPCommunicationHookType
    state: Any  # whatever the hook keeps between steps
    element_bytes: int
    """Size of a gradient's element before it travels."""

    def compression_ratio(self) -> float | None:
        """Return bytes before over bytes after compression so far: 1.0 while nothing is compressed, None for a hook that is not torch's."""
        if not isinstance(self.hook, DDPCommunicationHookType):
            return None
        half = {DDPCommunicationHookType.FP16, DDPCommunicationHookType.BF16}
        ratio = self.element_bytes / 2 if {self.hook, self.wrapper} & half else 1.0
        statistics = getattr(self.state, "compression_stats", None)
        # During the warm-up of PowerSGD nothing has been compressed, and its own ratio is 0.
        return ratio * (statistics()[0] or 1.0) if statistics is not None else ratio


_registered: weakref.WeakKeyDictionary[Any, Registered] = weakref.WeakKeyDictionary()
"""{DDP model: its hook}"""


def hook_type(label: str, value: Any) -> DDPCommunicationHookType | Hook:  # Any: the check of a field
    """Let a hook's type, its name, another library's enum of these names, and a callable through."""
    name = getattr(value, "value", value) if isinstance(value, enum.Enum) else value
    if isinstance(name, str):
        known = {member.value.lower(): member for member in DDPCommunicationHookType}
        if name.lower() not in known:
            raise one_of(label, name, list(DDPCommunicationHookType))
        return known[name.lower()]
    if callable(value) and not isinstance(value, type):
        return value  # type: ignore[no-any-return]  # torch checks the signature where it is registered
    raise wrong_type(label, "a hook's name, a DDPCommunicationHookType or a callable", value)


def wrapper_type(label: str, value: Any) -> DDPCommunicationHookType:  # Any: the check of a field
    """Let the hooks through that can be put around another one."""
    found = hook_type(label, value)
    if found not in WRAPPERS:
        raise one_of(label, str(found), WRAPPERS)
    assert isinstance(found, DDPCommunicationHookType)
    return found


def check_options(label: str, hook: DDPCommunicationHookType | Hook, options: Options) -> None:
    """Check *options* for *hook*, without torch unless one is not known here. Those of another hook are fine: they have no effect.

    Raises:
        ConfigurationError: an option is unknown, missing, or makes no sense.
    """
    for name in options.keys() - _known_options(hook) - _foreign_options(hook):
        torch_knows = _options_of_torch(hook)
        if name not in torch_knows:
            known = sorted(torch_knows | _known_options(hook))
            raise ConfigurationError(f"{label}: unknown option {name!r}{hint(name.lower(), known)} (known: {', '.join(known)})")
    if hook in {DDPCommunicationHookType.POWER_SGD, DDPCommunicationHookType.BATCHED_POWER_SGD}:
        integer(1)(f"{label}[matrix_approximation_rank]", options.get("matrix_approximation_rank", 1))
        remembers = options.get("use_error_feedback", True) or options.get("warm_start", True)
        # DDP rebuilds its buckets after the first step; what PowerSGD remembers of them would be of another shape.
        integer(2 if remembers else 0)(f"{label}[start_powerSGD_iter]", options.get("start_powerSGD_iter", 1000))
    if hook == DDPCommunicationHookType.POST_LOCAL_SGD:
        integer(0)(f"{label}[start_localSGD_iter]", options.get("start_localSGD_iter"))


def register_comm_hook(
    model: DistributedDataParallel,
    hook: DDPCommunicationHookType | Hook | str,
    wrapper: DDPCommunicationHookType | str = DDPCommunicationHookType.NO,
    options: Options | None = None,
) -> Any:  # Any: the state is the hook's own
    """Let *hook* carry the gradients of *model*, and return its state (None where it has none). Once per model, before ``backward``.

    Args:
        model: a ``torch.nn.parallel.DistributedDataParallel``.
        hook: a name, or a callable that takes (state, bucket) and returns a future.
        wrapper: "fp16" or "bf16", to halve what *hook* sends.
        options: of the hook's state, such as ``matrix_approximation_rank``. A callable is given ``options["state"]``.

    Raises:
        ConfigurationError: a name or an option is not known.
    """
    require_torch()
    hook, wrapper, options = hook_type("comm_hook", hook), wrapper_type("comm_wrapper", wrapper), options or {}
    check_options("comm_state_option", hook, options)
    if unused := options.keys() & _foreign_options(hook):
        warn_no_effect(f"comm_state_option {', '.join(sorted(unused))}", f'has no effect with comm_hook="{hook}"', stacklevel=3)
        options = {name: value for name, value in options.items() if name not in unused}
    if hook == DDPCommunicationHookType.NO:
        return None
    function, state = _function(hook), _state(hook, options)
    if wrapper != DDPCommunicationHookType.NO:
        function = _wrapping(wrapper)(function)
    model.register_comm_hook(state=state, hook=_named(function, hook, model))
    element_bytes = next((one.element_size() for one in model.parameters() if one.requires_grad), 4)
    _registered[model] = Registered(hook, wrapper, state, element_bytes)
    return state


def registered(model: DistributedDataParallel) -> Registered | None:
    """Return the hook that `register_comm_hook` gave to *model*: its state can be saved, its compression looked at."""
    return _registered.get(model)


def _known_options(hook: DDPCommunicationHookType | Hook) -> set[str]:
    match hook:
        case DDPCommunicationHookType.POWER_SGD | DDPCommunicationHookType.BATCHED_POWER_SGD:
            return POWER_SGD_OPTIONS
        case DDPCommunicationHookType.POST_LOCAL_SGD:
            return LOCAL_SGD_OPTIONS
        case DDPCommunicationHookType():
            return {GROUP}
        case _:
            return {"state"}


def _foreign_options(hook: DDPCommunicationHookType | Hook) -> set[str]:
    """Return the options of other named hooks: scripts that choose the hook by an argument keep them all."""
    if not isinstance(hook, DDPCommunicationHookType):
        return set()
    return (POWER_SGD_OPTIONS | LOCAL_SGD_OPTIONS) - _known_options(hook)


def _options_of_torch(hook: DDPCommunicationHookType | Hook) -> set[str]:
    """Return what the hook's state takes in the installed torch: newer ones may take more."""
    require_torch()
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook

    state: type | None = None
    if hook in {DDPCommunicationHookType.POWER_SGD, DDPCommunicationHookType.BATCHED_POWER_SGD}:
        state = powerSGD_hook.PowerSGDState
    elif hook == DDPCommunicationHookType.POST_LOCAL_SGD:
        state = post_localSGD_hook.PostLocalSGDState
    return set() if state is None else {*inspect.signature(state).parameters}


def _function(hook: DDPCommunicationHookType | Hook) -> Hook:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook

    if not isinstance(hook, DDPCommunicationHookType):
        return hook
    functions: dict[DDPCommunicationHookType, Hook] = {
        DDPCommunicationHookType.FP16: default_hooks.fp16_compress_hook,
        DDPCommunicationHookType.BF16: default_hooks.bf16_compress_hook,
        DDPCommunicationHookType.POWER_SGD: powerSGD_hook.powerSGD_hook,
        DDPCommunicationHookType.BATCHED_POWER_SGD: _batched_power_sgd(),
        DDPCommunicationHookType.POST_LOCAL_SGD: post_localSGD_hook.post_localSGD_hook,
    }
    return functions[hook]


def _batched_power_sgd() -> Hook:
    """Return torch's ``batched_powerSGD_hook``, repaired.

    Its helper has taken three dimensions since it orthogonalises layers in batches, and this hook still hands it two: the first step
    after the warm-up ends with an AssertionError. The same code finds a helper here that takes both.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    names = dict(vars(powerSGD_hook))
    orthogonalise = names["_orthogonalize"]

    def orthogonalise_any(matrices: torch.Tensor, *arguments: Any, **named: Any) -> None:  # Any: torch's own
        # In place: what was two-dimensional is seen through a view.
        orthogonalise(matrices.unsqueeze(0) if matrices.dim() == 2 else matrices, *arguments, **named)

    original = powerSGD_hook.batched_powerSGD_hook
    names["_orthogonalize"] = orthogonalise_any
    repaired = types.FunctionType(original.__code__, names, original.__name__, original.__defaults__, original.__closure__)
    functools.update_wrapper(repaired, original)
    return repaired


def _wrapping(wrapper: DDPCommunicationHookType) -> Callable[[Hook], Hook]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if wrapper == DDPCommunicationHookType.FP16:
        return default_hooks.fp16_compress_wrapper
    return default_hooks.bf16_compress_wrapper


def _state(hook: DDPCommunicationHookType | Hook, options: Options) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook

    match hook:
        case DDPCommunicationHookType.POWER_SGD | DDPCommunicationHookType.BATCHED_POWER_SGD:
            return powerSGD_hook.PowerSGDState(**{GROUP: None, **options})
        case DDPCommunicationHookType.POST_LOCAL_SGD:
            chosen = {GROUP: None, "subgroup": None, **options}
            return post_localSGD_hook.PostLocalSGDState(**{**chosen, "subgroup": chosen["subgroup"] or _ranks_of_this_node()})
        case DDPCommunicationHookType():
            return options.get(GROUP)
        case _:
            return options.get("state")


def _ranks_of_this_node() -> Any:
    """Make a group per node. torch would make it in the middle of a step, as large as there are GPUs, and not at all without any."""
    import torch.distributed as dist

    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is None:
        return None
    subgroup, _ = dist.new_subgroups(group_size=int(local))
    return subgroup


def _named(function: Hook, hook: DDPCommunicationHookType | Hook, model: DistributedDataParallel) -> Hook:
    """Return *function* as torch accepts it.

    torch asks for names and annotations that partial functions and callable objects do not have. It also refuses bf16 hooks by their
    name where there is no NCCL, although gloo carries bf16.
    """
    import torch.distributed as dist

    if isinstance(hook, DDPCommunicationHookType) and dist.get_backend(model.process_group) != "gloo":
        return function

    def comm_hook(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  annotations would be compared with torch's
        return function(state, bucket)

    name = getattr(hook, "__qualname__", type(hook).__qualname__)
    comm_hook.__qualname__ = str(hook) if isinstance(hook, DDPCommunicationHookType) else name
    return comm_hook
