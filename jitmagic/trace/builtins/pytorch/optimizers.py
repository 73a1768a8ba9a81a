"""torch's wrappers around `Optimizer.step`, the list operations in it, and kernels of `fused=True`.

A wrapper is recognised by its code object. Its parts for the profiler and for torch.compile are
skipped. Hooks of the optimizer are called; hooks registered for all optimizers break. An update
with `fused=True` is recorded as the plain tensor operations of its formula, which jitmagic fuses
itself. A list operation (torch._foreach_*) is one node; if a number is symbolic, it is the plain
tensor operation for each element, in the order of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.optim import adagrad, adam, sgd

from ....compat.functions import foreach
from ....compat.modules import (
    group_tensors,
    group_tensors_of_optimizer,
    use_grad_for_differentiable,
)
from ....graph.memory import storage_under
from ....graph.node_meta import device_of
from ....guards.process_readers import optimizer_hooks
from ...breaks import GraphBreak, RefusedTorchCall, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.mappings import DictValue
from ...values.containers.sequences import ListValue, SequenceValue, TupleValue
from ...values.numbers.number import node_scalar
from ...values.numbers.scalar_calls import FORMS
from ...values.objects.constants import ConstantValue
from ...values.objects.functions import FunctionValue
from ...values.objects.monkey_patches import unwrap_function
from ...values.objects.operators import is_none, unpack
from ...values.tensors.tensor import TensorValue, record
from ..registry import AS_GIVEN, CallHandler, handles
from .process_state import read_state

__all__: list[str] = []


# -- wrappers of step() ----------------------------------------------------------------------------


def _plain(*args: object) -> None:
    """Do nothing; the wrappers are applied to this function to find their code."""


_make_hooked: Callable[..., Any] = torch.optim.Optimizer.profile_hook_step


def _inside(machine: Machine, wrapper: Value) -> Value:
    assert isinstance(wrapper, FunctionValue)
    cell = wrapper.closure[wrapper.code.co_freevars.index("func")].realize(machine)
    return cell.get_attr(machine, "cell_contents").realize(machine)


@handles(_make_hooked(_plain).__code__)
def _hooked_step(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    wrapper = args[0]
    # Their number is read again in each call, so a hook that is registered later is not missed.
    if read_state(machine, optimizer_hooks).truth(machine):
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


@handles(use_grad_for_differentiable(_plain).__code__)
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


def _follow_fused(module: object, name: str) -> None:
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
        # On a GPU the formula on lists: the kernel made functional copies all of its operands, and
        # was slower than eager.
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
    # `capturable` keeps the steps tensors; otherwise the formula reads each as a number.
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


# -- list operations -------------------------------------------------------------------------------


_VALUE_LAST = ("addcmul", "addcdiv")  # the number is a keyword of the tensor operation


def _follow_list(bare: str, in_place: bool, function: Callable[..., object]) -> CallHandler:
    method = f"{bare}_" if in_place else bare

    def handler(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        arguments = (*args, *kwargs.values())
        if not args or not any(_holds_number(machine, value) for value in arguments):
            return record(machine, function, args, kwargs)
        columns = _columns(machine, f"torch._foreach_{method}", args)
        if bare in _VALUE_LAST and len(columns) == 4:
            rows = [(row[:3], {"value": row[3]}) for row in zip(*columns, strict=True)]
        else:
            rows = [(row, dict(kwargs)) for row in zip(*columns, strict=True)]
        results = [record(machine, method, list(row), named) for row, named in rows]
        if not in_place:
            return TupleValue(results)
        return ListValue(results) if _gives_what_it_wrote() else machine.constant(None)

    return handler


def _holds_number(machine: Machine, value: Value) -> bool:
    if isinstance(value, SequenceValue):
        return any(_holds_number(machine, item.realize(machine)) for item in value.items)
    return node_scalar(value) is not None


def _columns(machine: Machine, name: str, args: Args) -> list[list[Value]]:
    """Return the arguments for each tensor of the first list.

    No entry shares memory with another, so their order does not matter.
    """
    first = _entries(machine, name, args[0])
    columns = [
        _entries(machine, name, arg) if isinstance(arg, SequenceValue) else [arg] * len(first)
        for arg in args
    ]
    if not first or any(len(column) != len(first) for column in columns):
        raise _unsupported(name, "lists of several lengths")
    # By storage, because comparing each tensor with each other one took n² steps for n parameters.
    positions: dict[int, int] = {}
    for column in columns:
        for position, entry in enumerate(column):
            if not isinstance(entry, TensorValue):
                continue
            memory = storage_under(entry.meta)
            if column is columns[0] and memory in positions:
                raise _unsupported(name, "tensors that share memory")
            if column is columns[0]:
                positions[memory] = position
            elif positions.get(memory, position) != position:
                raise _unsupported(name, "tensors that share memory")
    return columns


def _entries(machine: Machine, name: str, column: Value) -> list[Value]:
    if not isinstance(column, SequenceValue):
        raise _unsupported(name, "something else than lists")
    return [item.realize(machine) for item in column.items]


def _unsupported(name: str, what: str) -> GraphBreak:
    return GraphBreak(UnsupportedArguments.of(name=name, what=what))


@lru_cache(maxsize=1)
def _gives_what_it_wrote() -> bool:
    """Return whether in-place list operations return the list (newer versions of torch) or None."""
    return foreach("neg_")([torch.zeros(())]) is not None


def _register_lists() -> None:
    for bare in (name for name in FORMS if hasattr(torch, f"_foreach_{name}")):
        for in_place in (False, True):
            function = foreach(f"{bare}{'_' if in_place else ''}")
            handles(function, like=AS_GIVEN)(_follow_list(bare, in_place, function))


_register_lists()


# -- sorting ---------------------------------------------------------------------------------------


_GROUPING = "tensors by device and dtype"


@handles(group_tensors_of_optimizer, group_tensors)
def _grouped(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Group the lists by the first one's tensors: {(device, dtype): (lists, indices if
    requested)}.
    """
    indexed = len(args) > 1 and args[1].truth(machine)
    lists_given = _entries(machine, _GROUPING, args[0])
    columns = [_entries(machine, _GROUPING, tensors) for tensors in lists_given]
    if not columns or any(len(column) not in (0, len(columns[0])) for column in columns):
        raise _unsupported(_GROUPING, "lists of several lengths")
    groups: dict[tuple[object, object], list[int]] = {}
    for position, tensor in enumerate(columns[0]):
        groups.setdefault(_kind(tensor), []).append(position)
    for column in columns[1:]:
        _check_alike(columns[0], column)
    pairs: list[tuple[Value, Value]] = []
    for kind, positions in groups.items():
        lists = [ListValue([column[n] for n in positions] if column else []) for column in columns]
        listed: list[Value] = [machine.constant(n) for n in positions if indexed]
        key = TupleValue([machine.constant(part) for part in kind])
        pairs.append((key, TupleValue([ListValue([*lists]), ListValue(listed)])))
    return DictValue.of(machine, pairs)


def _kind(value: Value) -> tuple[torch.device, torch.dtype]:
    if not isinstance(value, TensorValue):
        raise _unsupported(_GROUPING, "something else than tensors")
    return device_of(value.node), value.node.meta["val"].dtype


def _check_alike(first: Sequence[Value], column: Sequence[Value]) -> None:
    """Break for lists whose tensors differ, as eager does; step counters may be on the CPU."""
    for left, right in zip(first, column, strict=False):
        if isinstance(right, ConstantValue) and right.value is None:
            continue
        device, dtype = _kind(right)
        # Steps of optimizers that are not capturable are such tensors, whatever the parameters are.
        counts = device.type == "cpu" and dtype in (torch.float32, torch.float64)
        if (device, dtype) != _kind(left) and not counts:
            raise _unsupported(_GROUPING, "tensors that differ at one index of the lists")
