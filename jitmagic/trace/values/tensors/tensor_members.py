"""Lists the rules for attributes and methods of tensors: a constant, a node, or a graph break.

Input: a TensorValue and the name of an attribute, or a bound method and its arguments. Output: a
constant of the trace if metadata answers (shapes, dtypes, flags, strides), else a recorded call.
The strides that a kernel chooses are unknown before it runs, so reading them is a graph break.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ....graph.node_meta import device_of
from ....graph.rules import Rule, Rules
from ....graph.target_names import Target
from ....late import late_names
from ....late_tables import EVERY
from ...breaks import (
    GraphBreak,
    RefusedTorchCall,
    TensorItem,
    UncertainStrides,
    UnsupportedAttribute,
)
from ...builtins.pytorch.torch_rules import DATA_METHODS, REFUSED_METHODS
from ...builtins.registry import calls, handler_of, handles
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..numbers.tensor_numbers import NUMBERS, number_of, read_counter
from ..objects.class_facts import guarded_attribute
from ..objects.monkey_patches import TENSOR
from .function_subclasses import (
    is_function_subclass,
    through_torch_function,
    without_torch_functions,
)
from .gradients import read_gradient
from .name_lookups import guard_looked_up_names
from .ragged_sizes import sizes_of_nested
from .subclasses import library_method, wrapper_attribute
from .tensor import ATTRIBUTES, TensorValue, record

if TYPE_CHECKING:
    from ...region import RegionBuilder
else:
    late_names(globals(), {"trace.region": "RegionBuilder"})

__all__ = ["TensorMethodValue"]


class _Call(NamedTuple):
    machine: Machine
    owner: TensorValue
    name: str
    args: Args
    kwargs: Kwargs


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
        function, given = getattr(torch.Tensor, name), [self.owner, *args]
        if (users := through_torch_function(machine, function, given, kwargs)) is not None:
            return users
        if (handler := handler_of(getattr(torch.Tensor, name, None))) is not None:
            guard_looked_up_names(machine, TENSOR.get(name))
            return handler(machine, [self.owner, *args], kwargs)
        made = _METHODS.ask(_Call(machine, self.owner, name, args, kwargs), about=name)
        assert made is not None
        return made

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
_NEVER = frozenset("is_meta is_sparse_csr is_mkldnn is_mps is_xla is_xpu is_vulkan".split())
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


def _of_class(machine: Machine, tensor: TensorValue, name: str) -> Value | None:
    """Return a method of torch.Tensor; break for its other attributes."""
    found = getattr(torch.Tensor, name, None)
    if callable(found):
        # Methods are not data descriptors: an entry of the tensor's `__dict__` hides them. The
        # guard on the tensor has the names of such entries.
        hidden = tensor.live is not None and name in tensor.live.__dict__
        own = tensor.own_attribute(machine, name) if hidden else None
        return own or TensorMethodValue(tensor, name)
    if name in REFUSED_METHODS:
        raise GraphBreak(RefusedTorchCall.of(name=f"Tensor.{name}", why=REFUSED_METHODS[name]))
    if found is not None or hasattr(torch.Tensor, name) or tensor.kind.__dict__.get(name):
        raise GraphBreak(UnsupportedAttribute.of(name=name, type="Tensor"))
    return None


def _constant(read: Callable[[TensorValue, str], object]) -> Callable[..., Value]:
    return lambda machine, tensor, name: machine.constant(read(tensor, name))


def _shape(machine: Machine, tensor: TensorValue, name: str) -> Value | None:
    return sizes_of_nested(machine, tensor) if tensor.meta.is_nested else None


ATTRIBUTES[EVERY] = Rules(
    Rule(_shape, ("shape",)),  # before the meta tensor, which has no name for a ragged size
    Rule(_refuse_varying_flag, _FLAGS),  # before the meta tensor, which has one of the answers
    Rule(_constant(lambda tensor, name: getattr(tensor.meta, name)), _FROM_META),
    Rule(_constant(lambda tensor, name: device_of(tensor.node)), ("device",)),
    Rule(
        _constant(lambda tensor, name: device_of(tensor.node).type == name.removeprefix("is_")),
        ("is_cpu", "is_cuda", *_NEVER),
    ),
    Rule(_transposed, ("T", "H")),
    Rule(_as_call, _AS_CALLS),
    Rule(lambda machine, tensor, name: read_gradient(machine, tensor), ("grad",)),
    Rule(lambda machine, tensor, name: _history(machine, tensor), ("grad_fn",)),
    library_method,
    _of_class,  # before the tensor's own entries, as in Python for methods and descriptors
    lambda machine, tensor, name: tensor.own_attribute(machine, name),
    wrapper_attribute,
)


def _history(machine: Machine, tensor: TensorValue) -> Value | None:
    return machine.constant(None) if tensor.meta.is_leaf else None


# -- methods -------------------------------------------------------------------------------------


@handles(torch.Tensor.as_subclass)
def _as_subclass(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Model the tensor as an object of the other class, over the same memory."""
    kind: Any = args[1].realize(machine).as_constant(machine) if len(args) == 2 else None
    if kwargs or not is_function_subclass(kind):
        why = "it makes another kind of object of the tensor"
        raise GraphBreak(RefusedTorchCall.of(name="Tensor.as_subclass", why=why))
    guarded_attribute(machine, kind, "__torch_function__")
    with without_torch_functions(machine):
        alias = record(machine, torch.ops.aten.alias.default, args[:1])
    assert isinstance(alias, TensorValue)
    alias.kind = kind
    return alias


calls({
    torch.Tensor.requires_grad_: lambda machine, owner, requires_grad=None: owner.require_grad(
        machine, requires_grad or machine.constant(True)
    ),
}, like=lambda self, /, requires_grad=True: None)  # fmt: skip
calls({
    torch.Tensor.get_device: lambda machine, owner: (
        -1 if device_of(owner.node).type == "cpu" else device_of(owner.node).index
    ),
    torch.Tensor.__getitem__: lambda machine, owner, key: record(
        machine, operator.getitem, [owner, key]
    ),
    torch.Tensor.__setitem__: lambda machine, owner, key, value: owner.set_item(
        machine, key, value
    ),
})  # fmt: skip


def _counter(call: _Call) -> Value | None:
    owner = call.owner
    if call.args:
        return None
    return read_counter(call.machine, owner.node, owner.live, owner.source)


def _size(call: _Call) -> Value | None:
    if not call.owner.meta.is_nested or call.kwargs:
        return None
    sizes = sizes_of_nested(call.machine, call.owner)
    return sizes.get_item(call.machine, call.args[0]) if call.args else sizes


def _number(call: _Call) -> Value | None:
    if call.args or call.kwargs:
        return None
    return number_of(call.machine, call.owner.node, call.name)


def _refuse(call: _Call) -> None:
    name = call.name
    if name in DATA_METHODS:
        raise GraphBreak(TensorItem.of(what=f".{name}()"))
    raise GraphBreak(RefusedTorchCall.of(name=f"Tensor.{name}", why=REFUSED_METHODS[name]))


def _strides(call: _Call) -> Value | None:
    """Break if the strides are unknown, except for `grad.is_contiguous()` in a user's backward.

    Autograd gives no promise about the strides of a gradient: the trace makes it contiguous.
    """
    machine, owner, graph = call.machine, call.owner, call.machine.graph
    if owner.node not in graph.unknown_strides:
        return None
    is_gradient = isinstance(graph, RegionBuilder) and graph.is_fed(owner.node, "gradient")
    if call.name != "is_contiguous" or call.args or call.kwargs or not is_gradient:
        raise GraphBreak(UncertainStrides.of(what=f".{call.name}()"))
    # `if not grad.is_contiguous(): grad = grad.contiguous()` was a graph break in backwards.
    owner.node = graph.call("contiguous", [owner.node], {}, machine.lines())
    return machine.constant(True)


def _refuse_type_names(call: _Call) -> None:
    machine = call.machine
    given = call.args[0].realize(machine) if call.args else None
    if given is not None and issubclass(given.python_type(machine), torch.Tensor):
        return
    if given is None or not isinstance(given.as_constant(machine), torch.dtype):
        call.owner.refuse(machine, ".type() with names of types")


_METHODS: Rules[Value] = Rules(
    Rule(_size, ("size",)),
    Rule(_counter, ("item",)),  # before `_number`, which would fix a step count as a constant
    Rule(_number, NUMBERS),
    Rule(_refuse, {*DATA_METHODS, *REFUSED_METHODS}),  # after the numbers that the trace knows
    Rule(_strides, ("stride", "is_contiguous", "dim_order", "is_non_overlapping_and_dense")),
    Rule(_refuse_type_names, ("type",)),
    lambda call: record(call.machine, call.name, [call.owner, *call.args], call.kwargs),
)
