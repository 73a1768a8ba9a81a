"""torch's wrappers around `Optimizer.step`, and the kernels of `fused=True`.

A wrapper is recognised by its code object. Its parts for the profiler and for torch.compile are
skipped. Hooks of the optimizer are called; hooks registered for all optimizers break. An update
with `fused=True` is recorded as the plain tensor operations of its formula, which jitmagic fuses
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import adagrad, adam, sgd
from torch.optim import optimizer as wrappers

from ....graph.node_meta import device_of
from ...breaks import GraphBreak, RefusedTorchCall
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.mappings import DictValue
from ...values.containers.sequences import ListValue, TupleValue
from ...values.objects.functions import FunctionValue
from ...values.objects.monkey_patches import unwrap_function
from ...values.objects.operators import is_none, unpack
from ...values.tensors.tensor import TensorValue
from ..registry import handles
from .process_state import read_state

__all__: list[str] = []


def _plain(*args: object) -> None:
    """Do nothing; the wrappers are applied to this function to find their code."""


_make_mode: Callable[..., Any] = wrappers._use_grad_for_differentiable
_make_hooked: Callable[..., Any] = torch.optim.Optimizer.profile_hook_step


def _hooks_of_all() -> int:
    """Return the number of hooks that apply to every optimizer."""
    return len(wrappers._global_optimizer_pre_hooks) + len(wrappers._global_optimizer_post_hooks)


def _inside(machine: Machine, wrapper: Value) -> Value:
    assert isinstance(wrapper, FunctionValue)
    cell = wrapper.closure[wrapper.code.co_freevars.index("func")].realize(machine)
    return cell.get_attr(machine, "cell_contents").realize(machine)


@handles(_make_hooked(_plain).__code__)
def _hooked_step(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    wrapper = args[0]
    if read_state(machine, _hooks_of_all).truth(machine):
        _refuse("there are hooks for all optimizers")
    for changed in _call_hooks(machine, "_optimizer_step_pre_hooks", args[1:], kwargs):
        if not is_none(changed):
            _refuse("a hook changes its arguments")
    result = _inside(machine, wrapper).call(machine, args[1:], kwargs)
    for _ in _call_hooks(machine, "_optimizer_step_post_hooks", args[1:], kwargs):
        pass  # the result of a post hook is ignored
    return result


def _call_hooks(machine: Machine, table: str, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    """Yield the results of the optimizer's own hooks, one by one."""
    hooks = args[0].get_attr(machine, table).realize(machine)
    if not hooks.length(machine):
        return
    named = DictValue.of(machine, ((machine.constant(name), one) for name, one in kwargs.items()))
    for hook in unpack(machine, hooks.call_method(machine, "values", [], {})):
        given = [args[0], TupleValue(args), named]
        yield hook.realize(machine).call(machine, given, {}).realize(machine)


@handles(_make_mode(_plain).__code__)
def _step_in_mode(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Run the step; gradients are recorded if the optimizer is to be differentiated itself."""
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


# -- updates that torch has a kernel for -----------------------------------------------------------

_SCALING = ("grad_scale", "found_inf")


def _follow_fused(module: Any, name: str) -> None:
    """Register the kernel of `fused=True` to be traced as the operations of its formula.

    It computes in float32, while these round after each operation. So narrower numbers, and steps
    under a GradScaler's scale, call the kernel.
    """
    fused = unwrap_function(getattr(module, f"_fused_{name}")).__code__

    @handles(fused)
    def handler(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        function, *given = args
        assert isinstance(function, FunctionValue)
        named = {**dict(zip(fused.co_varnames, given, strict=False)), **kwargs}
        device = _device_of(machine, named["params"])
        is_scaled = any(not is_none(named[scale]) for scale in _SCALING if scale in named)
        if is_scaled or device is None:
            return machine.inline(function, given, kwargs)
        kind = "single" if device == "cpu" else "multi"
        formula = function.globals.store.get(f"_{kind}_tensor_{name}")
        assert formula is not None
        run = formula.realize(machine).call
        if device == "cpu" or "capturable" not in named:
            return run(machine, [], named)
        return _with_steps_on_device(machine, run, named)


def _with_steps_on_device(machine: Machine, run: Callable[..., Value], named: Kwargs) -> Value:
    """Run with float64 steps: from float32 steps the kernel computes corrections in double."""
    steps = named["state_steps"]
    assert isinstance(steps, ListValue)
    counted = [step.realize(machine) for step in steps.realized(machine)]
    double = machine.constant(torch.float64)
    wide = [step.call_method(machine, "to", [double], {}) for step in counted]
    true, one = machine.constant(True), machine.constant(1)
    result = run(machine, [], {**named, "state_steps": ListValue(wide), "capturable": true})
    for step in counted:
        step.call_method(machine, "add_", [one], {})
    return result


def _device_of(machine: Machine, params: Value) -> str | None:
    """Return the device type that all parameters share, if they have 32 or 64 bits, else None."""
    assert isinstance(params, ListValue)
    devices: set[str] = set()
    for param in params.realized(machine):
        if not isinstance(param, TensorValue) or param.meta.dtype not in _WIDE:
            return None
        devices.add(device_of(param.node).type)
    return devices.pop() if len(devices) == 1 else None


_WIDE = (torch.float32, torch.float64)
for _module, _name in ((adam, "adam"), (sgd, "sgd"), (adagrad, "adagrad")):
    _follow_fused(_module, _name)
