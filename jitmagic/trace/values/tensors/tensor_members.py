"""Lists the rules for attributes and methods of tensors: a constant, a node, or a graph break.

Input: a TensorValue and the name of an attribute, or a bound method and its arguments. Output: a
constant of the trace if metadata answers (shapes, dtypes, flags, strides), else a recorded call.
The strides that a kernel chooses are unknown before it runs, so reading them is a graph break.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from ....graph.node_meta import device_of
from ....graph.propagate import Target
from ....graph.rules import Rule, Rules
from ...breaks import (
    GraphBreak,
    RefusedTorchCall,
    TensorItem,
    UncertainStrides,
    UnsupportedAttribute,
)
from ...builtins.pytorch.torch_rules import DATA_METHODS, REFUSED_METHODS
from ...builtins.registry import handler_of, handles
from ...region import RegionBuilder
from ...result import Recipe
from ..autograd.gradients import read_gradient
from ..base import Args, Builder, Kwargs, Machine, Value
from ..numbers.counters import read_counter
from ..numbers.items import NUMBERS, number_of
from ..objects.monkey_patches import TENSOR
from .name_lookups import guard_looked_up_names
from .tensor import ATTRIBUTES, TensorValue, record

__all__ = ["TensorMethodValue"]


class TensorMethodValue(Value):
    """A method bound to a tensor."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: TensorValue, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def python_type(self, machine: Machine) -> type:
        return type(getattr(torch.empty(0), self.name))

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        name = self.name
        if (handler := handler_of(getattr(torch.Tensor, name, None))) is not None:
            guard_looked_up_names(machine, TENSOR.get(name))
            return handler(machine, [self.owner, *args], kwargs)
        known = _METHODS.ask(machine, self.owner, name, args, kwargs, about=name)
        return record(machine, name, [self.owner, *args], kwargs) if known is None else known

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant(self.name)))

    def parts(self) -> Sequence[Value]:
        return (self.owner,)

    def describe(self) -> str:
        return f"Tensor.{self.name}"


# -- attributes ----------------------------------------------------------------------------------


_FLAGS = ("requires_grad", "is_leaf", "grad_fn")
_FROM_META = frozenset(
    (
        "shape dtype ndim requires_grad is_leaf layout itemsize nbytes "
        "is_sparse is_quantized is_nested"
    ).split()
)
# True on devices that are never an input of a graph (tensor_inputs.py).
_NEVER = frozenset("is_meta is_sparse_csr is_mkldnn is_mps is_xla is_xpu is_vulkan is_ort".split())
# Attributes that compute a tensor, so they are recorded as calls of (function, arguments).
_AS_CALLS: dict[str, tuple[Target, tuple[Any, ...]]] = {
    "mT": ("transpose", (-2, -1)),
    "mH": ("adjoint", ()),
    "real": (torch.real, ()),
    "imag": (torch.imag, ()),
    "data": (getattr, ("data",)),  # own version counter; detach() would share it
}


def _refuse_varying_flag(machine: Machine, tensor: TensorValue, name: str) -> None:
    if machine.graph.flags_vary(tensor.node):
        tensor.refuse(machine, f"`.{name}` in a backward")


def _from_meta(machine: Machine, tensor: TensorValue, name: str) -> Value:
    return machine.constant(getattr(tensor.meta, name))


def _from_device(machine: Machine, tensor: TensorValue, name: str) -> Value:
    device = device_of(tensor.node)
    return machine.constant(device if name == "device" else device.type == name[3:])


def _false(machine: Machine, tensor: TensorValue, name: str) -> Value:
    return machine.constant(False)


def _as_call(machine: Machine, tensor: TensorValue, name: str) -> Value:
    target, args = _AS_CALLS[name]
    return record(machine, target, [tensor, *map(machine.constant, args)])


def _transposed(machine: Machine, tensor: TensorValue, name: str) -> Value:
    dims = tensor.meta.dim()
    if name == "H" and dims == 2:
        return record(machine, "adjoint", [tensor])
    if name == "H":
        tensor.refuse(machine, "`.H` of a tensor that is not a matrix")
    if dims != 2:
        return record(machine, getattr, [tensor, machine.constant(name)])  # torch warns
    return record(machine, "permute", [tensor, *map(machine.constant, reversed(range(dims)))])


def _gradient(machine: Machine, tensor: TensorValue, name: str) -> Value:
    return read_gradient(machine, tensor)


def _history(machine: Machine, tensor: TensorValue, name: str) -> Value | None:
    return machine.constant(None) if tensor.meta.is_leaf else None


def _of_class(machine: Machine, tensor: TensorValue, name: str) -> Value | None:
    """Return a method of torch.Tensor; break for its other attributes."""
    found = getattr(torch.Tensor, name, None)
    if callable(found):
        return TensorMethodValue(tensor, name)
    if name in REFUSED_METHODS:
        raise GraphBreak(RefusedTorchCall.of(name=f"Tensor.{name}", why=REFUSED_METHODS[name]))
    if found is not None or hasattr(torch.Tensor, name) or tensor.kind.__dict__.get(name):
        raise GraphBreak(UnsupportedAttribute.of(name=name, type="Tensor"))
    return None


def _own(machine: Machine, tensor: TensorValue, name: str) -> Value | None:
    return tensor.own_attribute(machine, name)


ATTRIBUTES.extend(
    Rule(_refuse_varying_flag, _FLAGS),  # before the meta tensor, which has one of the answers
    Rule(_from_meta, _FROM_META),
    Rule(_from_device, ("device", "is_cpu", "is_cuda")),
    Rule(_false, _NEVER),
    Rule(_transposed, ("T", "H")),
    Rule(_as_call, _AS_CALLS),
    Rule(_gradient, ("grad",)),
    Rule(_history, ("grad_fn",)),
    _of_class,  # before the tensor's own entries, as in Python for methods and descriptors
    _own,
)


# -- methods -------------------------------------------------------------------------------------


@handles(torch.Tensor.requires_grad_)
def _require_grad(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    owner, *given = args
    wanted = [*given, *kwargs.values(), machine.constant(True)][0]
    assert isinstance(owner, TensorValue)
    return owner.require_grad(machine, wanted)


def _counter(
    machine: Machine, owner: TensorValue, name: str, args: Args, kwargs: Kwargs
) -> Value | None:
    return None if args else read_counter(machine, owner.node, owner.live, owner.source)


def _number(
    machine: Machine, owner: TensorValue, name: str, args: Args, kwargs: Kwargs
) -> Value | None:
    return None if args or kwargs else number_of(machine, owner.node, name)


def _refuse_data(
    machine: Machine, owner: TensorValue, name: str, args: Args, kwargs: Kwargs
) -> None:
    raise GraphBreak(TensorItem.of(what=f".{name}()"))


def _refuse(machine: Machine, owner: TensorValue, name: str, args: Args, kwargs: Kwargs) -> None:
    raise GraphBreak(RefusedTorchCall.of(name=f"Tensor.{name}", why=REFUSED_METHODS[name]))


def _strides(
    machine: Machine, owner: TensorValue, name: str, args: Args, kwargs: Kwargs
) -> Value | None:
    """Break if the strides are unknown, except for `grad.is_contiguous()` in a user's backward.

    Autograd gives no promise about the strides of a gradient: the trace makes it contiguous.
    """
    graph = machine.graph
    if owner.node not in graph.unknown_strides:
        return None
    is_gradient = isinstance(graph, RegionBuilder) and graph.is_fed(owner.node, "gradient")
    if name != "is_contiguous" or args or kwargs or not is_gradient:
        raise GraphBreak(UncertainStrides.of(what=f".{name}()"))
    # `if not grad.is_contiguous(): grad = grad.contiguous()` was a graph break in backwards.
    owner.node = graph.call("contiguous", [owner.node], {}, machine.lines())
    return machine.constant(True)


def _device_index(
    machine: Machine, owner: TensorValue, name: str, args: Args, kwargs: Kwargs
) -> Value:
    device = device_of(owner.node)
    return machine.constant(-1 if device.type == "cpu" else device.index)


def _refuse_type_names(
    machine: Machine, owner: TensorValue, name: str, args: Args, kwargs: Kwargs
) -> None:
    given = args[0].realize(machine) if args else None
    if given is not None and issubclass(given.python_type(machine), torch.Tensor):
        return
    if given is None or not isinstance(given.as_constant(machine), torch.dtype):
        owner.refuse(machine, ".type() with names of types")


def _assign(
    machine: Machine, owner: TensorValue, name: str, args: Args, kwargs: Kwargs
) -> Value | None:
    if len(args) != 2 or kwargs:
        return None
    owner.set_item(machine, *args)
    return machine.constant(None)


def _index(machine: Machine, owner: TensorValue, name: str, args: Args, kwargs: Kwargs) -> Value:
    return record(machine, getattr(operator, name.strip("_")), [owner, *args], kwargs)


_METHODS: Rules[Value] = Rules(
    Rule(_counter, ("item",)),  # before `_number`, which would fix a step count as a constant
    Rule(_number, NUMBERS),
    Rule(_refuse_data, DATA_METHODS),  # after the numbers that the trace knows
    Rule(_refuse, REFUSED_METHODS),
    Rule(_strides, ("stride", "is_contiguous", "dim_order", "is_non_overlapping_and_dense")),
    Rule(_device_index, ("get_device",)),
    Rule(_refuse_type_names, ("type",)),
    Rule(_assign, ("__setitem__",)),
    Rule(_index, ("__getitem__", "__setitem__")),
)
