"""What stands around `Optimizer.step`: torch's wrappers for hooks, profiles and the grad mode.

Comes in: a call of one of the wrappers, known by its code. Goes out: the same without what is for
profiles and for torch.compile, or a break where an optimizer has hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as wrappers

from ..breaks import GraphBreak, RefusedTorchCall
from ..values.base import Args, Kwargs, Machine, Value
from ..values.functions import FunctionValue
from .process_state import read_state
from .registry import handles

__all__: list[str] = []


def _plain(*args: object) -> None:
    """What the wrappers are looked at around."""


_make_mode: Callable[..., Any] = wrappers._use_grad_for_differentiable
_make_hooked: Callable[..., Any] = torch.optim.Optimizer.profile_hook_step


def _hooks_of_all() -> int:
    """How many hooks there are for every optimizer."""
    return len(wrappers._global_optimizer_pre_hooks) + len(wrappers._global_optimizer_post_hooks)


def _inside(machine: Machine, wrapper: Value) -> Value:
    assert isinstance(wrapper, FunctionValue)
    cell = wrapper.closure[wrapper.code.co_freevars.index("func")].realize(machine)
    return cell.get_attr(machine, "cell_contents").realize(machine)


@handles(_make_hooked(_plain).__code__)
def _hooked_step(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    wrapper, owner = args[:2]
    for table in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if owner.get_attr(machine, table).realize(machine).length(machine):
            _refuse("it has hooks")
    if read_state(machine, _hooks_of_all).truth(machine):
        _refuse("there are hooks for all optimizers")
    return _inside(machine, wrapper).call(machine, args[1:], kwargs)


@handles(_make_mode(_plain).__code__)
def _step_in_mode(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Gradients are recorded where the optimizer is to be differentiated itself."""
    wrapper, owner = args[:2]
    defaults = owner.get_attr(machine, "defaults").realize(machine)
    differentiable = defaults.get_item(machine, machine.constant("differentiable"))
    before = machine.graph.grad_enabled
    machine.graph.set_grad_enabled(differentiable.realize(machine).truth(machine))
    try:
        return _inside(machine, wrapper).call(machine, args[1:], kwargs)
    finally:
        machine.graph.set_grad_enabled(before)


def _refuse(why: str) -> None:
    raise GraphBreak(RefusedTorchCall.of(name="Optimizer.step", why=why))
