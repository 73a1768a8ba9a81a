"""Models torch.library.triton_op and wrap_triton: operators whose body is traced.

A call of such an operator is traced as torch.autograd.Function would run it: the body without
gradients, then the registered autograd formula. Its Triton kernels are thereby nodes of the graph
(values/tensors/triton_kernels.py), as torch promises for these operators; torch's own fake kernel,
which is the body, would launch the kernels on tensors without memory.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType
from typing import Any

import torch

from ....compat.operators import OPERATOR_DEFINITIONS, CustomOpDef, OpOverload, has_autocast_rule
from ....guards.guard import IdentityIs, StateRead
from ....guards.source import ImportedModule, Item, ModuleAttr
from ....symbols.expr import Integer
from ...breaks import GraphBreak, RefusedTorchCall
from ...values.base import Args, Kwargs, Machine, Value
from ...values.numbers.number import NumberValue
from ...values.tensors.tensor import TensorValue
from ...values.tensors.torch_function import traces_bodies
from ...values.tensors.triton_kernels import KernelValue
from ..registry import handles, handles_named
from .autograd_functions import forward_alone

__all__ = ["CLASSES"]

_Function: Any = torch.autograd.Function
CLASSES: dict[str, type] = {}
"""The class that stands for each operator, by its name; guards read it from here."""


@handles(torch.library.wrap_triton)
def _wrap_triton(machine: Machine, kernel: Value) -> Value:
    """Return the kernel itself: its launches are recorded anyway."""
    if not isinstance(kernel, KernelValue):
        raise _refused("torch.library.wrap_triton", f"{kernel.describe()} is no Triton kernel")
    return kernel


@handles_named("triton", "next_power_of_2")
def _next_power_of_2(machine: Machine, n: Value) -> Value:
    """Guard the range of numbers with that power of two: most programs use it as a block size."""
    if not isinstance(n, NumberValue) or not machine.symbols.has_hints((n.scalar.expr,)):
        return machine.constant(_power_of_2(n.as_constant(machine)))
    power = _power_of_2(int(machine.symbols.value_of(n.scalar.expr)))
    for op, limit in ((">", power // 2), ("<=", power)):
        if not machine.symbols.decide(op, n.scalar.expr, Integer(limit)):
            n.refuse(machine, "next_power_of_2()")
    return machine.constant(power)


def _power_of_2(n: int) -> int:
    """Do what Triton does, also for n < 1, whose result is no power of two."""
    n -= 1
    for shift in (1, 2, 4, 8, 16, 32):
        n |= n >> shift
    return n + 1


def _refused(name: str, why: str) -> GraphBreak:
    return GraphBreak(RefusedTorchCall.of(name=name, why=why))


@traces_bodies
def _call_triton_op(machine: Machine, op: OpOverload, args: Args, kwargs: Kwargs) -> Value | None:
    """Trace a call of an operator made by triton_op; None for other operators."""
    definition = OPERATOR_DEFINITIONS.get(op._schema.name)
    body = None if definition is None else _body_of(definition)
    if definition is None or body is None:
        return None
    name = op._schema.name
    if set(definition._backend_fns) != {None}:
        raise _refused(name, "it has another kernel for a device")
    if has_autocast_rule(definition) or definition._disabled_kernel:
        raise _refused(name, "it has a rule for autocast, or a kernel is disabled")
    machine.guard(StateRead(partial(len, definition._backend_fns), 1))
    graph = machine.graph
    tensors = [arg for arg in (*args, *kwargs.values()) if _requires_grad(machine, arg)]
    if tensors and graph.grad_enabled and not graph.modes_vary:
        if definition._backward_fn is None:
            raise _refused(name, "no autograd formula was registered")
        if op._schema.is_mutable:
            raise _refused(name, "it writes to its arguments and has an autograd formula")
    cls = _class_for(name, definition, body)
    path = Item(ModuleAttr(ImportedModule(__name__), "CLASSES"), name)
    machine.guard(IdentityIs(path, cls))
    value = machine.class_of(cls, path)
    if definition._backward_fn is None:
        return forward_alone(machine, value, args, kwargs)
    made: Value = value.get_attr(machine, "apply").realize(machine).call(machine, args, kwargs)
    return made


def _requires_grad(machine: Machine, arg: Value) -> bool:
    arg = arg.realize(machine)
    return isinstance(arg, TensorValue) and arg.meta.requires_grad


def _body_of(definition: CustomOpDef) -> FunctionType | None:
    """Return the function that triton_op was called with; None for other custom operators."""
    kernel = definition._init_fn
    if getattr(kernel, "__module__", None) != "torch._library.triton":
        return None
    found = inspect.getclosurevars(kernel).nonlocals.get("fn")
    return found if isinstance(found, FunctionType) else None


def _class_for(name: str, definition: CustomOpDef, body: FunctionType) -> type:
    """Return the autograd function that does what the operator does; a new one for new parts."""
    parts: dict[str, Any] = {"forward": body, "setup_context": _nothing_saved}
    if definition._setup_context_fn is not None:
        parts["setup_context"] = definition._setup_context_fn
    if definition._backward_fn is not None:
        parts["backward"] = definition._backward_fn
    for part in parts.values():
        if not isinstance(part, FunctionType):
            raise _refused(name, "a part of it is no Python function")
    # torch passes these by name, an autograd function by position.
    if [*inspect.signature(parts["setup_context"]).parameters] != ["ctx", "inputs", "output"]:
        raise _refused(name, "its setup_context has other parameters")
    known = CLASSES.get(name)
    if known is None or _parts_of(known) != parts:
        fields = {key: staticmethod(part) for key, part in parts.items()}
        CLASSES[name] = known = type(name.replace("::", "_"), (_Function,), fields)
    return known


def _parts_of(cls: type) -> dict[str, Any]:
    return {key: part.__func__ for key, part in vars(cls).items() if isinstance(part, staticmethod)}


def _nothing_saved(ctx: object, inputs: object, output: object) -> None:
    """Save nothing for the backward."""
