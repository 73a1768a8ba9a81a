"""Makes live wrapper subclasses of torch.Tensor graph inputs.

Input: an instance of a class with `__tensor_flatten__` and its Source. Output: a TensorValue whose
node makes the wrapper of its inner tensors, which are inputs of the graph with guards of their own.
Guards compare the wrapper's class, metadata, sizes and flags, and the methods of its class. The
class's `__torch_dispatch__` runs when the graph is traced: what it reads apart from its arguments
has no guard, and what it prints or counts happens then.

The inner tensors of a wrapper that requires grad are inputs whose gradients are parts of the
wrapper's gradient (`GraphInput.wrapper`).
"""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ....compat.tensors import is_transformed
from ....graph.subclass_nodes import rewrap
from ....graph.subclasses import Layout, flattened, is_wrapper
from ....guards.guard import FlattensTo, TypeIs
from ....guards.kinds.tensors import has_forward_gradient
from ....guards.source import InstanceDict, SlotAttr, Source, describe
from ....spec import TensorSpec
from ....symbols.context import Specialize
from ....symbols.size import Size
from ....symbols.symbolic_numbers import Symbol, symbols_of
from ...breaks import GraphBreak, RefusedTorchCall, UnsupportedAttribute, UnsupportedTensor
from ..base import Args, Kwargs, Machine, Value
from ..containers.mappings import entries_of_live
from ..objects.class_facts import attribute_of_class, guard_not_shadowed, guarded_attribute
from .input_specs import guarded_spec, own_symbols
from .tensor import TensorValue, record

__all__ = ["make_wrapper", "why_not_taken_apart", "wrapper_attribute", "wrapper_input"]

_METHODS = (
    "__torch_dispatch__",
    "__torch_function__",
    "__tensor_flatten__",
    "__tensor_unflatten__",
)

_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)


def why_not_taken_apart(tensor: torch.Tensor) -> str | None:
    """Return the reason why a wrapper cannot be a graph input; None if it can."""
    kind = type(tensor).__name__
    if is_transformed(tensor) or has_forward_gradient(tensor):
        return f"a {kind} is wrapped by a function transform or carries a tangent"
    if tensor.is_nested or tensor.layout is not torch.strided:
        return f"the layout of a {kind} is {tensor.layout}"
    try:
        first, second = flattened(tensor), flattened(tensor)
        if first[0] != second[0] or not _equal(first[1], second[1]):
            return f"the metadata of a {kind} cannot be compared"
        inner = [getattr(tensor, name) for name in first[0]]
    except Exception as error:  # user code may raise anything
        return f"{kind}.__tensor_flatten__() raises {type(error).__name__}: {error}"
    if any(not isinstance(one, torch.Tensor) for one in inner):
        return f"a {kind} names an inner tensor that is not a tensor"
    if any(one.device != tensor.device for one in inner):
        return f"the inner tensors of a {kind} are on other devices"
    return _why_no_gradient(tensor, inner)


def _why_no_gradient(tensor: torch.Tensor, inner: list[torch.Tensor]) -> str | None:
    kind = type(tensor).__name__
    if any(one.requires_grad for one in inner):
        return f"an inner tensor of a {kind} requires grad"
    if not tensor.requires_grad:
        return None
    if any(is_wrapper(one) or not one.is_floating_point() for one in inner):
        return f"a {kind} requires grad, and an inner tensor is not a plain one of floats"
    return None


def _equal(one: object, other: object) -> bool:
    return one is other or (one == other) is True


def wrapper_input(machine: Machine, obj: torch.Tensor, source: Source) -> TensorValue:
    """Add the inner tensors of a wrapper as graph inputs; return the wrapper around them."""
    kind, layout = type(obj), Layout.of(obj)
    machine.guard(TypeIs(source, kind))
    for name in _METHODS:
        guarded_attribute(machine, kind, name)
    machine.guard(FlattensTo(source, layout.names, layout.context))
    inner = [_inner_node(machine, obj, source, place) for place in enumerate(layout.names)]
    notes = machine.notes.root
    # After the inner tensors: a size that varies as one of theirs does shares its symbol.
    spec = guarded_spec(machine, obj, source)
    read = notes.graph.sizes.inputs
    if unread := [symbol for symbol in _symbols_of(spec) if symbol not in read]:
        raise Specialize(unread, f"a size of a {kind.__name__} that no inner tensor has")
    node = rewrap(notes.graph, layout, inner, spec)
    made = notes.owners[node] = TensorValue(node, kind, obj, source)
    return made


def _inner_node(machine: Machine, obj: Any, source: Source, place: tuple[int, str]) -> Node:
    """Return the graph input for the inner tensor with that number and name."""
    number, name = place
    value = _attribute(machine, obj, source, name)
    if obj.requires_grad:
        inner_source = value.source
        assert inner_source is not None
        return _gradient_input(
            machine, getattr(obj, name), inner_source, (source, number), obj.is_leaf
        )
    inner = value.realize(machine)
    if not isinstance(inner, TensorValue):
        raise GraphBreak(UnsupportedTensor.of(what=f"the inner tensor {name!r} is unknown"))
    node: Node = inner.node
    return node


def _symbols_of(spec: TensorSpec) -> dict[Symbol, None]:
    sizes = [size for size in (*spec.shape, *spec.stride) if isinstance(size, Size)]
    return dict.fromkeys(symbol for size in sizes for symbol in symbols_of(size.expr))


def _attribute(machine: Machine, obj: Any, source: Source, name: str) -> Value:
    """Return an attribute in the `__dict__` or a slot of a wrapper, not inspected yet."""
    kind = type(obj)
    raw = attribute_of_class(kind, name)
    if isinstance(raw, types.MemberDescriptorType):
        guard_not_shadowed(machine, kind, name, raw)
        return machine.lazy(getattr(obj, name), SlotAttr(source, name))
    table = entries_of_live(machine, obj.__dict__, InstanceDict(source))
    if name not in obj.__dict__ or (found := table.store.get(name)) is None:
        what = f"the inner tensor {name!r} of a {kind.__name__} is computed by a property"
        raise GraphBreak(UnsupportedTensor.of(what=what))
    guard_not_shadowed(machine, kind, name, raw)
    return found


def make_wrapper(machine: Machine, kind: type, args: Args, kwargs: Kwargs) -> Value:
    """Record the construction of a wrapper; `__new__` and `__init__` run as `__torch_dispatch__`
    does.
    """
    for name in ("__new__", "__init__", *_METHODS):
        guarded_attribute(machine, kind, name)
    made = record(machine, kind, args, kwargs)
    wrapper = made.meta if isinstance(made, TensorValue) else None
    why = None if wrapper is None else why_not_taken_apart(wrapper)
    if wrapper is None or wrapper.requires_grad or why is not None:
        why = why or "it makes a leaf that requires grad"
        raise GraphBreak(RefusedTorchCall.of(name=kind.__name__, why=why))
    return made


def wrapper_attribute(machine: Machine, tensor: TensorValue, name: str) -> Value | None:
    """Return an attribute of a wrapper that the graph computes; None if it has none."""
    wrapper = tensor.meta
    if not is_wrapper(wrapper) or tensor.live is not None:
        return None
    slot = isinstance(attribute_of_class(tensor.kind, name), types.MemberDescriptorType)
    if not hasattr(wrapper, name) if slot else name not in vars(wrapper):
        return None
    found = getattr(wrapper, name)
    if isinstance(found, torch.Tensor):
        return record(machine, getattr, [tensor, machine.constant(name)])
    if type(found) in _CONSTANTS:
        return machine.constant(found)
    raise GraphBreak(UnsupportedAttribute.of(name=name, type=tensor.kind.__name__))


def _gradient_input(
    machine: Machine,
    inner: torch.Tensor,
    source: Source,
    wrapper: tuple[Source, int],
    is_leaf: bool,
) -> Node:
    """Add an inner tensor whose gradient is part of the wrapper's."""
    spec = guarded_spec(machine, inner, source)
    notes = machine.notes.root
    # The call passes it as a result of an autograd function. Writes to a leaf are checked as those
    # to other leaves, hence `is_leaf` of the wrapper.
    with_history = replace(spec, requires_grad=True, is_leaf=is_leaf)
    node = notes.add_input(describe(source), source, with_history)
    notes.inputs[node] = replace(notes.inputs[node], wrapper=wrapper)
    made = notes.owners[node] = TensorValue(node, torch.Tensor, inner, source)
    own_symbols(machine, made)
    return node
